"""Keywords as `rollfleet.Collector` takes them."""

from inspect import Parameter, signature
from typing import Any, Final

from rollfleet import Collector
from rollfleet.learner.keywords import Keywords

PARAMETERS: Final = {
    name: each for name, each in signature(Collector).parameters.items() if each.kind is Parameter.KEYWORD_ONLY
}
"""The keywords of the collector, with their types and defaults."""


def keywords_of(**given: Any) -> Keywords:
    """The keywords of a call that gives these."""
    return Keywords.of(given, PARAMETERS)
