"""The public collector: a batch iterator that starts its own workers, or takes those of a transport."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

from rollfleet.arguments import seconds
from rollfleet.cluster.settings import Cluster
from rollfleet.learner.construction import construct, start
from rollfleet.learner.iterator import BatchIterator
from rollfleet.learner.keywords import Keywords, hints_names, implemented_by
from rollfleet.learner.next_batch import RAISED_STOP
from rollfleet.learner.options import Extends, LearnerOptions
from rollfleet.learner.worker_calls import call_workers
from rollfleet.system.devices import Device
from rollfleet.transports.learner_side import Transport
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Evaluation

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rollfleet.schemes import WeightScheme


class Collector(BatchIterator):
    """Iterates over batches of frames, and sends the policy's weights to the workers that collect them.

    `Collector(env, policy, ...)` collects in this process, with `workers=` in processes of this machine, and with
    `cluster=` in pods of a cluster. `rollfleet.connect(job, policy)` returns a collector whose workers run anywhere.

    In mode sync, an iteration opens a round: all workers collect on the same version of the weights, and the iterator
    yields their fragments together, `[workers * num_envs, T]`, in the workers' order. In mode async, the iterator
    yields each worker's batch as it comes, `[num_envs, T]`, and collection continues meanwhile.

    Leaving the `with` block completes the job: its workers leave. Over NATS, an error that leaves the block does not
    complete the job: the workers wait, and the next learner continues. Use a collector from one thread.

    After an exception in an iteration, such as Ctrl-C or an error of `postproc`, the round or batch under way is
    dropped and counted (`Stats.interrupted`), and environments begin new episodes. Ctrl-C is raised in waits and in
    environments' steps, else at the end of a call.

    Example:
        >>> import rollfleet
        >>> with rollfleet.Collector("CartPole-v1", num_envs=2, frames_per_batch=16, total_frames=32) as collector:
        ...     for batch in collector:
        ...         print(tuple(batch.shape), collector.frames)
        (2, 8) 16
        (2, 8) 32
    """

    _one_policy = False  # see `construct`

    def _start(self, env: Any, policy: Any = None, *, keywords: Keywords) -> None:
        try:
            construction = construct(env, policy, keywords, one_policy=self._one_policy)
            transport, job = start(construction, keywords)
            acts = construction.acts_with_the_learners_policy
            try:
                super().__init__(transport, job, policy, construction.options, acts=acts)
            except BaseException:
                transport.close()
                raise
        except StopIteration as error:  # it would end a loop of the caller's (PEP 479)
            raise RuntimeError(RAISED_STOP) from error

    @implemented_by(_start, caller="rollfleet.Collector")
    def __init__(
        self,
        env: Any,
        policy: Any = None,
        *,
        # How much
        frames_per_batch: int,
        total_frames: int | None = 0,
        init_random_frames: int | None = 0,
        max_frames_per_traj: int | None = 0,
        trajs_per_batch: int | None = 0,
        traj_format: str = "padded",
        # Environments
        num_envs: int = 1,
        env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        vectorization: str = "sync",
        env_processes: int = 0,
        backend: str = "gymnasium",
        seed: int = 0,
        reset_at_each_iter: bool = False,
        reset_when_done: bool = True,
        # Functions on workers
        init_fn: Callable[[], object] | str | None = None,
        pre_collect_hook: Callable[[], object] | str | None = None,
        post_collect_hook: "Callable[[TensorDict], object] | str | None" = None,
        # The policy
        policy_factory: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
        exploration: str = "random",
        # Weights
        weights_interval: int = 1,
        max_lag: int | None = None,
        precision: str = "float32",
        weight_scheme: "WeightScheme | None" = None,
        # Batches
        set_truncated: bool = False,
        step_count: bool = False,
        is_init: bool = False,
        info_keys: Sequence[str] = (),
        cat_results: str | None = "envs",
        split_trajs: bool | None = False,
        postproc: "Callable[[TensorDict], Any] | None" = None,
        replay_buffer: Extends | None = None,
        acknowledge: str = "auto",
        # Devices
        device: Device | None = None,
        policy_device: Device | Sequence[Device] | None = None,
        env_device: Device | Sequence[Device] | None = None,
        no_cuda_sync: bool | None = False,
        # Worker processes
        workers: int | None = 0,
        mode: str = "sync",
        stragglers_threshold: float | None = 1.0,
        max_batches_ahead: int = 1,
        start_method: str = "spawn",
        max_restarts_per_worker: int = 0,
        suspect_after_s: int = 10,
        quiet: bool = True,
        # Evaluation
        evaluation: Mapping[str, object] | None = None,
        # A Kubernetes cluster
        cluster: Cluster | None = None,
    ) -> None:
        """Collect in this process, in processes of this machine, or in pods of a Kubernetes cluster.

        A list of environments, policies or devices has one entry for each worker. TorchRL's names are in brackets.

        Args:
            env: A Gymnasium id, a function that makes an environment or a whole `VectorEnv`, a `VectorEnv`, or a list
                of these. (`create_env_fn`)
            policy: A callable from observations `[num_envs, ...]` to actions, or to a dict or TensorDict with `action`
                and other keys of the batch. A TensorDictModule reads and writes by its keys. None: random actions.

            frames_per_batch: Frames of a batch: of all workers together (sync) or of one worker (async). Required. A
                multiple of `num_envs`.
            total_frames: Frames after which the iterator ends; 0, -1 or None: no end.
            init_random_frames: Frames at the beginning, of all workers together, with random actions.
            max_frames_per_traj: Frames after which an episode is truncated; 0, -1 or None: no limit.
            trajs_per_batch: Whole trajectories of a batch from each worker, one in a row, padded, with a mask; 0:
                batches have `frames_per_batch` frames.
            traj_format: The layout of these: "padded", or "cat": `[frames]`, one after the other, without a mask.

            num_envs: Environments of each worker.
            env_kwargs: Keyword arguments of each environment, or a list of these. (`create_env_kwargs`)
            vectorization: How a worker steps its environments: "sync" one after the other in its process, "async" in
                other processes, "native" by the environment's own vector implementation.
            env_processes: Processes of `vectorization="async"`; 0: one for each environment.
            backend: "gymnasium", or "envpool": `env` is then an id of EnvPool.
            seed: Seeds environments, action spaces and torch's generators, differently for each worker.
            reset_at_each_iter: Begin new episodes in each batch.
            reset_when_done: Begin a new episode when one ends. False: the rest of the row is padding, with a mask.

            init_fn: A function that each worker calls before it makes its environments, or its `module:callable`.
            pre_collect_hook: A function that each worker calls before each batch, or its `module:callable`.
            post_collect_hook: A function that each worker calls with each batch `[num_envs, T]` that it has collected,
                or its `module:callable`.

            policy_factory: A function `factory(observation_space, action_space)` or `factory()` that makes the policy
                on the worker, its `module:callable`, or a list of these. Beside it, `policy` has the weights.
            exploration: How actions are taken from the policy's distribution: "random", "mode", "mean",
                "deterministic". (`exploration_type`)

            weights_interval: Batches after which the iterator broadcasts the policy's weights; 0 or -1: only the first
                time, and when you call `update_policy_weights_`. (`max_weight_update_interval`)
            max_lag: Versions that a batch of mode async may be behind the newest; the iterator drops older ones. None:
                `2 * workers + 2`.
            precision: Dtype of weights on the wire: "float32", or "bfloat16" for half the bytes.
            weight_scheme: Which weights travel, and in which form (see `rollfleet.schemes`). None: all of them.

            set_truncated: Mark the last frame of a batch as truncated if its episode continues.
            step_count: Put `step_count` into the batch: frames since the reset. (`StepCounter`)
            is_init: Put `is_init` into the batch: whether a frame is the first of its episode. (`InitTracker`)
            info_keys: Keys of the environments' infos to put into the batch: `("next", "info", key)`, float64, NaN
                where an environment did not report it. (`default_info_dict_reader`)
            cat_results: How workers' fragments are joined in mode sync: along "envs", along "time", or as a "stack"
                `[workers, num_envs, T]`.
            split_trajs: Yield `split_trajectories(batch)`.
            postproc: A function of each batch. The iterator yields its result, which is not None.
            replay_buffer: A buffer whose `extend(frames)` gets the frames `[frames]` of each batch. The iterator then
                yields None.
            acknowledge: "auto": a batch is acknowledged once it is yielded. "manual": once you call `ack()`.

            device: The device of batches. None: they stay where they are, in CPU memory. (`storing_device`)
            policy_device: The device of the workers' policy, or a list of devices. None: it stays on its own.
            env_device: The device of environments that make tensors, or a list of devices. None: they make arrays.
            no_cuda_sync: Do not wait for copies to `device` and `env_device`.

            workers: Worker processes; 0: collect in this process and thread.
            mode: "sync": one batch of all workers together. "async": one batch of one worker, as it comes.
            stragglers_threshold: The fraction of workers that closes a round of mode sync; the others stop at their
                next step, and padding fills their rows. (`preemptive_threshold`)
            max_batches_ahead: Batches that a worker of mode async may collect before the learner takes the first.
            start_method: "spawn", or "fork".
            max_restarts_per_worker: Restarts of one worker before the collector raises its error.
            suspect_after_s: Seconds in one environment step after which a worker is reported as stuck.
            quiet: Hide the workers' Python warnings. (`filter_warnings_subprocess`)

            evaluation: Run whole episodes on some versions, for `evaluations`, such as `{"every": 10, "episodes": 20}`:
                the fields of a job's `evaluation`. With worker processes, in processes of their own, else between two
                batches. None: no evaluation.

            cluster: Run the workers as pods, with the resources that it names. Functions and classes of your modules
                travel as source. A policy's class does, too, if the policy has attributes of the names of its
                constructor's arguments; else pass `policy_factory` beside `policy`.

        Raises:
            JobInvalid: A value cannot be used, or contradicts another. The message names the keyword.
            EnvironmentInvalid: An environment cannot be made, or has a space that is not supported.
            PolicyInvalid: A policy cannot be made, or does not fit the environment.
            ClusterError: The cluster refuses the job, its workers do not start, or it cannot be reached.
            TypeError: A keyword is unknown. The message has the one to write.
        """

    def call(
        self, worker_ids: int | Collection[int] | None, method: str, *args: Any, timeout_s: float = 60.0, **kwargs: Any
    ) -> dict[int, Any]:
        """Call a method of workers' environments or of their policy, between two batches of each.

        Arguments and results are numbers, text, lists, dicts and arrays; tensors come back as arrays.

        Args:
            worker_ids: The workers. None: all.
            method: `"env.<name>"`: of each environment, also of a wrapper, or an attribute. `"policy.<name>"`.
            *args: Positional arguments of the method.
            timeout_s: Seconds to wait for the workers, which may finish a batch first.
            **kwargs: Keyword arguments of the method.

        Returns:
            The result of each worker. For environments a list, with one entry for each.

        Raises:
            CallFailed: The method raised. The workers go on.
            JobEnded: The job is complete, or the collector was shut down.
            Timeout: A worker did not answer; the message names it.
            JobInvalid: The worker is unknown, or an argument cannot be sent.

        Example:
            >>> import rollfleet
            >>> with rollfleet.Collector("CartPole-v1", num_envs=2, frames_per_batch=16) as collector:
            ...     collector.call(None, "env.gravity")
            {0: [9.8, 9.8]}
        """
        timeout_s = seconds(timeout_s, "timeout_s")
        with self._calls.fill.held() if self._calls.fill else nullcontext(), self._calls.acting(self._director.phase):
            workers = self._membership.these(worker_ids)
            return call_workers(self._gatherer, self._transport, workers, method, (args, kwargs), timeout_s=timeout_s)

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The results of `evaluation` by version: of the newest 1,000 versions that have one.

        Example:
            >>> import gymnasium, rollfleet
            >>> env = gymnasium.make("CartPole-v1")
            >>> policy = rollfleet.ActorCritic(env.observation_space, env.action_space)
            >>> keywords = {"frames_per_batch": 8, "total_frames": 32, "evaluation": {"every": 2, "episodes": 3}}
            >>> with rollfleet.Collector("CartPole-v1", policy, **keywords) as collector:
            ...     for batch in collector:
            ...         pass  # train
            ...     print([(each.version, each.episodes) for each in collector.evaluations])
            [(2, 3), (4, 3)]
        """
        self._calls.check()
        return self._transport.evaluations

    @classmethod
    @hints_names(caller="rollfleet.Collector.over")
    def over(
        cls,
        transport: Transport,
        job: CollectorJob,
        policy: Any = None,
        *,
        split_trajs: bool | None = False,
        postproc: "Callable[[TensorDict], Any] | None" = None,
        replay_buffer: Extends | None = None,
        weight_scheme: "WeightScheme | None" = None,
        acknowledge: str = "auto",
    ) -> Self:
        """Make a collector over an open transport. The collector closes it.

        Args:
            transport: The learner's side of a transport.
            job: The job that its workers run.
            policy: The policy that `weights.interval` broadcasts; None: no policy.
            split_trajs: Yield `split_trajectories(batch)`.
            postproc: A function of each batch. The iterator yields its result.
            replay_buffer: A buffer whose `extend(frames)` gets the frames `[frames]` of each batch. The iterator then
                yields None.
            weight_scheme: Which weights travel, and in which form. None: the scheme that the job names.
            acknowledge: "auto": a batch is acknowledged once it is yielded. "manual": once you call `ack()`.

        Raises:
            JobInvalid: A value cannot be used. The message names the keyword.
        """
        options = LearnerOptions(
            split_trajs=split_trajs,
            postproc=postproc,
            replay_buffer=replay_buffer,
            weight_scheme=weight_scheme,
            acknowledge=acknowledge,
        )
        collector = cls.__new__(cls)
        BatchIterator.__init__(collector, transport, job, policy, options)
        return collector
