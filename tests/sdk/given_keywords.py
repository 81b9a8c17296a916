"""Keywords as `rollfleet.Collector` takes them. Tests write those of `Processes` beside the others."""

from collections.abc import Mapping
from dataclasses import fields
from inspect import Parameter, signature
from typing import Any, Final

from rollfleet import Collector, Processes
from rollfleet.learner.options import Options

DEFAULTS: Final[Mapping[str, Any]] = {
    name: each.default
    for name, each in signature(Collector).parameters.items()
    if each.kind is Parameter.KEYWORD_ONLY and name != "processes"
} | {each.name: each.default for each in fields(Processes)}
"""The default of each keyword; `Parameter.empty`: it has none."""


def grouped(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The same keywords, with those of `Processes` in `processes`."""
    names = {each.name for each in fields(Processes)}
    own = {name: value for name, value in keywords.items() if name in names}
    others = {name: value for name, value in keywords.items() if name not in names}
    return others | ({"processes": Processes(**own)} if own else {})


def keywords_of(**given: Any) -> Options:
    return Options.of(grouped(given), Collector.__init__)
