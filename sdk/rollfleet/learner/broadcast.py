"""Numbers the versions of a learner's weights and hands snapshots of them to the transport."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from rollfleet.errors import NoWeights, WeightMismatch
from rollfleet.schemes import Layout, WeightScheme
from rollfleet.transports.learner_side import Lends, Transport
from rollfleet.weights.layout import State, WeightLayout
from rollfleet.weights.models import models_of

log = logging.getLogger(__name__)

NOTHING = "there are no parameters or buffers to send"


class Broadcaster:
    """Sends versions of one policy.

    Args:
        transport: Where snapshots go.
        policy: What is sent when nothing else is named; None: nothing is.
        scheme: How weights travel.
        version: The newest version that was ever sent for this job.
        acts: `policy` is the very object that collects: nothing need be sent, only loaded where it is something else.

    Raises:
        WeightMismatch: `policy` holds no weights in a form that can be sent.
    """

    def __init__(
        self, transport: Transport, policy: Any, *, scheme: WeightScheme, version: int, acts: bool = False
    ) -> None:
        self._transport, self._policy, self._scheme, self._acts = transport, policy, scheme, acts
        self._layout: Layout | None = None
        self._last: Tensor | None = None  # the bytes sent last: nobody writes over them before the next are there
        self._for_some: dict[int, int] = {}  # worker -> the newest version, where it was not meant for all
        self._for_all = version
        self._batches: int | None = None  # handed out since the last one; None: nothing was sent yet
        self.version = version
        self.has_policy = policy is not None and any(scheme.select(policy).values())

    def meant_for(self, worker: int) -> int:
        """The newest version that was sent to this worker; 0: none."""
        return max(self._for_all, self._for_some.get(worker, 0))

    @property
    def meant_for_all(self) -> int:
        """The newest version that was sent to all workers; 0: none."""
        return self._for_all

    @property
    def meant_for_some(self) -> tuple[tuple[int, int], ...]:
        """Workers that were sent a newer one, and which."""
        return tuple(sorted((worker, version) for worker, version in self._for_some.items() if version > self._for_all))

    def select(self, policy: Any) -> dict[str, State]:
        """Which tensors of a policy travel."""
        return self._scheme.select(policy)

    def is_due(self, interval: int) -> bool:
        """Whether the policy is to be sent: after so many batches; 0: never but once.

        Even then somebody must send the first: nobody can act on what was never sent.
        """
        if not self.has_policy:
            return False
        if not interval:
            return self.version == 0
        return self._batches is None or self._batches >= interval

    def count_batch(self) -> None:
        """One more was handed out."""
        if self._batches is not None:
            self._batches += 1

    def go_on_from(self, version: int) -> None:
        """Number on from here, where that is further; the policy is due."""
        if version < self.version:
            log.warning(
                "restored at version %d, while workers have had version %d: weights that are %d versions older go out "
                "as version %d",
                version,
                self.version,
                self.version - version,
                self.version + 1,
            )
        self.version = max(self.version, version)
        self._batches = None

    def pass_on(self, models: Mapping[str, State], version: int) -> int:
        """Load weights that came from elsewhere into the policy, where there is one, and send them on.

        Args:
            models: As in `send`.
            version: What they are called where they come from; so they are called here, if that is newer.

        Raises:
            WeightMismatch: They are laid out differently.
        """
        if self._policy is not None:
            self._load(self._travelling(models))
        return self.send(models, version=version)

    def send(
        self,
        models: Mapping[str, State] | None = None,
        *,
        workers: Collection[int] | None = None,
        version: int = 0,
    ) -> int:
        """Take a snapshot and send it. Returns its version; the work goes on behind the call.

        Args:
            models: The named tensors of each model; what is not named stays as it was sent last. None: the policy.
            workers: Who acts on it; None: all.
            version: What to call it, if that is more than the next number.

        Raises:
            WeightMismatch: It is laid out differently from earlier versions.
            NoWeights: There is nothing to send.
        """
        if models is not None:
            models = self._travelling(models)
        version = max(self.version + 1, version)
        if not self._acts:
            self._hand_over(version, self._whole(models), None if workers is None else frozenset(workers))
        elif models is not None:
            self._load(models)
        elif not self.has_policy:
            raise NoWeights(NOTHING)
        self.version, self._batches = version, 0
        if workers is None:
            self._for_all = version
        else:
            self._for_some |= dict.fromkeys(workers, version)
        return version

    def _hand_over(self, version: int, models: Mapping[str, State], workers: frozenset[int] | None) -> None:
        """A snapshot, to the transport."""
        if self._layout is None:
            self._layout = self._scheme.layout(models)
        for snapshot in self._transport.spent():
            self._layout.release(snapshot)
        if isinstance(self._transport, Lends):
            lent = self._transport.lend(self._layout.parameters, self._layout.total_bytes)
            if lent is not None:
                self._layout.release(lent)
        snapshot = self._layout.snapshot(models)
        if len(models) > 1:
            self._last = snapshot.data
        self._transport.send_weights(version, snapshot, workers=workers)

    def _travelling(self, models: Mapping[str, State]) -> Mapping[str, State]:
        """Without what stays where it is, as the policy here tells: all of a `state_dict` may be named."""
        if self._policy is None:
            return models
        known, selected = models_of(self._policy), self._scheme.select(self._policy)
        stays = {name: state.keys() - selected.get(name, {}).keys() for name, state in known.items()}
        return {
            name: {key: value for key, value in state.items() if key not in stays.get(name, ())}
            for name, state in models.items()
        }

    def _whole(self, models: Mapping[str, State] | None) -> Mapping[str, State]:
        if self._last is not None and self._layout is not None and models is not None:
            known: Mapping[str, State] = self._layout.states(self._last)
        elif self._policy is not None:
            known = self._scheme.select(self._policy)
        elif models is None:
            raise NoWeights("no weights to send: pass a policy or weights, or connect with `policy=`")
        else:
            known = {}
        if models is None:
            models = known
        elif len(known) > 1:
            for name in models:
                if name not in known:
                    raise WeightMismatch(f"there is no model {name!r}; the policy's are {', '.join(known)}")
            models = {**known, **models}
        if not any(models.values()):
            raise NoWeights(NOTHING)
        return models

    def _load(self, models: Mapping[str, State]) -> None:
        """Into the policy that acts, unless that is where they come from."""
        mine = self._scheme.select(self._policy)
        for name, state in models.items():
            if name not in mine:
                raise WeightMismatch(f"there is no model {name!r}; the policy's are {', '.join(mine)}")
            layout = WeightLayout({name: mine[name]})
            if any(mine[name].get(key) is not value for key, value in state.items()):
                snapshot = layout.snapshot({name: state})
                layout.load(snapshot.data, {name: mine[name]})
