"""Jobs as plain data, and the rules that they may break."""

from typing import Any

from rollfleet_api.job import API_VERSION, KIND

SMALLEST: dict[str, Any] = {"env": {"id": "CartPole-v1"}, "policy": {"mlp": {}}, "collect": {"framesPerBatch": 64}}


def job_data(metadata: Any = None, **spec: object) -> dict[str, Any]:
    """A job as YAML has it, with these fields of its metadata and its spec beside or instead of the smallest."""
    named = {"name": "cartpole"} | (metadata or {})
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": named, "spec": SMALLEST | spec}


ENV = {"id": "CartPole-v1"}
ONE_ENV = "write either `id` (a registered environment, e.g. `CartPole-v1`) or `entrypoint` (e.g. `my_pkg.envs:make`)"
ONE_POLICY = "write exactly one of `entrypoint: my_pkg.policy:make`, `mlp: {}` and `random: {}`"
CALLABLE = "expected `module:callable`, e.g. `my_pkg.envs:make`"
RULES = [
    (
        {"workers": 0},
        "spec.workers: must be at least 1; 0 is for a job with `env.servers` and a program that steps the environments",
    ),
    (
        {
            "workers": 0,
            "env": ENV | {"vectorization": "Async", "numEnvs": 2, "servers": {"replicas": 2}},
            "autoscale": {"maxWorkers": 2},
        },
        "spec.autoscale: a job without workers has none to scale; remove `autoscale`, or write 1 or more `workers`",
    ),
    (
        {
            "workers": 0,
            "env": ENV | {"vectorization": "Async", "numEnvs": 2, "servers": {"replicas": 2}},
            "evaluation": {"every": 10},
        },
        "spec.evaluation: a job without workers has no policy to evaluate; remove `evaluation`, or write 1 or more "
        "`workers`",
    ),
    ({"workers": -1}, "spec.workers: must be at least 0, got -1"),
    ({"workers": "two"}, 'spec.workers: expected a whole number, got "two"'),
    ({"workers": "8"}, 'spec.workers: expected a whole number, got "8"; write 8 without quotes'),
    ({"workers": True}, "spec.workers: expected a whole number, got true"),
    ({"workers": 2.0}, "spec.workers: expected a whole number, got 2.0; write 2"),
    ({"workers": None}, "spec.workers: expected a whole number, got null; remove it for the default"),
    ({"suspend": "true"}, 'spec.suspend: expected true or false, got "true"; write true without quotes'),
    ({"mode": "sync"}, 'spec.mode: got "sync"; write `Sync`'),
    ({"mode": 3}, "spec.mode: expected `Sync` or `Async`, got 3"),
    (
        {"collect": {"framesPerBatch": 64, "exploration": "random"}},
        'spec.collect.exploration: got "random"; write `Random`',
    ),
    ({"env": ENV | {"numEnv": 2}}, "spec.env.numEnv: unknown field `numEnv`; did you mean `numEnvs`?"),
    (
        {"env": ENV | {"num_envs": 2}},
        "spec.env.num_envs: unknown field `num_envs`; did you mean `numEnvs`? (fields are written in camelCase)",
    ),
    ({"framesPerBatch": 2}, "spec.framesPerBatch: unknown field `framesPerBatch`; it belongs to `spec.collect`"),
    (
        {"policy": {"kind": "mlp"}},
        "spec.policy.kind: unknown field `kind`; the fields here are entrypoint, kwargs, mlp, random, device",
    ),
    (
        {"policy": {"type": "mlp"}},
        "spec.policy.type: unknown field `type`; the fields here are entrypoint, kwargs, mlp, random, device",
    ),
    ({"source": {"x": 1, "configMap": "a"}}, "spec.source.x: unknown field `x`; the fields here are configMap"),
    (
        {"env": ENV | {"numEnvs": 24}},
        "spec.collect.framesPerBatch: 64 is not a multiple of 24, the environments of a batch "
        "(`env.numEnvs`, in mode Sync times `workers`); write 48 or 72",
    ),
    (
        {"mode": "Sync", "workers": 5, "env": ENV | {"numEnvs": 2}},
        "spec.collect.framesPerBatch: 64 is not a multiple of 10, the environments of a batch "
        "(`env.numEnvs`, in mode Sync times `workers`); write 60 or 70",
    ),
    ({"env": {}}, f"spec.env: the environment is missing; {ONE_ENV}"),
    ({"env": ENV | {"entrypoint": "a:b"}}, f"spec.env: both `id` and `entrypoint` are given; {ONE_ENV}"),
    ({"env": {"entrypoint": "make my env"}}, f"spec.env.entrypoint: {CALLABLE}, got `make my env`"),
    ({"env": {"entrypoint": "a.b.make"}}, f"spec.env.entrypoint: {CALLABLE}, got `a.b.make`; write `a.b:make`"),
    (
        {"env": ENV | {"vectorization": "Native", "wrappers": [{"entrypoint": "a:b"}]}},
        "spec.env.wrappers: wrappers wrap single environments, which `vectorization: Native` does not have; "
        "remove `wrappers`, or write `vectorization: Sync` or `Async`",
    ),
    (
        {"env": ENV | {"numEnvs": 2, "servers": {"replicas": 2}}},
        "spec.env.servers: servers hold single environments of Gymnasium, in place of processes; write "
        "`vectorization: Async`, and remove `backend` and `processes`",
    ),
    (
        {"env": ENV | {"vectorization": "Async", "servers": {"replicas": 2}}},
        "spec.env.servers.replicas: must not exceed `numEnvs`: each server needs an environment",
    ),
    ({"env": ENV | {"servers": {}}}, "spec.env.servers.replicas: missing; write e.g. `replicas: 4`"),
    (
        {"env": ENV | {"wrappers": [{"entrypoint": "a:b"}, {}]}},
        "spec.env.wrappers[1].entrypoint: missing; write e.g. `entrypoint: gymnasium.wrappers:ClipAction`",
    ),
    ({"env": "CartPole-v1"}, 'spec.env: expected a mapping, got "CartPole-v1"; write e.g. `env: {id: CartPole-v1}`'),
    (
        {"env": ENV | {"kwargs": {"a": {"b": float("nan")}}}},
        "spec.env.kwargs.a.b: nan cannot be written in JSON; use a finite number",
    ),
    (
        {"env": ENV | {"kwargs": {"a": [{1: 2}]}}},
        'spec.env.kwargs.a[0]: the key 1 is not text; write it in quotes: "1"',
    ),
    ({"policy": {}}, f"spec.policy: a job has one policy; {ONE_POLICY}"),
    ({"policy": {"mlp": {}, "random": {}}}, f"spec.policy: a job has one policy; {ONE_POLICY}"),
    ({"policy": {"mlp": {}, "kwargs": {}}}, "spec.policy.kwargs: `kwargs` need an `entrypoint`; remove them"),
    (
        {"policy": {"mlp": {}, "device": "gpu"}},
        "spec.policy.device: expected `cpu`, `cuda`, `cuda:<index>` or `mps`, got `gpu`",
    ),
    ({"policy": {"mlp": {"hidden": [0]}}}, "spec.policy.mlp.hidden[0]: must be at least 1, got 0"),
    ({"policy": {"mlp": {"hidden": 64}}}, "spec.policy.mlp.hidden: expected a list, got 64; write `hidden: [64]`"),
    ({"collect": {}}, "spec.collect.framesPerBatch: missing; write e.g. `framesPerBatch: 2048`"),
    (
        {"delivery": {"maxBytes": "4Gi", "maxBatchesAhead": 2}},
        "spec.delivery.maxBytes: this field is gone: NATS keeps no batches: each worker keeps its own until the "
        "learner has taken them; remove it",
    ),
    (
        {"resources": {"limits": {"memory": "4GB"}}},
        "spec.resources.limits.memory: `4GB` is not a quantity; write `4Gi` (powers of 1024) or `4G` (powers of 1000)",
    ),
    (
        {"resources": {"limits": {"nvidia.com/gpu": 0.5}}},
        'spec.resources.limits[nvidia.com/gpu]: expected a quantity; write it in quotes: "0.5"',
    ),
    (
        {"policy": {"random": {}}, "evaluation": {"every": 1}},
        "spec.evaluation: policy `random` has no weights, whose versions could be evaluated; remove `evaluation`",
    ),
    ({"evaluation": {}}, "spec.evaluation.every: missing; write e.g. `every: 10`"),
    ({"evaluation": {"every": 0}}, "spec.evaluation.every: must be at least 1, got 0"),
    ({"stragglers": {"threshold": 0}}, "spec.stragglers.threshold: must be more than 0.0, got 0"),
    (
        {"stragglers": {"threshold": 0.5}},
        "spec.stragglers.threshold: only mode `Sync` waits for all workers; remove `stragglers`, or write `mode: Sync`",
    ),
    (
        {"failure": {"environments": {"stepTimeoutSeconds": 1}}},
        "spec.failure.environments: only an environment in a process can be ended while it hangs; write "
        "`env.vectorization: Async`, or remove the time limits of a step and of a reset",
    ),
    (
        {"env": {"id": "CartPole-v1", "vectorization": "Native"}, "failure": {"environments": {}}},
        "spec.failure.environments: only single environments of Gymnasium can be replaced; remove "
        "`failure.environments`, or write `env.vectorization: Async`",
    ),
    (
        {
            "env": {"id": "CartPole-v1", "numEnvs": 2, "vectorization": "Async", "processes": 1},
            "failure": {"environments": {}},
        },
        "spec.failure.environments: an environment that can be replaced has a process of its own; remove "
        "`env.processes`",
    ),
    (
        {"collect": {"framesPerBatch": 64, "resetWhenDone": False}, "failure": {"environments": {}}},
        "spec.failure.environments: an environment that is replaced waits for no other; remove `collect.resetWhenDone`",
    ),
    ({"image": "a b"}, "spec.image: expected the name of an image, e.g. `my-org/my-worker:1.0`, got `a b`"),
]
