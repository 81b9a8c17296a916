"""`rollfleet validate`: files, exit codes, and the checks against this machine."""

import io
import re
from pathlib import Path

import pytest
import yaml
from tests.api.job_data import job_data

from rollfleet.cli.validate import check_environment, validate
from rollfleet_api.documents import read_documents
from rollfleet_api.job import CollectorJob
from rollfleet_api.validation import JobErrors

JOB = """\
apiVersion: rollfleet.dev/v1alpha1
kind: CollectorJob
metadata: {name: cartpole}
spec:
  env: {id: CartPole-v1}
  policy: {mlp: {}}
  collect: {framesPerBatch: 64}
"""

MADE = """\
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv as Own
from rollfleet import ActorCritic

def make(observations, actions, *, width=8):
    return ActorCritic(observations, actions, hidden=[width])

def eight():
    return gymnasium.make_vec("CartPole-v1", num_envs=8)

def lacking():
    import no_such_simulator
"""


def run(*paths: str | Path, stdin: str = "") -> tuple[int, str]:
    out = io.StringIO()
    return validate([str(path) for path in paths], stdin=io.StringIO(stdin), out=out), out.getvalue()


def with_env(env: str, more: str = "") -> str:
    return JOB.replace("{id: CartPole-v1}", env) + more


def a_job(env: str) -> CollectorJob:
    (document,) = read_documents(with_env(f"{{{env}}}"), origin="")
    assert document.job
    return document.job


def test_valid_files_exit_0_and_are_named(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB + "---\n" + JOB.replace("cartpole", "other"))
    code, out = run(job)
    assert code == 0
    assert out == f"{job}:1 (document 1): cartpole is valid\n{job}:9 (document 2): other is valid\n"


def test_one_bad_file_exits_1_and_the_others_are_still_checked(tmp_path: Path) -> None:
    good, bad, missing = tmp_path / "good.yaml", tmp_path / "bad.yaml", tmp_path / "missing.yaml"
    good.write_text(JOB)
    bad.write_text(JOB.replace("framesPerBatch: 64", "framesPerBatch: 0"))
    code, out = run(missing, bad, tmp_path, good)
    assert code == 1
    assert out.splitlines() == [
        f"{missing}: cannot be read: No such file or directory",
        f"{bad}:7: spec.collect.framesPerBatch: must be at least 1, got 0",
        f"{tmp_path}: cannot be read: Is a directory",
        f"{good}:1: cartpole is valid",
    ]


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPole-v9", "It provides versioned environments: [ `v0`, `v1` ]"),
        ("Cartpole-v0", "Did you mean: `CartPole`?"),
        ("Pendulum-v0", "is deprecated. Please use `Pendulum-v1` instead"),
        ("NoSuchNamespace/Pong-v5", "Have you installed the proper package for NoSuchNamespace?"),
        ("Zzzzzzzzzzzz-v0", "write `module:Zzzzzzzzzzzz-v0` if a module registers it"),
        ("no_such_module:Foo-v0", "module 'no_such_module' was not found"),
    ],
)
def test_an_unknown_environment_is_reported_with_the_nearest_name(env_id: str, message: str) -> None:
    code, out = run("-", stdin=with_env(f'{{id: "{env_id}"}}'))
    assert code == 1
    assert out.startswith("standard input:5: spec.env.id: ")
    assert message in out


def test_templates_have_the_types_of_kubernetes() -> None:
    workers = "spec: {nodeSelectors: {}, volumes: [{name: a, emptyDir: {sizeLimit: 5}}]}"
    learner = "spec: {containers: [{name: a, env: [{name: A, value: 5}], resources: {limits: {cpu: 4}}}]}"
    code, out = run("-", stdin=f"{JOB}  template: {{{workers}}}\n  learner:\n    template: {{{learner}}}\n")
    assert code == 1
    assert out.splitlines() == [
        "standard input:8: spec.template.spec.nodeSelectors: unknown field `nodeSelectors`; "
        "did you mean `nodeSelector`?",
        "standard input:10: spec.learner.template.spec.containers[0].env[0].value: expected text, got 5; "
        'write it in quotes: "5"',
    ]


def test_templates_of_servers_and_of_nats_have_them_too() -> None:
    template = "template: {spec: {nodeSelectors: {}}}"
    env = f"{{id: CartPole-v1, numEnvs: 2, vectorization: Async, servers: {{replicas: 2, {template}}}}}"
    unknown = "template.spec.nodeSelectors: unknown field `nodeSelectors`; did you mean `nodeSelector`?"
    assert run("-", stdin=with_env(env, f"  nats: {{{template}}}\n")) == (
        1,
        f"standard input:5: spec.env.servers.{unknown}\nstandard input:8: spec.nats.{unknown}\n",
    )


def test_before_a_run_an_id_passes_without_a_version_or_of_envpool_or_if_a_module_may_register_it_later() -> None:
    wrapped = "wrappers: [{entrypoint: 'envs:Wrap'}]"
    for env in ("id: CartPole", "id: 'envs:Foo-v0'", f"id: Foo-v0, {wrapped}", "id: Pong-v5, backend: EnvPool"):
        check_environment(a_job(env), origin="job.yaml")
    with pytest.raises(JobErrors, match=r"job\.yaml: spec\.env\.id: `Foo-v0` is not a registered environment"):
        check_environment(a_job("id: Foo-v0"), origin="job.yaml")


def test_an_unknown_environment_is_reported_beside_other_problems() -> None:
    _, out = run("-", stdin=with_env("{id: CartPole-v9}", "  workers: 0\n"))
    assert "spec.workers: must be at least 1" in out
    assert "[ `v0`, `v1` ]" in out


@pytest.mark.parametrize("file", ["validated_envs.py", "validated_envs/__init__.py"])
def test_entrypoint_is_imported_from_beside_the_file(tmp_path: Path, file: str) -> None:
    for folder, name in (("a", "make"), ("b", "build")):
        (tmp_path / folder / file).parent.mkdir(parents=True)
        (tmp_path / folder / file).write_text(f"from gymnasium.envs.classic_control import CartPoleEnv as {name}\n")
        (tmp_path / folder / "job.yaml").write_text(with_env("{entrypoint: 'validated_envs:make'}"))
    code, out = run(tmp_path / "a" / "job.yaml", tmp_path / "b" / "job.yaml")
    assert code == 1
    assert out.splitlines() == [
        f"{tmp_path}/a/job.yaml:1: cartpole is valid",
        f"{tmp_path}/b/job.yaml:5: spec.env.entrypoint: module 'validated_envs' has no 'make'",
    ]


@pytest.mark.parametrize(
    ("field", "name", "message"),
    [
        ("env.entrypoint", "no_such_module.envs:make", "module 'no_such_module.envs' was not found; install it, put"),
        ("env.entrypoint", "json.nothing:make", "module 'json.nothing' was not found"),
        ("env.entrypoint", "json:dumbs", "module 'json' has no 'dumbs'; did you mean 'json:dumps'?"),
        ("env.entrypoint", "os:sep", "'os:sep' is a str; name a function or class"),
        ("env.entrypoint", "broken:make", "module 'broken' failed at import: RuntimeError: no licence"),
        ("collect.initFn", "json:dumbs", "module 'json' has no 'dumbs'"),
        ("collect.postCollectHook", "json:dumbs", "module 'json' has no 'dumbs'"),
        ("weights.scheme", "json:dumbs", "module 'json' has no 'dumbs'"),
    ],
)
def test_an_unusable_name_of_code_is_reported(tmp_path: Path, field: str, name: str, message: str) -> None:
    part, _, key = field.partition(".")
    fields = {"framesPerBatch": 64, key: name} if part == "collect" else {key: name}
    (tmp_path / "broken.py").write_text("raise RuntimeError('no licence')\n")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job_data(**{part: fields})))
    code, out = run(tmp_path / "job.yaml")
    assert code == 1
    assert f"spec.{field}: {message}" in out


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"env": {"id": "CartPole-v1", "kwargs": {"suton": 1}}}, r":\d+: spec\.env: environment .*: .*'suton'"),
        ({"env": {"entrypoint": "made:Own", "kwargs": {"suton": 1}, "numEnvs": 4}}, r":\d+: spec\.env: .*'suton'"),
        ({"policy": {"entrypoint": "made:make", "kwargs": {"wide": 1}}}, r":\d+: spec\.policy: .*'wide'"),
        ({"policy": {"entrypoint": "made:make", "device": "cuda"}}, ":1: cartpole is valid"),
        ({"env": {"entrypoint": "made:eight", "numEnvs": 8}}, ":1: cartpole is valid"),
        ({"env": {"entrypoint": "made:lacking"}}, ":1: cartpole is valid"),
    ],
)
def test_environment_and_policy_are_made_once(tmp_path: Path, field: dict[str, object], expected: str) -> None:
    """A misspelt keyword argument was valid. What a package of the workers makes is not known here."""
    (tmp_path / "made.py").write_text(MADE)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job_data({"name": "cartpole"}, **field)))
    assert re.fullmatch(f"{tmp_path}/job.yaml{expected}.*\n", run(tmp_path / "job.yaml")[1])


@pytest.mark.parametrize("brings", ["source: {configMap: my-code}", "image: my-org/my-worker:1.0"])
def test_a_job_with_its_own_code_is_not_checked_against_installed_packages(brings: str) -> None:
    wrappers = "wrappers: [{entrypoint: 'no_such_module:Wrap'}]"
    assert run("-", stdin=with_env(f"{{entrypoint: 'no_such_module:make', {wrappers}}}", f"  {brings}\n"))[0] == 0
    assert run("-", stdin=with_env("{id: Zzzzzzzzzzzz-v0}", f"  {brings}\n"))[0] == 0
    assert run("-", stdin=with_env("{id: CartPole-v9}", f"  {brings}\n"))[0] == 1
