"""Errors of invalid jobs: where, what is wrong, and what to write instead."""

import pytest
from tests.api.job_data import ENV, RULES, job_data

from rollfleet_api.documents import read_documents
from rollfleet_api.validation import JobErrors, Problem, parse_job


def messages(data: object) -> list[str]:
    with pytest.raises(JobErrors) as caught:
        parse_job(data)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(("spec", "message"), RULES, ids=[message.split(";")[0][:70] for _, message in RULES])
def test_wrong_spec_is_reported_with_what_to_write(spec: dict[str, object], message: str) -> None:
    assert messages(job_data(**spec)) == [message]


def test_all_problems_are_reported_at_once() -> None:
    data = job_data(workers="two", mode="sync", env=ENV | {"numEnv": 1}, policy={"mlp": {"hiden": 1}})
    assert [line.split(":")[0] for line in messages(data)] == [
        "spec.workers",
        "spec.mode",
        "spec.env.numEnv",
        "spec.policy.mlp.hiden",
    ]


NAMES = [
    ("a" * 41, "at most 40 characters: workers' host names are `<name>-workers-"),
    ("My_Job", "write e.g. `my-job`"),
    ("a.b", "write e.g. `a-b`"),
    ("-", "must begin and end with a letter or digit"),
    (1234, 'expected text, got 1234; write it in quotes: "1234"'),
]


@pytest.mark.parametrize(("name", "part"), NAMES)
def test_name_that_cannot_be_a_token_or_a_host_is_refused(name: object, part: str) -> None:
    (message,) = messages(job_data() | {"metadata": {"name": name}})
    assert message.startswith("metadata.name: ")
    assert part in message


def test_longest_name_and_long_namespace_are_accepted() -> None:
    longest = {"name": "a" * 40, "namespace": "b" * 63}
    assert parse_job(job_data(longest)).key == f"{'b' * 63}/{'a' * 40}"
    assert "a namespace has at most 63" in messages(job_data(longest | {"namespace": "b" * 64}))[0]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            job_data() | {"apiVersion": "v1", "kind": "Pod"},
            [
                'apiVersion: expected `rollfleet.dev/v1alpha1`, got "v1"; write `apiVersion: rollfleet.dev/v1alpha1`',
                'kind: expected `CollectorJob`, got "Pod"; write `kind: CollectorJob`',
            ],
        ),
        (
            {},
            [
                "apiVersion: missing; write `apiVersion: rollfleet.dev/v1alpha1`",
                "kind: missing; write `kind: CollectorJob`",
            ],
        ),
        ([], ["expected a mapping with apiVersion, kind, metadata and spec, got a list"]),
        (None, ["expected a mapping with apiVersion, kind, metadata and spec, got null"]),
    ],
)
def test_other_kinds_are_refused_without_errors_of_fields(data: object, expected: list[str]) -> None:
    assert messages(data) == expected


def test_errors_are_value_errors_that_name_their_origin() -> None:
    with pytest.raises(ValueError, match=r"^the API server: spec\.weights\.interval: must be") as caught:
        parse_job(job_data(weights={"interval": -1}), origin="the API server")
    assert isinstance(caught.value, JobErrors)
    assert caught.value.problems == (Problem("spec.weights.interval", "must be at least 0, got -1", "the API server"),)


TEXT = """\
apiVersion: rollfleet.dev/v1alpha1
kind: CollectorJob
metadata: {name: one}
spec:
  env: {id: CartPole-v1}
  policy: {mlp: {}}
  collect:
    framesPerBatch: 64
"""


def read_messages(text: str) -> str:
    try:
        documents = read_documents(text, origin="job.yaml")
    except JobErrors as errors:
        return str(errors)
    return "\n".join(str(problem) for document in documents for problem in document.problems)


def test_several_documents_are_several_jobs_and_empty_ones_none() -> None:
    text = f"---\n---\n{TEXT}---\n{TEXT.replace('one', 'two')}---\n"
    jobs = [document.job for document in read_documents(text, origin="job.yaml")]
    assert [job and job.metadata.name for job in jobs] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1\nb: 2", "job.yaml:2:2: not YAML: expected ',' or ']', but got ':'"),
        ("a: 1\na: 2", "job.yaml:2:1: not YAML: `a` is already given in line 1"),
        ("a: !!python/object/apply:os.getcwd []", "job.yaml:1:4: not YAML: could not determine a constructor"),
        ("a: *b", "job.yaml:1:4: not YAML: found undefined alias"),
        ("a: \x00", "job.yaml: not YAML: unacceptable character"),
        ("[" * 5000, "job.yaml: not readable YAML: nested too deeply"),
        ("", "job.yaml: empty; expected a CollectorJob"),
        ("---\n# nothing\n", "job.yaml: empty; expected a CollectorJob"),
        (TEXT.replace("64", "0"), "job.yaml:8: spec.collect.framesPerBatch: must be"),
        (
            f"{TEXT}---\n{TEXT.replace('one', 'two').replace('64', '0')}",
            "job.yaml:17 (document 2): spec.collect.framesPerBatch: must be",
        ),
        (
            f"{TEXT}---\n{TEXT}",
            "job.yaml:12 (document 2): metadata.name: `default/one` is already the job of document 1; give it another",
        ),
    ],
)
def test_an_invalid_file_is_reported_with_its_place(text: str, expected: str) -> None:
    assert read_messages(text).startswith(expected)


def test_value_that_contains_itself_is_refused() -> None:
    text = TEXT.replace("{id: CartPole-v1}", "{id: CartPole-v1, kwargs: &k {me: *k}}")
    assert "contains itself" in read_messages(text)


def test_a_merged_mapping_may_merge_another() -> None:
    small = "  resources: {limits: &small {cpu: '1', memory: 2Gi}}\n  env:"
    servers = "{replicas: 1, resources: {limits: &big {<<: *small, cpu: '4'}}}"
    text = TEXT.replace("  env:", small).replace("-v1}", f"-v1, vectorization: Async, servers: {servers}}}")
    (document,) = read_documents(text + "  nats: {resources: {limits: {<<: *big, memory: 1Gi}}}\n", origin="")
    assert document.job
    spec = document.job.spec
    assert spec.env.servers
    assert spec.env.servers.resources.limits == {"cpu": "4", "memory": "2Gi"}
    assert spec.nats.resources.limits == {"cpu": "4", "memory": "1Gi"}


NUMBERS = ("1e-3", 0.001), ("-2.5", -2.5), ("0x10", 16), ("0o17", 15), ("017", 15)
WORDS = ("1:30", "1:30"), ("2026-11-21", "2026-11-21"), ("v1", "v1"), ("yes", True), ("~", None), ("", None)


@pytest.mark.parametrize(("text", "value"), [*NUMBERS, *WORDS])
def test_scalars_are_read_as_kubectl_reads_them(text: str, value: object) -> None:
    written = TEXT.replace("{id: CartPole-v1}", f"\n    id: CartPole-v1\n    kwargs:\n      x: {text}")
    (document,) = read_documents(written, origin="")
    assert document.job
    assert document.job.spec.env.kwargs == {"x": value}
    assert type(document.job.spec.env.kwargs["x"]) is type(value)
