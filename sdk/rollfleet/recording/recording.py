"""Iterates over recorded batches as the learner iterated over the job."""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rollfleet.arguments import path_of
from rollfleet.data.batch import join, to_batch
from rollfleet.errors import JobInvalid, MessageCorrupt, RecordingDamaged
from rollfleet.recording.segments import Record, describe, scan, segments_in
from rollfleet.system.devices import device_of
from rollfleet.transports.learner_side import Arrival
from rollfleet.wire.fragment_message import unpack_fragment
from rollfleet_api.job import CollectorJob

if TYPE_CHECKING:
    from tensordict import TensorDict

log = logging.getLogger(__name__)


class Recording:
    """The batches that a recorder wrote into a folder. No server is needed. Iterate over it as often as you like.

    In mode Async it yields TensorDict `[envs, T]`, each of one worker, in its order; the order between workers may
    differ from the learner's. In mode Sync it joins the batches of one round, as the learner's iterator does. Each
    batch is read when it is asked for, into its own memory. A recording in progress can be read up to its last batch.

    It holds every batch that workers sent. That includes batches that the learner dropped as older than
    `weights.maxLag`. Of a round that the learner closed early, it includes batches that came before the next round.

    Args:
        folder: The recording's folder.
        skip_damaged: Skip damaged parts (see `damaged`) instead of raising an error.
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

    def __init__(
        self, folder: str | Path, *, skip_damaged: bool = False, device: str | torch.device | None = None
    ) -> None:
        self._folder, self._skip_damaged = path_of(folder, "folder"), skip_damaged
        self._device = None if device is None else device_of(device, "device")
        self._damaged: dict[tuple[Path, int], RecordingDamaged] = {}
        if not segments_in(self._folder):
            raise JobInvalid(f"no recording in {folder}: create one with `rollfleet record JOB --to FOLDER`")
        self.job = self._first_job()

    @property
    def damaged(self) -> list[RecordingDamaged]:
        """Damaged parts that were skipped until now, each with its file and offset."""
        return list(self._damaged.values())

    def __len__(self) -> int:
        """Return the number of batches that an iteration yields. They are not read: damaged ones count, too."""
        return sum(1 for _ in self._groups())

    def __iter__(self) -> Iterator["TensorDict"]:
        """Iterate over the batches in their order.

        Raises:
            RecordingDamaged: A part is damaged. The error has its file and offset.
        """
        for group in self._groups():
            batches = [arrival.batch for record in group if (arrival := self._arrival(record))]
            if batches:
                yield join(batches, self.job.spec.collect.cat_results) if group[0].round else batches[0]

    def arrivals(self) -> Iterator[Arrival]:
        """Iterate over the batches as each worker sent them, with their metadata.

        Raises:
            RecordingDamaged: A part is damaged. The error has its file and offset.
        """
        for records in self._runs():
            for record in records:
                if arrival := self._arrival(record):
                    yield arrival

    def _first_job(self) -> CollectorJob:
        for file in segments_in(self._folder):
            try:
                return describe(file).job
            except RecordingDamaged as damaged:
                first = damaged
                self._on_damage(damaged)
        raise first

    def _groups(self) -> Iterator[list[Record]]:
        for records in self._runs():
            yield from by_rounds(records)

    def _runs(self) -> Iterator[Iterator[Record]]:
        """Records by run of the recorder: a recreated job numbers its rounds from the start."""
        files: list[Path] = []
        running = ""
        for file in segments_in(self._folder):
            try:
                run = describe(file).recording
            except RecordingDamaged:  # reported when it is scanned
                run = running
            if files and run != running:
                yield self._records(files)
                files = []
            files.append(file)
            running = run
        yield self._records(files)

    def _records(self, files: Iterable[Path]) -> Iterator[Record]:
        for file in files:
            yield from scan(file, self._on_damage)

    def _arrival(self, record: Record) -> Arrival | None:
        try:
            buffer = record.read()
            try:
                meta, fragment = unpack_fragment(buffer, checksum=False)
                batch: Any = to_batch(fragment)
            except MessageCorrupt as error:
                raise RecordingDamaged(record.file, record.offset, str(error)) from error
        except RecordingDamaged as damaged:
            self._on_damage(damaged)
            return None
        identity = record.identity
        return Arrival.of(
            worker=identity.worker,
            incarnation=identity.incarnation,
            sequence=identity.sequence,
            meta=meta,
            fragment=fragment,
            batch=batch if self._device is None else batch.to(self._device),
            nbytes=record.nbytes,
        )

    def _on_damage(self, damaged: RecordingDamaged) -> None:
        if not self._skip_damaged:
            raise damaged
        where = (damaged.file, damaged.offset)
        if where not in self._damaged:
            log.warning("%s", damaged)
            self._damaged[where] = damaged


def by_rounds(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Group records as a learner joins them: those of one round by worker, or each alone in mode Async.

    As in the learner, each worker's first record of a round counts, and a record is dropped after a later round began.
    """
    of_round: dict[int, Record] = {}
    newest = (0, 0)
    for record in records:
        when = (record.session, record.round)
        if not record.round:
            yield [record]
        elif when >= newest:
            if when > newest and of_round:
                yield [of_round[worker] for worker in sorted(of_round)]
                of_round = {}
            newest = when
            of_round.setdefault(record.identity.worker, record)
    if of_round:
        yield [of_round[worker] for worker in sorted(of_round)]
