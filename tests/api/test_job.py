"""What a CollectorJob means: defaults, limits, and what follows from them."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import JsonValue, ValidationError
from tests.api.job_data import job_data

from rollfleet_api.job import (
    MAX_WORKERS,
    CollectorJob,
    CollectSpec,
    EnvSpec,
    Exploration,
    Metadata,
    MlpSpec,
    Mode,
    PolicySpec,
    RandomSpec,
    ResourcesSpec,
    Vectorization,
    WrapperSpec,
)
from rollfleet_api.quantity import parse_bytes
from rollfleet_api.validation import JobErrors, parse_job


def test_python_names_and_yaml_names_build_the_same_job() -> None:
    env, collect = EnvSpec(id="CartPole-v1", num_envs=8), CollectSpec(frames_per_batch=64)
    spec = {"env": env, "policy": PolicySpec(mlp=MlpSpec()), "collect": collect}
    built = CollectorJob.model_validate({"metadata": Metadata(name="cartpole"), "spec": spec})
    assert built == parse_job(job_data(env={"id": "CartPole-v1", "numEnvs": 8}))


@pytest.mark.parametrize(
    ("mode", "workers", "num_envs", "frames", "steps"),
    [
        ("Async", 4, 8, 2048, 256),
        ("Sync", 4, 8, 2048, 64),
        ("Sync", 3, 8, 2048, 86),  # 85.3 rounded up
        ("Sync", 100, 8, 8, 1),
    ],
)
def test_steps_are_of_all_workers_in_sync_and_of_one_in_async(
    mode: str, workers: int, num_envs: int, frames: int, steps: int
) -> None:
    env, collect = {"id": "CartPole-v1", "numEnvs": num_envs}, {"framesPerBatch": frames}
    seen = {"status": {"observedGeneration": 1}}  # `workers` has changed since
    job = job_data(mode=mode, workers=workers, env=env, collect=collect) | seen
    assert parse_job(job).spec.steps_per_batch == steps


@pytest.mark.parametrize(("workers", "weights", "lag"), [(1, {}, 4), (8, {}, 18), (8, {"maxLag": 0}, 0)])
def test_lag_grows_with_workers_unless_it_is_given(workers: int, weights: dict[str, object], lag: int) -> None:
    assert parse_job(job_data(workers=workers, weights=weights)).spec.weights_max_lag == lag


@pytest.mark.parametrize(
    ("text", "size"),
    [("4Gi", 4 * 2**30), ("1G", 10**9), ("1.5Mi", 3 * 2**19), ("2e6", 2_000_000), ("1048576.1", 1_048_577)],
)
def test_quantity_is_a_number_of_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("name", ["max_bytes", "maxBytes", "whenFull", "storage", "replicas"])
def test_a_field_that_is_gone_says_why(name: str) -> None:
    with pytest.raises(JobErrors, match=f"{name}: this field is gone: NATS keeps no batches"):
        parse_job(job_data(delivery={name: "1Gi"}))


def test_a_misspelt_field_beside_one_that_is_gone_is_reported_too() -> None:
    with pytest.raises(JobErrors) as error:
        parse_job(job_data(delivery={"storage": "Memory", "maxBatchAhead": 2}))
    assert [problem.path for problem in error.value.problems] == [
        "spec.delivery.storage",
        "spec.delivery.maxBatchAhead",
    ]


def test_whole_numbers_are_quantities_too() -> None:
    resources = ResourcesSpec.model_validate({"requests": {"cpu": 4, "memory": "8Gi"}})
    assert resources.requests == {"cpu": "4", "memory": "8Gi"}


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    try:
        size = parse_bytes(text)
    except ValueError:
        return
    assert size >= 0


def test_jobs_cannot_be_changed() -> None:
    job = parse_job(job_data())
    with pytest.raises(ValidationError, match="frozen"):
        job.spec.workers = 2


def test_free_form_parts_are_copies() -> None:
    sizes: list[JsonValue] = [1]
    env = EnvSpec(id="CartPole-v1", kwargs={"sizes": sizes})
    sizes.append(2)
    assert env.kwargs == {"sizes": [1]}


def test_fields_that_a_cluster_adds_are_accepted() -> None:
    metadata = {"uid": "a", "resourceVersion": "12", "generation": 3, "creationTimestamp": "2026-11-21T10:00:00Z"}
    managed = {"managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]}
    condition = {"type": "Ready", "status": "False", "reason": "WorkersPending", "message": ""}
    status = {"observedGeneration": 3, "phase": "Running", "workers": {"ready": 1}, "framesPerSecond": 1200}
    status |= {"conditions": [condition], "ofANewerOperator": 1}
    job = parse_job(job_data(metadata | managed) | {"status": status})
    assert job.metadata.generation == 3
    assert job.status is not None
    assert job.status.workers.ready == 1


TEXTS, FINITE = st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False)
FREE_FORM = st.dictionaries(
    TEXTS,
    st.recursive(
        st.none() | st.booleans() | st.integers() | FINITE | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)
ENTRYPOINTS = st.sampled_from(["my_pkg.envs:make", "a:b", "a.b:C.d"])
WRAPPERS = st.builds(WrapperSpec, entrypoint=ENTRYPOINTS, kwargs=FREE_FORM)
POLICIES = st.one_of(
    st.builds(PolicySpec, mlp=st.builds(MlpSpec, hidden=st.lists(st.integers(1, 512), max_size=3))),
    st.builds(PolicySpec, random=st.just(RandomSpec()), device=st.sampled_from(["cpu", "cuda:1"])),
    st.builds(PolicySpec, entrypoint=ENTRYPOINTS, kwargs=FREE_FORM),
)


@st.composite
def jobs(draw: st.DrawFn) -> CollectorJob:
    num_envs = draw(st.integers(1, 64))
    mode = draw(st.sampled_from(Mode))
    native = draw(st.booleans())
    return CollectorJob.model_validate(
        {
            "metadata": {
                "name": draw(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)),
                "labels": draw(st.dictionaries(TEXTS, TEXTS, max_size=2)),
            },
            "spec": {
                "workers": draw(st.integers(1, MAX_WORKERS)),
                "mode": mode,
                "env": {
                    **draw(st.sampled_from([{"id": "CartPole-v1"}, {"entrypoint": "a:b"}])),
                    "num_envs": num_envs,
                    "kwargs": draw(FREE_FORM),
                    "vectorization": Vectorization.NATIVE if native else Vectorization.ASYNC,
                    "wrappers": draw(st.lists(WRAPPERS, max_size=0 if native else 2)),
                },
                "policy": draw(POLICIES),
                "collect": {
                    "frames_per_batch": num_envs * draw(st.integers(1, 100)),
                    "total_frames": draw(st.integers(0, 2**53 - 1)),
                    "exploration": draw(st.sampled_from(Exploration)),
                },
                "weights": {"max_lag": draw(st.none() | st.integers(0, 10))},
                "delivery": {"max_batches_ahead": draw(st.integers(1, 1024))},
                "stragglers": {"threshold": draw(st.sampled_from([0.5, 1.0])) if mode is Mode.SYNC else 1.0},
                "resources": {"requests": draw(st.sampled_from([{}, {"cpu": 4, "memory": "1Gi"}]))},
                "template": draw(FREE_FORM),
                "learner": draw(st.none() | st.builds(dict, template=FREE_FORM)),
                "ttl_seconds_after_finished": draw(st.none() | st.integers(0, 10)),
            },
        }
    )


@given(jobs())
def test_dumped_job_parses_to_the_same_job(job: CollectorJob) -> None:
    assume(job.status is not None or not job.spec.uneven)
    assert parse_job(job.dump()) == job


def test_dump_leaves_out_what_is_default() -> None:
    assert parse_job(job_data()).dump() == job_data()
