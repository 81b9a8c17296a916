"""Iterates over what a recorder wrote, as the learner iterated over the job."""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rollfleet.data.batch import to_batch
from rollfleet.errors import JobInvalid, MessageCorrupt, RecordingDamaged
from rollfleet.learner.options import device_of
from rollfleet.learner.shares import together
from rollfleet.recording.segments import Record, describe, scan, segments_in
from rollfleet.transports.learner_side import Arrival
from rollfleet.wire.fragment_message import unpack_fragment
from rollfleet_api.job import CollectorJob

if TYPE_CHECKING:
    from tensordict import TensorDict

log = logging.getLogger(__name__)


class Recording:
    """The batches that a recorder wrote into a folder; no server is needed. Iterate over it as often as you like.

    In mode Async: TensorDict `[envs, T]`, of one worker each, in its order; between workers the order may differ from
    the learner's. In mode Sync: those of one round put together, as the learner's iterator yields them. Batches have
    memory of their own, read when they are asked for. What is still being recorded is there up to the last batch.

    It has what workers sent: also what the learner dropped as older than `weights.maxLag`, and, in a round that the
    learner closed before all had reported, what came before the next one.

    Args:
        folder: Where they are.
        skip_damaged: Pass over what is damaged (`damaged` tells of it), instead of raising an error.
        device: Where batches are put; None: in CPU memory.

    Raises:
        JobInvalid: There is no recording, or no such device.
        RecordingDamaged: The first file cannot be read.
    """

    def __init__(
        self, folder: str | Path, *, skip_damaged: bool = False, device: str | torch.device | None = None
    ) -> None:
        self._folder, self._skip_damaged = Path(folder), skip_damaged
        self._device = None if device is None else device_of(device, "device")
        self._damaged: dict[tuple[Path, int], RecordingDamaged] = {}
        if not segments_in(self._folder):
            raise JobInvalid(f"there is no recording in {folder}: `rollfleet record JOB --to FOLDER` makes one")
        self.job = self._first_job()

    @property
    def damaged(self) -> list[RecordingDamaged]:
        """What was passed over until now, each with its file and offset."""
        return list(self._damaged.values())

    def __len__(self) -> int:
        """How many batches an iteration yields: found without reading them, so that damaged ones are among them."""
        return sum(1 for _ in self._groups())

    def __iter__(self) -> Iterator["TensorDict"]:
        """The batches, in their order.

        Raises:
            RecordingDamaged: Something is damaged; names file and offset.
        """
        for group in self._groups():
            shares = [arrival.batch for record in group if (arrival := self._arrival(record))]
            if shares:
                yield together(shares, self.job.spec.collect.cat_results) if group[0].round else shares[0]

    def arrivals(self) -> Iterator[Arrival]:
        """The same, one by one as each worker sent them, with what is known of each.

        Raises:
            RecordingDamaged: Something is damaged; names file and offset.
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
        """The records of each run of a recorder: rounds are numbered anew where the job was made anew."""
        files: list[Path] = []
        running = ""
        for file in segments_in(self._folder):
            try:
                run = describe(file).recording
            except RecordingDamaged:  # told of when it is scanned
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
        return Arrival(
            worker=identity.worker,
            incarnation=identity.incarnation,
            sequence=identity.sequence,
            meta=meta,
            batch=batch if self._device is None else batch.to(self._device),
            episode_returns=fragment.episode_returns,
            episode_lengths=fragment.episode_lengths,
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
    """What a learner puts together: the records of one round in their workers' order, or each alone in mode Async.

    As the learner does, take the first of each worker in a round, and drop what comes when a later one has begun.
    """
    shares: dict[int, Record] = {}
    newest = (0, 0)
    for record in records:
        when = (record.session, record.round)
        if not record.round:
            yield [record]
        elif when >= newest:
            if when > newest and shares:
                yield [shares[worker] for worker in sorted(shares)]
                shares = {}
            newest = when
            shares.setdefault(record.identity.worker, record)
    if shares:
        yield [shares[worker] for worker in sorted(shares)]
