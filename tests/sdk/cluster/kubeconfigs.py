"""Kubeconfigs that lead elsewhere than that of the API server, or as someone else."""

from collections.abc import Mapping
from pathlib import Path

import yaml
from tests.control.kubernetes import ApiServer


def kubeconfig_with(server: ApiServer, file: Path, **parts: Mapping[str, object]) -> Path:
    """Write the server's kubeconfig with these changes of its `cluster` or `user`; None removes a field."""
    config = yaml.safe_load(server.kubeconfig().read_text())
    for part, changes in parts.items():
        changed = config[f"{part}s"][0][part] | changes
        config[f"{part}s"][0][part] = {name: value for name, value in changed.items() if value is not None}
    file.write_text(yaml.safe_dump(config))
    return file
