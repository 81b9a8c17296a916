"""Numbers the versions of a learner's weights, and hands them to the transport, which copies them."""

import logging
import math
import threading
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from rollfleet.errors import NoWeights, PolicyInvalid, WeightMismatch
from rollfleet.schemes import Layout, WeightScheme
from rollfleet.transports.learner_side import Transport
from rollfleet.weights.layout import State, WeightLayout
from rollfleet.weights.models import models_of, nan_in
from rollfleet.weights.modules import complete, flags_of, unprefixed
from rollfleet_api.collection import NonFinite
from rollfleet_api.transfers import Flags
from rollfleet_api.versions import count_of, version_of

log = logging.getLogger(__name__)

NOTHING = "the policy has no parameters or buffers to send"


class Broadcaster:
    """Sends versions of one policy; on ranks other than 0, follows the versions that rank 0 sends.

    Args:
        transport: The learner's side of a transport.
        policy: The policy that is sent by default; None: no policy.
        on_nan: The answer to NaN in weights.
        scheme: Which weights travel, and in which form.
        acts: Whether `policy` is the very object that collects: other weights are loaded into it, and none are sent.

    Attributes:
        non_finite: The number of versions that had NaN.
        version: The count of the newest version that was sent; 0: none yet.
        has_policy: Whether there is a policy with weights.
        lock: Held while versions are numbered and control is sent: a background fill does so on its own thread.

    Raises:
        WeightMismatch: `policy` has weights in a form that cannot be sent.
    """

    def __init__(
        self, transport: Transport, policy: Any, on_nan: NonFinite, *, scheme: WeightScheme, acts: bool = False
    ) -> None:
        self._transport, self._policy, self._scheme, self._acts = transport, policy, scheme, acts
        self._on_nan, self.non_finite = on_nan, 0
        self._leads, resumed = transport.rank.leads, transport.resumed
        self._layout: Layout | None = None
        self._last: Tensor | None = None  # the bytes sent last; of a policy of several models
        self._targets: dict[int | None, int] = {None: resumed.target}  # by worker; None: of all others
        self._session, self.version = resumed.session, resumed.version
        self._first = 0  # the first version of this learner; 0: none yet
        self._due = not resumed.target  # whatever the interval is
        self._batches = math.inf  # yielded since this learner's last version for all workers
        self.lock = threading.RLock()
        self.has_policy = policy is not None and any(scheme.select(policy).values())
        self._flags: Flags = ()  # of the next version; empty until a module is in eval mode: a factory's own stay
        self._follow_flags(policy)

    def target(self, worker: int | None = None) -> int:
        """Return the newest version that was sent to this worker, None: to all workers; 0: none."""
        return self._targets.get(worker, self._targets[None])

    def has_sent(self, worker: int) -> bool:
        """Whether this learner, and none before it, has sent the newest version of this worker."""
        return 0 < self._first <= self.target(worker)

    @property
    def single_targets(self) -> tuple[tuple[int, int], ...]:
        """Workers that have a newer version than all others, and that version."""
        return tuple(sorted((worker, version) for worker, version in self._targets.items() if worker is not None))

    def follow(self) -> int:
        """On ranks other than 0, take over the versions that rank 0 has sent. Returns the newest one's count."""
        if (control := self._transport.leader_control) is not None:
            self._targets = {None: control.version, **dict(control.some)}
            self.version = count_of(max(self._targets.values()))
        return self.version

    def select(self, policy: Any) -> dict[str, State]:
        """Return the tensors of a policy that travel, by model and name."""
        return self._scheme.select(policy)

    def is_due(self, interval: int) -> bool:
        """Whether the policy is due: after this many batches; once for any number, 0 included.

        That is before all workers have a version, and after `continue_from`.
        """
        return self.has_policy and self._leads and (self._due or 0 < interval <= self._batches)

    def count_batch(self) -> None:
        """Count a batch that was yielded."""
        self._batches += 1

    def lag(self, worker: int, version: int) -> float:
        """Return how many versions a worker's batch with this one is behind; infinite: it has the count of another.

        That is one of an earlier learner, with the count of a version of this one. Without any, this one counts on.
        """
        with self.lock:
            self.version = max(self.version, count_of(version))
            if version < self._first and count_of(version) >= count_of(self._first):
                return math.inf
            return count_of(self.target(worker)) - count_of(version) if version else 0

    def continue_from(self, version: int) -> None:
        """Continue after this version, if it is newer than the present one. The policy is due."""
        if not self._leads:
            return
        if version < self.version:
            log.warning(
                "restored version %d, but workers have had version %d already: weights that are %d versions older are "
                "sent as version %d",
                version,
                self.version,
                self.version - version,
                self.version + 1,
            )
        self.version, self._due = max(self.version, version), True

    def send(
        self,
        models: Mapping[str, State] | None = None,
        *,
        workers: Collection[int] | None = None,
        source: Any = None,
    ) -> int:
        """Send a copy of the weights. Returns the count of its version at once, while the transport still sends.

        Ranks other than 0 send nothing, and return the newest version that rank 0 has sent.

        Args:
            models: The named tensors of each model. Other models keep the weights sent last. None: the policy.
            workers: The workers that get it. None: all. Before any has gone to all, the policy does.
            source: The policy whose `training` flags are sent; without modules: the collector's.

        Raises:
            WeightMismatch: Names, shapes or dtypes differ from earlier versions.
            NoWeights: There are no weights to send.
        """
        if not self._leads:
            return self.follow()
        if models is not None:
            models = self._travelling(models)
            if not any(models.values()):
                raise NoWeights(NOTHING)
        with self.lock:
            if workers is not None and self._due and self.has_policy:
                self.send()
            self._follow_flags(source)
            return self._send(models, workers)

    def _send(self, models: Mapping[str, State] | None, workers: Collection[int] | None) -> int:
        version = version_of(self._session, self.version + 1)
        if not self._acts:
            models = self._whole(models)
        if self._on_nan is not NonFinite.IGNORE:
            acting = {"policy": dict(self._policy.named_parameters())} if self._acts and models is None else {}
            self._check(models or acting)
        if not self._acts and models is not None:
            self._hand_over(version, models, None if workers is None else frozenset(workers))
        elif models is not None:
            self._load(models)
        elif not self.has_policy:
            raise NoWeights(NOTHING)
        self.version, self._first = count_of(version), self._first or version
        if workers is None:
            self._targets, self._due, self._batches = {None: version}, False, 0
        else:
            self._targets |= dict.fromkeys(workers, version)
        return self.version

    def _hand_over(self, version: int, models: Mapping[str, State], workers: frozenset[int] | None) -> None:
        layout, last = self._layout or self._scheme.layout(models), self._last
        layout.flags = self._flags
        if len(models) > 1:
            last = layout.snapshot(models).data
            models = layout.states(last)
        self._transport.send_weights(version, layout, models, workers=workers)
        self._layout, self._last = layout, last  # not those of a version that was refused

    def _check(self, models: Mapping[str, State]) -> None:
        """Count a version with NaN. Raise an error, or warn once."""
        if (found := nan_in(models)) is None:
            return
        what = f"version {self.version + 1} of the weights: {found} has NaN"
        if self._on_nan is NonFinite.ERROR:
            raise PolicyInvalid(f"{what}, and `non_finite` is an error; it was not sent")
        if not self.non_finite:
            log.warning("%s: policies act at random, or fail; see the losses and gradients before it", what)
        self.non_finite += 1

    def _travelling(self, models: Mapping[str, State]) -> Mapping[str, State]:
        """Return the tensors that the scheme sends: users may pass a whole `state_dict`."""
        if self._policy is None:
            return models
        known, selected = models_of(self._policy), self._scheme.select(self._policy)
        models = {name: unprefixed(state, known.get(name, {})) for name, state in models.items()}
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
                    raise WeightMismatch(f"the policy has no model {name!r}; it has {', '.join(known)}")
            models = {**known, **models}
        if not any(models.values()):
            raise NoWeights(NOTHING)
        return models

    def _follow_flags(self, source: Any) -> None:
        flags = flags_of(source) or flags_of(self._policy) or self._flags
        self._flags = flags if self._flags or not all(flag for _, flag in flags) else ()

    def _load(self, models: Mapping[str, State]) -> None:
        """Load tensors into the policy, unless they are the policy's own."""
        own = self._scheme.select(self._policy)
        for name, state in models.items():
            if name not in own:
                raise WeightMismatch(f"the policy has no model {name!r}; it has {', '.join(own)}")
            layout = WeightLayout({name: own[name]})
            if any(own[name].get(key) is not value for key, value in state.items()):
                snapshot = layout.snapshot({name: state})
                layout.load(snapshot.data, {name: own[name]})
        complete(self._policy, own, self._flags)
