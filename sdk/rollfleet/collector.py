"""The public collector: a batch iterator that starts its own workers, or takes those of a transport."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

from rollfleet.arguments import seconds, whole_number
from rollfleet.cluster.settings import Cluster
from rollfleet.learner.construction import construct, start
from rollfleet.learner.iterator import BatchIterator
from rollfleet.learner.keywords import hints_names
from rollfleet.learner.next_batch import RAISED_STOP
from rollfleet.learner.options import Extends, Options
from rollfleet.learner.workers import call_workers
from rollfleet.processes.settings import Processes
from rollfleet.system.devices import Device
from rollfleet.transports.learner_side import Transport
from rollfleet.wire.env_settings import pack_settings
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

    @hints_names("rollfleet.Collector")
    def __init__(
        self,
        env: Any,
        policy: Any = None,
        *,
        # How much
        frames_per_batch: int | None = None,
        total_frames: int | None = 0,
        init_random_frames: int | None = 0,
        max_frames_per_traj: int | None = 0,
        trajs_per_batch: int | None = 0,
        traj_format: str = "padded",
        # Environments
        num_envs: int = 1,
        env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        vectorization: str = "sync",
        backend: str = "gymnasium",
        settings_method: str = "",
        seed: int = 0,
        reset_at_each_iter: bool = False,
        reset_when_done: bool = True,
        env_failures: Mapping[str, object] | None = None,
        servers: Mapping[str, object] | None = None,
        # The policy
        policy_factory: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
        exploration: str = "random",
        # Weights
        weights_interval: int | None = 1,
        weight_scheme: "WeightScheme | None" = None,
        # Batches
        set_truncated: bool = False,
        step_count: bool = False,
        is_init: bool = False,
        info_keys: Sequence[str] = (),
        episode_metrics: Sequence[str] = ("*",),
        episode_label: str | None = None,
        non_finite: str = "warn",
        cat_results: str = "envs",
        postproc: "Callable[[TensorDict], Any] | None" = None,
        replay_buffer: Extends | None = None,
        # Devices
        device: Device | None = None,
        policy_device: Device | Sequence[Device] | None = None,
        env_device: Device | Sequence[Device] | None = None,
        no_cuda_sync: bool = False,
        # Worker processes
        workers: int = 0,
        mode: str = "sync",
        processes: Processes | None = None,
        # Evaluation
        evaluation: Mapping[str, object] | None = None,
        # A Kubernetes cluster
        cluster: Cluster | None = None,
    ) -> None:
        """Collect in this process, in processes of this machine, or in pods of a Kubernetes cluster.

        A list of environments, policies or devices has one entry for each worker. TorchRL's keywords are those of the
        collectors in `rollfleet.torchrl`.

        Args:
            env: A Gymnasium id, a function that makes an environment or a whole `VectorEnv`, a `VectorEnv`, or a list
                of these.
            policy: A callable from observations `[num_envs, ...]` to actions, or to a dict or TensorDict with `action`
                and other keys of the batch. A TensorDictModule reads and writes by its keys. None: random actions.

            frames_per_batch: Frames of a batch: of all workers together (sync) or of one worker (async). A multiple of
                `num_envs`, in mode sync times `workers`. Required, unless `trajs_per_batch` is given.
            total_frames: Frames after which the iterator ends; 0, -1 or None: no end.
            init_random_frames: Frames at the beginning, of all workers together, with random actions.
            max_frames_per_traj: Frames after which an episode is truncated; 0, -1 or None: no limit.
            trajs_per_batch: Whole trajectories of a batch from each worker, one in a row, padded, with a mask; 0:
                batches have `frames_per_batch` frames.
            traj_format: The layout of these: "padded", or "cat": `[frames]`, one after the other, without a mask.

            num_envs: Environments of each worker.
            env_kwargs: Keyword arguments of each environment, or a list of these.
            vectorization: How a worker steps its environments: "sync" one after the other in its process, "async" in
                other processes, "native" by the environment's own vector implementation.
            backend: "gymnasium", "envpool" (`env` is then an id of EnvPool), or "torchrl" (`env` makes an `EnvBase`).
            settings_method: The method of an environment that takes the dict of `set_env`, before each reset. A
                `VectorEnv` and a TorchRL environment take it once. Empty: it is `reset(options=...)`.
            seed: Seeds environments, action spaces and torch's generators, differently for each worker.
            reset_at_each_iter: Begin new episodes in each batch.
            reset_when_done: Begin a new episode when one ends. False: the rest of the row is padding, with a mask.
            env_failures: Replace a single environment that raises, hangs or dies, and go on with the others: its
                episode ends at its last complete transition, truncated, with `("collector", "failed")`. The fields of a
                job's `failure.environments`, such as `{"stepTimeoutSeconds": 30}`, or `{}`. None: its worker starts
                again; in this process, the error is raised.
            servers: Put the environments of each worker into pods of their own, with `vectorization="async"` and
                `cluster`. The fields of a job's `env.servers`, such as `{"replicas": 4}`. None: none.

            policy_factory: A function `factory(observation_space, action_space)` or `factory()` that makes the policy
                on the worker, its `module:callable`, or a list of these. Beside it, `policy` has the weights.
            exploration: How actions are taken from the policy's distribution: "random", "mode", "mean",
                "deterministic".

            weights_interval: Batches after which the iterator broadcasts the policy's weights; 0, -1 or None: only the
                first time, and when you call `update_policy_weights_`.
            weight_scheme: Which weights travel, and in which form (see `rollfleet.schemes`). None: all of them.

            set_truncated: Mark the last frame of each row as truncated. The episode continues.
            step_count: Put `step_count` into the batch: frames since the reset.
            is_init: Put `is_init` into the batch: whether a frame is the first of its episode.
            info_keys: Keys of the environments' infos to put into the batch: `("next", "info", key)`, float64, NaN
                where an environment did not report it. `"episode.r"` is a value of a nested dict.
            episode_metrics: Numbers in the last info of an episode that `stats`, trackers and the page show, such as
                `["success", "score/*"]`: the first 32 names.
            episode_label: The key of a text or whole number there, such as "task": returns and metrics are known for
                each of its values, too, as `"success/VALUE"`. None: no label.
            non_finite: The answer to NaN and infinity in observations, rewards and actions, to observations a million
                times outside of their space, and to NaN in weights: "warn" at the first one and count all frames with
                one (`Stats.non_finite`), raise an "error", or "ignore" them.
            cat_results: How workers' fragments are joined in mode sync: along "envs", along "time", or as a "stack"
                `[workers, num_envs, T]`.
            postproc: A function of each batch. The iterator yields its result, which is not None.
            replay_buffer: A buffer whose `extend(frames)` gets the frames `[frames]` of each batch, after `postproc`.
                The iterator then yields None.

            device: The device of batches. None: they stay where they are, in CPU memory.
            policy_device: The device of the workers' policy, or a list of devices. None: it stays on its own.
            env_device: The device of environments that make tensors, or a list of devices. None: they make arrays.
            no_cuda_sync: Do not wait for copies to `device` and `env_device`.

            workers: Worker processes; 0: collect in this process and thread.
            mode: "sync": one batch of all workers together, as PPO expects. "async": one of one worker, as it comes.
            processes: More settings of worker processes, such as `rollfleet.Processes(start_method="fork")`.

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
        options = Options.of(locals(), Collector.__init__)
        try:
            construction = construct(env, policy, options)
            transport, job = start(construction)
            acts = construction.acts_with_the_learners_policy
            try:
                super().__init__(transport, job, policy, options, acts=acts)
            except BaseException:
                transport.close()
                raise
        except StopIteration as error:  # it would end a loop of the caller's (PEP 479)
            raise RuntimeError(RAISED_STOP) from error

    def call(
        self, worker_ids: int | Collection[int] | None, method: str, *args: Any, timeout_s: float = 60.0, **kwargs: Any
    ) -> dict[int, Any]:
        """Call a method of workers' environments or of their policy, between two batches of each.

        Arguments and results are numbers, text, lists, dicts with text as keys, and arrays; tensors come back as
        arrays. No call reaches evaluation, and none is repeated: a warning names each worker that joins, or starts
        again, after it.

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
        with (
            self._calls.fill.held(timeout_s) if self._calls.fill else nullcontext(),
            self._calls.acting(self._director.phase),
        ):
            workers = self._membership.these(worker_ids)
            return call_workers(self._gatherer, self._transport, workers, method, (args, kwargs), timeout_s=timeout_s)

    def set_env(self, settings: Mapping[str, Any] | Callable[[int, int], Mapping[str, Any]]) -> int:
        """Set something for the environments of all workers, such as the level of a curriculum.

        Each environment gets its dict at its next reset, as `reset(options=...)` or by the method that
        `settings_method` names, and so do those that restart or join later. Later settings replace all earlier ones.
        From then on, each frame has the version of its episode: `("collector", "env_version")`, 0 before the first. Set
        something before the first batch if a replay buffer keeps the frames. `evaluation` has `settings` of its own.
        The state of a checkpoint has them; a learner that continues a job without it begins without settings.

        Args:
            settings: A dict of numbers, text, lists, dicts and arrays; or a function of worker and environment, both
                from 0, that returns one. It is called here and now; workers that join later get an earlier one's.

        Returns:
            The number of this version: the last one plus 1.

        Raises:
            JobInvalid: It is no dict, has another kind of value, or more than 64 KiB as JSON.
            JobEnded: The job is complete, or the collector was shut down.

        Example:
            >>> import rollfleet
            >>> with rollfleet.Collector("CartPole-v1", num_envs=2, frames_per_batch=4) as collector:
            ...     collector.set_env(lambda worker, env: {"low": env, "high": env})
            ...     batch = next(collector)
            1
            >>> batch["observation"][:, 0, 0], batch["collector", "env_version"].tolist()
            (tensor([0., 1.]), [[1, 1], [1, 1]])
        """
        with self._calls.acting(self._director.phase):
            spec = self.job.spec
            workers = max([spec.workers, *(worker + 1 for worker in self._transport.members())])
            self._director.run_state.set_env(pack_settings(settings, workers=workers, num_envs=spec.env.num_envs))
            self._director.direct_async()
            return self._director.run_state.env_version

    def wait_for_env_version(self, version: int, timeout_s: float) -> None:
        """Wait until every worker gives this version of `set_env`, or a newer one, to the episodes that begin.

        Workers that wait for the learner have it at once; those that collect, after their batch.

        Raises:
            Timeout: Workers are still behind, and the message names them; or this version was not set.
        """
        self._wait_for("env_version", whole_number(version, "version"), timeout_s)

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
    @hints_names("rollfleet.Collector.over")
    def over(
        cls,
        transport: Transport,
        job: CollectorJob,
        policy: Any = None,
        *,
        postproc: "Callable[[TensorDict], Any] | None" = None,
        replay_buffer: Extends | None = None,
        weight_scheme: "WeightScheme | None" = None,
        acknowledge: str = "auto",
    ) -> Self:
        """Make a collector over an open transport. The collector closes it, and so does an error here.

        Args:
            transport: The learner's side of a transport.
            job: The job that its workers run.
            policy: The policy that `weights.interval` broadcasts; None: no policy.
            postproc: A function of each batch. The iterator yields its result.
            replay_buffer: A buffer whose `extend(frames)` gets the frames `[frames]` of each batch, after `postproc`.
                The iterator then yields None.
            weight_scheme: Which weights travel, and in which form. None: the scheme that the job names.
            acknowledge: "auto": a batch is acknowledged once it is yielded. "manual": once you call `ack()`.

        Raises:
            JobInvalid: A value cannot be used. The message names the keyword.
        """
        given, collector = locals(), cls.__new__(cls)
        try:
            BatchIterator.__init__(collector, transport, job, policy, Options.of(given, cls.over))
        except BaseException:
            transport.close()
            raise
        return collector
