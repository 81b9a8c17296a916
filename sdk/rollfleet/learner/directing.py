"""Directs the workers: the control messages of a learner."""

from collections.abc import Callable
from dataclasses import replace

from rollfleet.learner.broadcast import Broadcaster
from rollfleet.learner.run_state import RunState
from rollfleet.transports.learner_side import Transport
from rollfleet.wire.env_settings import NO_SETTINGS
from rollfleet_api.job import CollectorJob, Mode
from rollfleet_api.messages import Control, LearnerPhase


class Director:
    """Sends control to the workers. On ranks other than 0 it sends none.

    Args:
        transport: The learner's side of a transport.
        weights: The versions of the weights.
        frames: Returns the frames of all ranks so far.

    Attributes:
        run_state: Rounds, seeds and environments' settings.
        phase: The phase that workers are in.
        steps: T of the open round.
    """

    def __init__(
        self,
        transport: Transport,
        job: CollectorJob,
        weights: Broadcaster,
        frames: Callable[[], int],
    ) -> None:
        self._transport, self._job, self._weights, self._frames = transport, job, weights, frames
        self._sync = job.spec.mode is Mode.SYNC
        self._control: Control | None = None  # the last one sent
        self.run_state = RunState()
        if transport.resumed.env_version:  # an earlier learner's settings end with it, unless they are restored
            self.run_state.env_version = transport.resumed.env_version
            self.run_state.set_env(NO_SETTINGS)
        self.phase = LearnerPhase.RUN
        self.steps = 0

    @property
    def job(self) -> CollectorJob:
        """The job, with the edits since the learner connected."""
        return self._transport.job or self._job

    def direct(self) -> None:
        """Send the workers the present control message, if it differs from the last one; on rank 0."""
        with self._weights.lock:
            if (control := self._present()) != self._control:
                self._send(control)

    def _present(self) -> Control:
        run_state = self.run_state
        return Control(
            session=self._transport.resumed.session,
            phase=self.phase,
            round=run_state.round if self._sync else 0,
            version=self._weights.target(),
            some=self._weights.single_targets,
            closed=run_state.closed if self._sync else 0,
            random_actions=self._frames() < self.job.spec.collect.init_random_frames,
            seed=run_state.seed,
            static_seed=run_state.static_seed,
            seeding=run_state.seeding,
            interrupts=run_state.interrupts,
            origin=run_state.origin,
            steps=self.steps,
            env_version=run_state.env_version,
            env_settings=run_state.env_settings,
            own_weights=not self._weights.has_policy and not self.job.spec.weights.interval,
        )

    def direct_async(self) -> None:
        """Do the same in mode Async. In mode Sync the next round sends it anyway."""
        if not self._sync:
            self.direct()

    def close_round(self) -> None:
        """Close the round: workers that collect for it stop. Nothing else changes before the next one."""
        self.run_state.closed = self.run_state.round
        with self._weights.lock:
            self._send(replace(self._control or self._present(), closed=self.run_state.closed))

    def enter(self, phase: LearnerPhase) -> None:
        """Put the workers into this phase; on other ranks than 0, this process only.

        Nothing else changes: in mode Sync no round opens, and no newer version is required.
        """
        self.phase = phase
        with self._weights.lock:
            self._send(replace(self._control or self._present(), phase=phase))

    def _send(self, control: Control) -> None:
        self._control = control
        if self._transport.rank.leads:
            self._transport.control(control)
