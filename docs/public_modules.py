"""An extension for `griffe check`: only these modules promise their names, as docs/stability.md says."""

from typing import Any

import griffe

PUBLIC = {"rollfleet", "rollfleet.errors", "rollfleet.exploration", "rollfleet.schemes", "rollfleet.testing"}


class PublicModules(griffe.Extension):
    """Marks all other modules as private."""

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """Mark a module; griffe calls this hook for each."""
        mod.public = mod.path in PUBLIC
