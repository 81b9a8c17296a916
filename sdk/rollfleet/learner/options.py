"""The options of a collector, of any of its three constructors, and checks of options against each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Final, Protocol, Self

from rollfleet.arguments import plain
from rollfleet.errors import JobInvalid
from rollfleet.learner.keywords import KEYWORDS, MANUAL
from rollfleet.processes.settings import Processes


class Extends(Protocol):
    """A replay buffer: `rollfleet.ReplayBuffer`, TorchRL's, or any object with this method."""

    def extend(self, batch: Any, /) -> Any:
        """Store the frames of a batch, TensorDict `[frames]`."""


@dataclass(frozen=True, slots=True)
class Options:
    """The keywords of a call of `rollfleet.Collector`, `Collector.over` or `connect`, those of `processes` among them.

    Attributes:
        values: The value of each keyword of the call. A number of NumPy's is Python's. None and -1 are 0 where 0 means
            "no limit": for keywords that are a number by default, and may be None.
        given: The keywords whose value is not their default.
    """

    values: Mapping[str, Any]
    given: frozenset[str]

    @classmethod
    def of(cls, given: Mapping[str, Any], function: Callable[..., object]) -> Self:
        """Make the options of a call of the function from keywords that are given; the others have their defaults.

        Raises:
            JobInvalid: A value cannot be used. The message names the keyword.
        """
        parameters = signature(function).parameters.items()
        defaults = {name: each.default for name, each in parameters if each.kind is Parameter.KEYWORD_ONLY}
        values = {name: _read(given.get(name, default), name, default) for name, default in defaults.items()}
        for name, each in parameters:
            is_limit = each.annotation == int | None and each.default is not None
            if is_limit and (values[name] is None or _same(values[name], -1)):
                values[name] = 0
        if "processes" in defaults:
            processes = values.pop("processes") or _PROCESSES
            for name in Processes.__dataclass_fields__:
                defaults[name], values[name] = getattr(_PROCESSES, name), plain(getattr(processes, name))
        options = cls(values, frozenset(name for name in values if not _same(values[name], defaults[name])))
        if values.get("acknowledge") == MANUAL and values["replay_buffer"] is not None:
            raise JobInvalid(
                "`replay_buffer` stores each batch before the next one comes; remove `acknowledge`, or extend the "
                "buffer in your own loop"
            )
        devices = [name for name in ("device", "env_device") if name in values]
        if values.get("no_cuda_sync") and not options.given.intersection(devices):
            raise JobInvalid(
                f"`no_cuda_sync` needs {' or '.join(f'`{name}`' for name in devices)}: it is about copies to a device; "
                "name a device, or remove it"
            )
        return options

    def __getitem__(self, name: str) -> Any:
        """Return the value of a keyword."""
        return self.values[name]


_PROCESSES: Final = Processes()


def check_place(options: Options) -> None:
    """Check that the options of a `rollfleet.Collector` have a meaning where it collects.

    Raises:
        JobInvalid: One has none. The message names it, and what to write.
    """
    mode, given = str(options["mode"]).lower(), options.given
    about = {name: each for name, each in KEYWORDS.items() if name in given}
    if not options["workers"]:
        for name, each in about.items():
            if each.needs:
                raise JobInvalid(f"`{name}` needs worker processes; write `workers=1` or more, or remove it")
        if isinstance(options["evaluation"], Mapping) and "workers" in options["evaluation"]:
            raise JobInvalid(
                "`evaluation`: its `workers` are processes, and this collector has none; write `workers=1` or more "
                "beside it, or remove the entry"
            )
        if mode == "async":
            raise JobInvalid("mode 'async' needs worker processes; write `workers=1` or more, or remove `mode`")
    for name, each in about.items():
        if each.needs == "cluster" and options["cluster"] is None:
            raise JobInvalid(f"`{name}` is about pods; pass `cluster`, or remove it")
        if each.needs == "machine" and options["cluster"] is not None:
            raise JobInvalid(f"`{name}` is about processes of this machine; remove it, or remove `cluster`")
        if each.mode and mode in ("sync", "async") and mode != each.mode:
            raise JobInvalid(f"`{name}` has no effect in mode '{mode}'; write `mode='{each.mode}'`, or remove it")


def _read(value: Any, name: str, default: Any) -> Any:
    read, value = KEYWORDS[name].read if name in KEYWORDS else None, plain(value)
    return value if read is None or (value is None and default is None) else read(value, name)


def _same(value: object, default: object) -> bool:
    return value is default or (type(value) is type(default) and value == default)
