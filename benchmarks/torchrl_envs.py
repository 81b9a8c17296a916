"""Frames a second over TorchRL's environments, beside TorchRL's own collectors and a loop by hand, in turn in one run.

`python -P benchmarks/torchrl_envs.py [--quick] [--rounds N] [--only NAME]`

RayCollector takes part if Ray is installed. "over NATS" starts a nats-server here.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

# Workers over NATS import this file, too.
sys.path.extend(str(Path(__file__).parent / folder) for folder in (".", "contenders"))

import torch

import nats_job
import rollfleet

Contenders = dict[str, Callable[[], Iterator[int]]]


def counted() -> Any:
    """Return CartPole with the transforms of most programs."""
    from torchrl.envs import Compose, GymEnv, RewardSum, StepCounter, TransformedEnv

    return TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(), RewardSum()))


def vmas(envs: int) -> Any:
    """Return environments of VMAS, in one batch. Episodes are too long to end here, so that all do the same work."""
    from torchrl.envs import VmasEnv

    return VmasEnv("transport", num_envs=envs, n_agents=2, max_steps=10_000, device="cpu")


def policy() -> Any:
    """Return a small policy for CartPole."""
    from tensordict.nn import TensorDictModule

    net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    return TensorDictModule(net, in_keys=["observation"], out_keys=["action"])


def cheetah() -> Any:
    """Return HalfCheetah as the program `ppo_mujoco` makes it."""
    from torchrl import envs

    keys = ["observation"]
    normalised = envs.VecNormV2(keys, decay=0.99999, eps=1e-2), envs.ClipTransform(keys, low=-10, high=10)
    chain = envs.Compose(*normalised, envs.RewardSum(), envs.StepCounter(), envs.DoubleToFloat(keys))
    return envs.TransformedEnv(envs.GymEnv("HalfCheetah-v5", device="cpu"), chain)


def cheetahs() -> Any:
    """Return two of HalfCheetah in processes, as the program `sac` makes them."""
    from torchrl import envs

    single = partial(envs.GymEnv, "HalfCheetah-v5", device="cpu")
    chain = envs.Compose(envs.InitTracker(), envs.StepCounter(1000), envs.DoubleToFloat(), envs.RewardSum())
    return envs.TransformedEnv(envs.ParallelEnv(2, single, mp_start_method="fork"), chain)


def gaussian() -> Any:
    """Return the actor of `ppo_mujoco`."""
    from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
    from torchrl.modules import MLP, ProbabilisticActor, TanhNormal

    net = MLP(17, 6, num_cells=[64, 64], activation_class=torch.nn.Tanh), AddStateIndependentNormalScale(6)
    module = TensorDictModule(torch.nn.Sequential(*net), ["observation"], ["loc", "scale"])
    bounds = {"low": -torch.ones(6), "high": torch.ones(6), "tanh_loc": False}
    options = {"distribution_class": TanhNormal, "distribution_kwargs": bounds, "return_log_prob": True}
    return ProbabilisticActor(module, ["loc", "scale"], **options)


def greedy() -> Any:
    """Return the policy of `dqn_cartpole`."""
    from tensordict.nn import TensorDictSequential
    from torchrl.data import OneHot
    from torchrl.modules import MLP, EGreedyModule, QValueActor

    actor = QValueActor(MLP(4, 2, num_cells=[120, 84]), in_keys=["observation"], spec=OneHot(2))
    return TensorDictSequential(actor, EGreedyModule(OneHot(2), eps_end=0.05, annealing_num_steps=50_000))


def by_hand(make: Callable[[], Any], act: Any, steps: int) -> Iterator[int]:
    """Step an environment without a collector, and stack the frames."""
    from tensordict import TensorDict

    env = make()
    carrier, act = env.reset(), act or env.rand_action
    while True:
        frames = []
        with torch.no_grad():
            for _ in range(steps):
                frame, carrier = env.step_and_maybe_reset(act(carrier))
                frames.append(frame)
        yield TensorDict.maybe_dense_stack(frames, -1).numel()


def on_tensors(make: Callable[[], Any], policy: Any, steps: int) -> Iterator[int]:
    """Step CartPole by hand, without a TensorDict, for batches with the same keys."""
    simulator, net, noise, off = make().base_env._env, policy[0][0].module, policy[1], torch.zeros(1, dtype=torch.bool)

    def first() -> tuple[torch.Tensor, ...]:
        return torch.as_tensor(simulator.reset()[0]), torch.zeros(1), torch.zeros(1, dtype=torch.long), off, off, off

    carried = first()
    while True:
        frames = []
        with torch.no_grad():
            for _ in range(steps):
                values = net(carried[0])
                best = (values == values.max(-1, keepdim=True)[0]).long()
                drawn = torch.nn.functional.one_hot(torch.randint(2, ()), 2)
                action = torch.where(torch.rand(()) < noise.eps, drawn, best)
                seen, gained, *ends, _ = simulator.step(int(action.argmax()))
                flags = [torch.as_tensor([end]) for end in (*ends, any(ends))]
                reward = torch.as_tensor([gained], dtype=torch.float32)
                following = torch.as_tensor(seen), carried[1] + reward, carried[2] + 1, *flags
                frames.append((*carried, values, action, (best * values).sum(-1, True), *following, reward))
                carried = first() if any(ends) else following
        batch = [*map(torch.stack, zip(*frames, strict=True))]
        yield len(batch[0])


def of_collector(collector: Any) -> Iterator[int]:
    """Iterate over the sizes of a collector's batches."""
    try:
        for batch in collector:
            yield batch.numel()
    finally:
        collector.shutdown()


def theirs(name: str, makes: Any, act: Any, frames: int, **options: Any) -> Iterator[int]:
    """Iterate over batches of one of TorchRL's collectors."""
    import torchrl.collectors
    import torchrl.collectors.distributed

    kind = getattr(torchrl.collectors, name, None) or getattr(torchrl.collectors.distributed, name)
    return of_collector(kind(makes, act, frames_per_batch=frames, total_frames=1 << 40, **options))


def ours(make: Any, act: Any, frames: int, **options: Any) -> Iterator[int]:
    """Iterate over batches of our collector."""
    return of_collector(rollfleet.Collector(make, act, frames_per_batch=frames, **options))


def over_nats() -> Iterator[int]:
    """Iterate over batches of two workers, the learner of their job on a nats-server that starts here."""
    job = nats_job.job(
        workers=2,
        mode="Async",
        env={"entrypoint": "torchrl_envs:counted"},
        policy={"entrypoint": "torchrl_envs:policy"},
        collect={"framesPerBatch": 200},
    )
    with nats_job.learner(job, policy()) as (collector, _):
        yield from of_collector(collector)


def measured(batches: Iterator[int], seconds: float) -> float:
    """Return frames a second, after the first batch and a second of warming up."""
    next(batches)
    began = time.perf_counter()
    while time.perf_counter() - began < 1:
        next(batches)
    began, frames = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        frames += next(batches)
    rate = frames / (time.perf_counter() - began)
    with suppress(AttributeError):
        batches.close()  # type: ignore[attr-defined]
    return rate


def cases(envs: int) -> dict[str, Contenders]:
    """Return the contenders of each case, ours first."""
    ray: Contenders = {}
    if find_spec("ray"):
        ray["RayCollector"] = lambda: theirs("RayCollector", [counted] * 2, policy(), 200, sync=False)
    found: dict[str, Contenders] = {
        "in this process": {
            "rollfleet": lambda: ours(counted, policy(), 200),
            "Collector": lambda: theirs("Collector", counted, policy(), 200),
            "by hand": lambda: by_hand(counted, policy(), 200),
        },
        "two processes": {
            "rollfleet": lambda: ours(counted, policy(), 200, workers=2, mode="async"),
            "MultiAsyncCollector": lambda: theirs("MultiAsyncCollector", [counted] * 2, policy(), 200),
        }
        | ray,
        "two processes over NATS": {"rollfleet": over_nats} | ray,
    }
    for case, env, act, by in (
        ("HalfCheetah", cheetah, gaussian(), by_hand),
        ("CartPole", counted, greedy(), on_tensors),
    ):
        found[f"{case}, of a program"] = {
            "rollfleet": partial(ours, env, act, 1000),
            "Collector": partial(theirs, "Collector", env, act, 1000),
            "by hand": partial(by, env, act, 1000),
        }
        found[f"{case}, two processes"] = {
            "rollfleet": partial(ours, env, act, 1000, workers=2, mode="async"),
            "MultiAsyncCollector": partial(theirs, "MultiAsyncCollector", [env] * 2, act, 1000),
        }
    found["HalfCheetah, a ParallelEnv of two"] = {
        "rollfleet": partial(ours, cheetahs, gaussian(), 1000, num_envs=2),
        "Collector": partial(theirs, "Collector", cheetahs, gaussian(), 1000),
        "by hand": partial(by_hand, cheetahs, gaussian(), 500),
    }
    for count in (32, envs):
        make, frames = partial(vmas, count), 50 * count
        found[f"VMAS, {count} environments"] = {
            "rollfleet": partial(ours, make, None, frames, num_envs=count),
            "Collector": partial(theirs, "Collector", make, None, frames),
            "by hand": partial(by_hand, make, None, 50),
        }
    return found


def main() -> None:
    """Measure all cases, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Measure each contender for one second, once.")
    parser.add_argument("--rounds", type=int, default=3, help="Times that each contender has its turn.")
    parser.add_argument("--only", default="", help="Measure the cases that have this in their name.")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = {case: contenders for case, contenders in cases(1024).items() if given.only in case}
    for case, contenders in chosen.items():
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(1 if given.quick else given.rounds):
            for name, start in contenders.items():
                rates[name].append(measured(start(), 1.0 if given.quick else 4.0))
        own = median(rates["rollfleet"])
        for name, found in rates.items():
            print(f"{case:24} {name:20} {median(found):10.0f} frames/s  {own / median(found):5.2f}", flush=True)


if __name__ == "__main__":
    main()
