"""Iterates over recorded batches as the learner iterated over the job."""

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rollfleet.arguments import path_of
from rollfleet.data.batch import join
from rollfleet.data.splitting import frames_of
from rollfleet.errors import JobInvalid
from rollfleet.recording.segments import Record, Segment, segments_in
from rollfleet.system.devices import device_of
from rollfleet.transports.learner_side import Arrival
from rollfleet.wire.chunks import Identity
from rollfleet_api.collection import TrajFormat

if TYPE_CHECKING:
    from tensordict import TensorDict


class Recording:
    """The batches that a recorder wrote into a folder. No server is needed. Iterate over it as often as you like.

    In mode Async it yields TensorDict `[envs, T]`, each of one worker, in its order; the order between workers may
    differ from the learner's. In mode Sync it joins the batches of one round, as the learner's iterator does. Each
    batch is read when it is asked for, into its own memory. A recording in progress can be read up to its last file.

    It holds every batch that workers sent. That includes batches that the learner dropped as older than
    `weights.maxLag`. Of a round that the learner closed early, it includes batches that came before the next round.

    Args:
        folder: The recording's folder.
        device: The device of batches; None: CPU memory.

    Attributes:
        job: The job, as of the first file.

    Raises:
        JobInvalid: The folder has no recording, or the device does not exist.
        RecordingDamaged: The first file cannot be read.

    Example:
        >>> for batch in rollfleet.Recording("recording"):  # doctest: +SKIP
        ...     print(batch.batch_size, batch["next", "reward"].mean())
    """

    def __init__(self, folder: str | Path, *, device: str | torch.device | None = None) -> None:
        self._folder = path_of(folder, "folder")
        self._device = None if device is None else device_of(device, "device")
        if not (files := segments_in(self._folder)):
            raise JobInvalid(f"no recording in {folder}: create one with `rollfleet record JOB --to FOLDER`")
        self.job = Segment.open(files[0]).job

    def __len__(self) -> int:
        """Return the number of batches that an iteration yields. They are not read."""
        return sum(1 for _ in self._groups())

    def __iter__(self) -> Iterator["TensorDict"]:
        """Iterate over the batches in their order.

        Raises:
            RecordingDamaged: A file cannot be read. The error has its path.
        """
        for group in self._groups():
            batches = [self._arrival(record).batch for record in group]
            batch = join(batches, self.job.spec.collect.cat_results) if group[0].entry.meta.round else batches[0]
            yield frames_of(batch) if self.job.spec.collect.traj_format is TrajFormat.CAT else batch

    def arrivals(self) -> Iterator[Arrival]:
        """Iterate over the batches as each worker sent them, with their metadata.

        Raises:
            RecordingDamaged: A file cannot be read. The error has its path.
        """
        return map(self._arrival, chain.from_iterable(self._runs()))

    def _groups(self) -> Iterator[list[Record]]:
        return chain.from_iterable(map(by_rounds, self._runs()))

    def _runs(self) -> Iterator[Iterator[Record]]:
        """Records by run of the recorder: a recreated job numbers its rounds from the start."""
        newest: dict[int, list[Identity]] = {}

        def new(segment: Segment) -> Iterator[Record]:
            """Yield what no run before has recorded: a worker sends again what it keeps."""
            kept = segment.job.spec.delivery.max_batches_ahead + 1
            for record in segment.records:
                identity = record.entry.identity
                before = newest.get(identity.worker, [])
                if identity not in before:
                    newest[identity.worker] = [*before, identity][-kept:]
                    yield record

        for _, run in groupby(map(Segment.open, segments_in(self._folder)), key=lambda segment: segment.recorder):
            yield chain.from_iterable(map(new, run))

    def _arrival(self, record: Record) -> Arrival:
        identity, (fragment, batch) = record.entry.identity, record.read()
        return Arrival(
            worker=identity.worker,
            incarnation=identity.incarnation,
            sequence=identity.sequence,
            meta=record.entry.meta,
            episodes=fragment.episodes,
            batch=batch if self._device is None else batch.to(self._device),
            nbytes=record.entry.nbytes,
        )


def by_rounds(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Group records as a learner joins them: those of one round by worker, or each alone in mode Async.

    As in the learner, each worker's first record of a round counts, and a record is dropped after a later round began.
    """
    of_round: dict[int, Record] = {}
    newest = (0, 0)
    for record in records:
        meta = record.entry.meta
        when = (meta.session, meta.round)
        if not meta.round:
            yield [record]
        elif when >= newest:
            if when > newest and of_round:
                yield [of_round[worker] for worker in sorted(of_round)]
                of_round = {}
            newest = when
            of_round.setdefault(record.entry.identity.worker, record)
    if of_round:
        yield [of_round[worker] for worker in sorted(of_round)]
