"""The job as a type: `CollectorJob`, as users write it in YAML. The CRD is generated from it.

Attributes are snake_case, YAML is camelCase. The parts are defined in `env`, `policy`, `collection`, `placement`,
`metadata` and `status`; import them from here.
"""

from typing import Final, Literal

from pydantic import Field

from rollfleet_api.collection import CatResults as CatResults
from rollfleet_api.collection import CollectSpec as CollectSpec
from rollfleet_api.collection import Compression as Compression
from rollfleet_api.collection import DeliverySpec as DeliverySpec
from rollfleet_api.collection import Exploration as Exploration
from rollfleet_api.collection import Mode as Mode
from rollfleet_api.collection import Precision as Precision
from rollfleet_api.collection import StragglersSpec as StragglersSpec
from rollfleet_api.collection import WeightsSpec as WeightsSpec
from rollfleet_api.env import Backend as Backend
from rollfleet_api.env import EnvSpec as EnvSpec
from rollfleet_api.env import Vectorization as Vectorization
from rollfleet_api.env import WrapperSpec as WrapperSpec
from rollfleet_api.env_servers import EnvServersSpec as EnvServersSpec
from rollfleet_api.evaluation import EvaluationSpec as EvaluationSpec
from rollfleet_api.fields import FreeForm, Model, Rule
from rollfleet_api.metadata import DNS_LABEL_PATTERN, MAX_NAME_LENGTH, NAME_TOO_LONG
from rollfleet_api.metadata import Metadata as Metadata
from rollfleet_api.permissions import Role
from rollfleet_api.placement import MAX_WORKERS as MAX_WORKERS
from rollfleet_api.placement import AutoscaleSpec as AutoscaleSpec
from rollfleet_api.placement import FailureSpec as FailureSpec
from rollfleet_api.placement import GpuSpec as GpuSpec
from rollfleet_api.placement import Image
from rollfleet_api.placement import LearnerSpec as LearnerSpec
from rollfleet_api.placement import NatsSpec as NatsSpec
from rollfleet_api.placement import ResourcesSpec as ResourcesSpec
from rollfleet_api.placement import SourceSpec as SourceSpec
from rollfleet_api.policy import Activation as Activation
from rollfleet_api.policy import MlpSpec as MlpSpec
from rollfleet_api.policy import PolicySpec as PolicySpec
from rollfleet_api.policy import RandomSpec as RandomSpec
from rollfleet_api.spelling import YAML
from rollfleet_api.status import CollectorJobStatus as CollectorJobStatus

API_VERSION: Final = "rollfleet.dev/v1alpha1"
KIND: Final = "CollectorJob"

SPARE_LAG: Final = 2
"""Versions added to the default `maxLag` besides two for each worker: broadcasts take time."""

_FAILING = "has(self.failure.environments)"
_TIMES = "self.failure.environments"
_RECREATE = "`rollfleet fetch` kept files first, then delete and recreate the job"
_FRAMES = "self.collect.framesPerBatch"
_SHARED = "self.mode == 'Sync' && !has(self.autoscale) && self.collect.trajsPerBatch == 0"
_ENVS = f"(self.env.numEnvs * ({_SHARED} && self.workers > 0 ? self.workers : 1))"
_LESS = f"({_FRAMES} < {_ENVS} ? {_ENVS} : {_FRAMES} / {_ENVS} * {_ENVS})"
_UNEVEN: Final = (
    "%d is not a multiple of %d, the environments of a batch "
    "({env.numEnvs}, in mode Sync times {workers}); write %d or %d"
)
_UNEVEN_CEL = f"'{YAML.message(_UNEVEN)}'.format([{_FRAMES}, {_ENVS}, {_LESS}, {_LESS} + {_ENVS}])"


class CollectorJobSpec(Model):
    """The desired state of a job."""

    RULES = (
        Rule(
            cel=f"{_FRAMES} % self.env.numEnvs == 0",
            message="must be a multiple of {env.numEnvs}",
            holds=lambda spec: spec.collect.frames_per_batch % spec.env.num_envs == 0,
            field="collect.framesPerBatch",
            message_cel=_UNEVEN_CEL,
            words=lambda spec: spec.uneven,
        ),
        Rule(
            cel="self.mode == 'Sync' || self.stragglers.threshold >= 1.0",
            message="only mode `Sync` waits for all workers; remove `stragglers`, or write {mode:Sync}",
            holds=lambda spec: spec.mode is Mode.SYNC or spec.stragglers.threshold >= 1,
            field="stragglers.threshold",
        ),
        Rule(
            cel="!has(self.evaluation) || !has(self.policy.random)",
            message="policy `random` has no weights, whose versions could be evaluated; remove {evaluation}",
            holds=lambda spec: spec.evaluation is None or spec.policy.random is None,
            field="evaluation",
        ),
        Rule(
            cel=f"!{_FAILING} || self.env.backend == 'Gymnasium' && self.env.vectorization != 'Native'",
            message="only single environments of Gymnasium can be replaced; remove {failure.environments}, or write "
            "{env.vectorization:Async}",
            holds=lambda spec: (
                spec.failure.environments is None
                or (spec.env.backend is Backend.GYMNASIUM and spec.env.vectorization is not Vectorization.NATIVE)
            ),
            field="failure.environments",
        ),
        Rule(
            cel=f"!{_FAILING} || self.env.vectorization == 'Async' || !has({_TIMES}.stepTimeoutSeconds) && "
            f"!has({_TIMES}.resetTimeoutSeconds)",
            message="only an environment in a process can be ended while it hangs; write {env.vectorization:Async}, or "
            "remove the time limits of a step and of a reset",
            holds=lambda spec: (
                spec.failure.environments is None
                or spec.env.vectorization is Vectorization.ASYNC
                or spec.failure.environments.step_timeout_seconds
                is spec.failure.environments.reset_timeout_seconds
                is None
            ),
            field="failure.environments",
        ),
        Rule(
            cel=f"!{_FAILING} || self.env.processes == 0 || self.env.processes == self.env.numEnvs",
            message="an environment that can be replaced has a process of its own; remove {env.processes}",
            holds=lambda spec: spec.failure.environments is None or spec.env.processes in (0, spec.env.num_envs),
            field="failure.environments",
        ),
        Rule(
            cel=f"!{_FAILING} || self.collect.resetWhenDone",
            message="an environment that is replaced waits for no other; remove {collect.resetWhenDone}",
            holds=lambda spec: spec.failure.environments is None or spec.collect.reset_when_done,
            field="failure.environments",
        ),
        Rule(
            cel="self.workers > 0 || has(self.env.servers)",
            message="must be at least 1; 0 is for a job with {env.servers} and a program that steps the environments",
            holds=lambda spec: spec.workers > 0 or spec.env.servers is not None,
            field="workers",
        ),
        Rule(
            cel="self.workers > 0 || !has(self.autoscale)",
            message="a job without workers has none to scale; remove {autoscale}, or write 1 or more {workers}",
            holds=lambda spec: spec.workers > 0 or spec.autoscale is None,
            field="autoscale",
        ),
        Rule(
            cel="self.workers > 0 || !has(self.evaluation)",
            message="a job without workers has no policy to evaluate; remove {evaluation}, or write 1 or more "
            "{workers}",
            holds=lambda spec: spec.workers > 0 or spec.evaluation is None,
            field="evaluation",
        ),
        # A rule with `oldSelf` is about changes: it does not apply when a job is created.
        Rule(
            cel="self.mode == oldSelf.mode",
            message=f"the mode of a job is fixed: its learner waits for batches in one way; {_RECREATE}",
            field="mode",
        ),
        Rule(
            cel="(self.workers > 0) == (oldSelf.workers > 0)",
            message=f"a job has workers, or none, from its start to its end; {_RECREATE}",
            field="workers",
        ),
    )
    KEEPS_WORKERS = (
        "workers",
        "suspend",
        "delivery",
        "learner",
        "evaluation",
        "nats",
        "ttl_seconds_after_finished",
        "autoscale",
    )
    RESTARTS_LEARNER = ("learner", "mode", "env", "policy", "source")

    workers: int = Field(
        default=1,
        ge=0,
        le=MAX_WORKERS,
        description="Number of workers. With `autoscale` it is the number at the start. 0: the environments of "
        "`env.servers` are for a program that steps them by itself (`rollfleet.make_vec`).",
    )
    autoscale: AutoscaleSpec | None = Field(
        default=None, description="Let the operator set `workers`. Default: off; `workers` stays as you set it."
    )
    mode: Mode = Field(
        default=Mode.ASYNC,
        strict=False,
        description="How batches are gathered. `Sync`: each batch has a fragment of every worker, all collected with "
        "the same version of the weights (not with `trajsPerBatch`), as PPO expects. `Async`: each batch comes from "
        "one worker, as soon as it is complete; its weights may be old (`weights.maxLag`).",
    )
    env: EnvSpec = Field(description="The environments of each worker.", examples=["{id: CartPole-v1}"])
    policy: PolicySpec = Field(description="The policy that workers run.", examples=["{mlp: {}}"])
    source: SourceSpec | None = Field(default=None, description="Python files for the workers.")
    collect: CollectSpec = Field(
        description="The amount of data, and how it is collected.", examples=["{framesPerBatch: 2048}"]
    )
    weights: WeightsSpec = Field(default=WeightsSpec(), description="How weights reach the workers.")
    delivery: DeliverySpec = Field(default=DeliverySpec(), description="How batches reach the learner.")
    stragglers: StragglersSpec = Field(
        default=StragglersSpec(), description="How mode `Sync` treats workers that are slower than the others."
    )
    evaluation: EvaluationSpec | None = Field(
        default=None, description="Whole episodes on some versions of the weights. Default: no evaluation."
    )
    resources: ResourcesSpec = Field(default=ResourcesSpec(), description="The resources of each worker.")
    image: Image | None = Field(
        default=None, description="The container image of workers and learner. Default: the chart's worker image."
    )
    template: FreeForm = Field(
        default={},
        description="Changes to the workers' pod template: tolerations, node selectors, resource claims, volumes.",
    )
    learner: LearnerSpec | None = Field(
        default=None, description="The trainer as a pod of the job. Default: the trainer runs elsewhere."
    )
    nats: NatsSpec = Field(default=NatsSpec(), description="The NATS server of the job on a cluster.")
    suspend: bool = Field(default=False, description="Stop the workers and free their resources, until it is false.")
    failure: FailureSpec = Field(
        default=FailureSpec(), description="How workers that fail, hang or fall silent are treated."
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=2**31 - 1,
        description="Delete the job this many seconds after its end, with success or not. Default: never.",
    )

    @property
    def uneven(self) -> str:
        """Why the environments of all workers cannot share `collect.frames_per_batch`, as a rule's message.

        Empty: they can.
        """
        frames, trajectories = self.collect.frames_per_batch, self.collect.trajs_per_batch
        shared = self.mode is Mode.SYNC and self.autoscale is None and not trajectories
        envs = self.env.num_envs * (max(self.workers, 1) if shared else 1)
        less = frames - frames % envs or envs
        return _UNEVEN % (frames, envs, less, less + envs) if frames % envs else ""

    @property
    def steps_per_batch(self) -> int:
        """T, the steps of each environment for one batch when all workers take part."""
        return self.steps_among(self.workers)

    @property
    def weights_max_lag(self) -> int:
        """`weights.max_lag`, or its default: the most versions between the newest weights and those of a batch."""
        return self.max_lag_among(self.workers)

    def size(self, role: Role) -> int:
        """Return the number of processes of a role that has an index for each; 0: the job has none."""
        evaluation, servers = self.evaluation, self.env.servers
        sizes = {
            Role.WORKER: self.workers,
            Role.EVALUATION: evaluation.workers if evaluation else 0,
            Role.ENV_SERVER: max(self.workers, 1) * servers.replicas if servers else 0,
        }
        return sizes.get(role, 0)

    def steps_among(self, workers: int) -> int:
        """Return T for a number of workers.

        In mode Sync the workers share `collect.frames_per_batch`, rounded up; in mode Async it is one worker's.
        """
        frames = self.collect.frames_per_batch
        if self.mode is Mode.SYNC:
            return -(-frames // (max(workers, 1) * self.env.num_envs))
        return frames // self.env.num_envs

    def max_lag_among(self, workers: int) -> int:
        """Return the most versions that a batch may be behind, for a number of workers."""
        return 2 * workers + SPARE_LAG if self.weights.max_lag is None else self.weights.max_lag


class CollectorJob(Model):
    """A set of workers that collect reinforcement-learning data for one learner."""

    RULES = (
        # In Python `Metadata` checks the name.
        Rule(cel=f"size(self.metadata.name) <= {MAX_NAME_LENGTH}", message=f"the name is too long: {NAME_TOO_LONG}"),
        Rule(
            cel=f"self.metadata.name.matches(r'{DNS_LABEL_PATTERN}')",
            message="the name may only hold a-z, 0-9 and `-`, and must begin and end with a letter or digit",
        ),
        # At its creation alone: `workers` may change later, and T is rounded up then. `parse_job` checks it in Python.
        Rule(
            cel=f"has(self.status) || {_FRAMES} % {_ENVS} == 0".replace("self.", "self.spec.").replace(
                "self.spec.status", "self.status"
            ),
            message="must be a multiple of the environments of a batch: `env.numEnvs`, in mode Sync times `workers`",
            field="spec.collect.framesPerBatch",
            message_cel=_UNEVEN_CEL.replace("self.", "self.spec."),
        ),
        Rule(
            cel="!has(oldSelf.status) || !has(oldSelf.status.phase) || oldSelf.status.phase != 'Complete' "
            "|| self.spec == oldSelf.spec",
            message=f"the job is complete and cannot be changed; {_RECREATE}",
        ),
    )

    api_version: Literal["rollfleet.dev/v1alpha1"] = Field(default=API_VERSION, description="`rollfleet.dev/v1alpha1`.")
    kind: Literal["CollectorJob"] = Field(default=KIND, description="`CollectorJob`.")
    metadata: Metadata = Field(description="The job's name, labels and annotations.", examples=["{name: cartpole}"])
    spec: CollectorJobSpec = Field(description="The desired state of the job.")
    status: CollectorJobStatus | None = Field(
        default=None, description="The observed state of the job, written by the operator."
    )

    @property
    def key(self) -> str:
        """`namespace/name`, unique in a cluster."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def has_ended(self) -> bool:
        """Whether the status has an end of this spec."""
        return self.status is not None and self.status.has_ended(self.metadata.generation)

    def dump(self) -> dict[str, object]:
        """Return the job as plain data for YAML or JSON, in camelCase and without fields that have their defaults.

        `CollectorJob.model_validate(job.dump()) == job` holds for every job.
        """
        written = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        return {"apiVersion": self.api_version, "kind": self.kind, **written}
