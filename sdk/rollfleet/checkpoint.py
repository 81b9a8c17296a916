"""Checkpoints: what a learner trains, and the state of its collector, in files that are whole or absent."""

import logging
import os
import pickle
import re
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

from rollfleet.arguments import path_of, shown, whole_number
from rollfleet.errors import JobInvalid, RollfleetError
from rollfleet.learner.iterator import BatchIterator
from rollfleet.policies.actor_critic import ActorCritic
from rollfleet.weights.modules import unwrapped

_NAME = re.compile(r"checkpoint-(\d+)\.pt")
_UNFINISHED = "unfinished.tmp"
_BEST = "best.pt"
_WRITE_ONE = "write one in the learner: rollfleet.Checkpoint(FOLDER, collector, {'policy': policy}).save()"


class Checkpoint:
    """Saves what a learner needs to continue after its process was killed.

    A file is written under another name, flushed to disk, and renamed. So each `checkpoint-NUMBER.pt` is whole,
    whenever the process or the machine dies.

    Example:
        >>> import tempfile, rollfleet, torch
        >>> policy = torch.nn.Linear(4, 2)
        >>> folder = tempfile.TemporaryDirectory()
        >>> for life in range(2):
        ...     with rollfleet.Collector("CartPole-v1", frames_per_batch=8) as collector:
        ...         checkpoint = rollfleet.Checkpoint(folder.name, collector, {"policy": policy})
        ...         resumed = checkpoint.resume()
        ...         batch = next(collector)
        ...         path = checkpoint.step()
        ...         print(resumed, collector.frames, path.name)
        False 8 checkpoint-1.pt
        True 16 checkpoint-2.pt
        >>> folder.cleanup()

    Args:
        folder: The folder of the files, such as a mounted volume. It is created.
        collector: The collector; its counters, versions and seeds are kept.
        parts: What the learner trains, by name: the policy, as `policy`, optimizers, schedulers, other networks. Each
            has `state_dict()` and `load_state_dict(state)`.
        every: Calls of `step` between two saves.
        keep: How many of the newest files stay.
        best: "mean_return": the save with the greatest `collector.mean_return` stays, too, as `best.pt`. None: no.

    Raises:
        JobInvalid: `every` or `keep` is not a number of at least 1, a part has no `state_dict`, or `best` is unknown.
    """

    def __init__(
        self,
        folder: str | Path,
        collector: BatchIterator,
        parts: Mapping[str, Any],
        *,
        every: int = 1,
        keep: int = 2,
        best: str | None = None,
    ) -> None:
        if best not in (None, "mean_return"):
            raise JobInvalid(f"best: expected 'mean_return' or None, got {shown(best)}")
        if not isinstance(parts, Mapping):
            raise JobInvalid(f"parts: expected a dict, such as {{'policy': policy}}, got {shown(parts)}")
        for name, part in parts.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise JobInvalid(f"parts[{name!r}]: a {type(part).__name__} has no state_dict() and load_state_dict()")
        self._folder, self._collector = path_of(folder, "folder"), collector
        self._parts = {name: unwrapped(part) for name, part in parts.items()}
        self._every, self._keep = whole_number(every, "every", least=1), whole_number(keep, "keep", least=1)
        self._steps, self._keeps_best, self._best_return = 0, best is not None, -inf
        self._folder.mkdir(parents=True, exist_ok=True)

    def step(self) -> Path | None:
        """Save at each `every`-th call. Call it after the training on a batch. Returns the file; None: not due."""
        self._steps += 1
        return self.save() if self._steps % self._every == 0 else None

    def save(self) -> Path:
        """Save now, and delete files beyond the newest `keep`. Returns the new file.

        Raises:
            OSError: The file could not be written. Earlier ones stay.
            RollfleetError: A part's state has values that `resume` would not load, such as NumPy's. Earlier files stay.
        """
        job: dict[str, Any] = self._collector.job.dump()
        if type(policy := self._parts.get("policy")) is ActorCritic:  # `rollfleet play` makes one again
            job["spec"]["policy"] = {"mlp": {"hidden": list(policy.hidden), "activation": policy.activation}}
        mean_return = -inf if (mean := self._collector.mean_return) is None else mean
        state = {
            "job": job,
            "collector": self._collector.state_dict(),
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "mean_return": mean_return,
        }
        earlier = _files(self._folder)
        path = self._folder / f"checkpoint-{max(earlier, default=0) + 1}.pt"
        self._write(state, path)
        if self._keeps_best and mean_return > self._best_return:
            self._write(state, self._folder / _BEST)
            self._best_return = mean_return
        for number in sorted(earlier)[: max(0, len(earlier) + 1 - self._keep)]:
            earlier[number].unlink()
        return path

    def _write(self, state: Mapping[str, Any], path: Path) -> None:
        unfinished = self._folder / _UNFINISHED
        try:
            with unfinished.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
        except (OSError, RuntimeError) as error:
            cause = error if isinstance(error, OSError) else error.__context__  # torch's writer hides an OSError
            if not isinstance(cause, OSError):
                raise
            raise OSError(cause.errno, cause.strerror, str(unfinished)) from error
        if unsafe := get_unsafe_globals_in_checkpoint(unfinished):
            raise RollfleetError(
                f"a checkpoint holds tensors, numbers, texts and containers, but the state of {', '.join(self._parts)} "
                f"has {', '.join(unsafe)}; convert it, such as with float() or torch.as_tensor()"
            )
        unfinished.replace(path)
        _flush(self._folder)  # the new name is on disk before an old file goes

    def resume(self) -> bool:
        """Load the newest file into the parts and the collector. Call it before the first iteration.

        Returns:
            Whether there was one. False: the learner begins with what it has.

        Raises:
            RollfleetError: The file cannot be read, or has other parts. The message names it.
        """
        if not _files(self._folder):
            return False
        path, state = read(self._folder)
        if state["parts"].keys() != self._parts.keys():
            raise RollfleetError(
                f"{path} has the parts {', '.join(state['parts']) or 'none'}, not {', '.join(self._parts) or 'none'}; "
                "pass the same parts, or another folder"
            )
        for name, part in self._parts.items():
            load(part, state["parts"][name], f"{path}: the part {name!r}", "make it as it was, or name another folder")
        self._collector.load_state_dict(state["collector"])
        if self._keeps_best and (best := self._folder / _BEST).exists():
            self._best_return = read(best)[1].get("mean_return", -inf)
        if 0 < (total := self._collector.total_frames) <= self._collector.frames:
            what = f"it has all {total:,} frames, and nothing is trained; to train again, name another folder"
            logging.getLogger(__name__).warning("%s: resumed at its end: %s", path, what)
        return True


def read(path: Path) -> tuple[Path, dict[str, Any]]:
    """Read a checkpoint onto the CPU.

    Args:
        path: The file, or a folder of them: the newest is read.

    Returns:
        The file, and its `job`, `collector` and `parts`.

    Raises:
        RollfleetError: The folder has no checkpoint, or the file cannot be read.
    """
    if path.is_dir():
        files = _files(path)
        if not files:
            raise RollfleetError(f"{path} has no checkpoint-NUMBER.pt; {_WRITE_ONE}")
        path = files[max(files)]
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        cause = str(error).partition(". ")[0] or type(error).__name__  # torch's advice is to execute its code
        raise RollfleetError(
            f"{path} is damaged, or no checkpoint ({cause}); move it away to use the one before it, or {_WRITE_ONE}"
        ) from error
    if not (isinstance(state, dict) and {"job", "collector", "parts"} <= state.keys()):
        raise RollfleetError(f"{path} is no checkpoint; {_WRITE_ONE}")
    return path, state


def load(part: Any, state: Mapping[str, Any], where: str, advice: str) -> None:
    """Load the state of a part. A RollfleetError says `where` the state is that of another one, and the `advice`."""
    try:
        unwrapped(part).load_state_dict(state)
    except (KeyError, RuntimeError, ValueError) as error:
        cause = " ".join(" ".join(str(error).splitlines()[:2]).split())  # torch lists each parameter
        raise RollfleetError(f"{where} does not fit: {cause}; {advice}") from error


def _files(folder: Path) -> dict[int, Path]:
    """Return the checkpoints of a folder, by number."""
    return {int(found[1]): path for path in folder.iterdir() if (found := _NAME.fullmatch(path.name))}


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
