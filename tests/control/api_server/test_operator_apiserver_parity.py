"""On a real API server: what `rollfleet validate` refuses, the API server refuses, in words that help."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from crds.crd import crd
from tests.api.job_data import ENV, RULES, job_data
from tests.control.api_server.lab import Lab
from tests.control.kubernetes import ApiServer

from rollfleet_api.job import KIND
from rollfleet_api.kinds import KINDS
from rollfleet_api.messages import LearnerPhase
from rollfleet_api.validation import JobErrors, parse_job
from rollfleet_operator.errors import ApiError

pytestmark = pytest.mark.cluster

ENVPOOL = {"id": "Pong-v5", "backend": "EnvPool"}
SERVED = {"vectorization": "Async", "numEnvs": 2, "servers": {"replicas": 2}}
MORE: list[dict[str, Any]] = [
    {"env": {"id": "Cart Pole"}},
    {"env": ENV | {"device": "gpu"}},
    {"env": ENV | {"settingsMethod": "set level"}},
    {"env": ENV | {"vectorization": "Async", "numEnvs": 2, "processes": 3}},
    {"env": ENV | {"processes": 1}},
    {"env": ENVPOOL | {"vectorization": "Async"}},
    {"env": ENVPOOL | {"processes": 1}},
    {"env": ENVPOOL | {"wrappers": [{"entrypoint": "a:b"}]}},
    {"env": {"entrypoint": "a:b", "backend": "EnvPool"}},
    {"env": ENV | {"backend": "TorchRL"}},
    {"env": SERVED | {"backend": "TorchRL", "entrypoint": "a:b"}},
    {"env": ENV | SERVED | {"processes": 2}},
    {"env": ENV | SERVED | {"servers": {"replicas": 0}}},
    {"env": ENV | SERVED | {"numEnvs": 512, "servers": {"replicas": 257}}, "collect": {"framesPerBatch": 512}},
    {"env": ENV | {"wrappers": [{"entrypoint": "a:b"}] * 33}},
    {"policy": {"mlp": {"hidden": [1] * 17}}},
    {"policy": {"entrypoint": "a.b"}},
    {"policy": {"mlp": {"activation": "tanh"}}},
    {"collect": {"framesPerBatch": 64, "setTruncated": True, "trajsPerBatch": 1}},
    {"collect": {"framesPerBatch": 64, "resetWhenDone": False, "trajsPerBatch": 1}},
    {"collect": {"framesPerBatch": 64, "resetWhenDone": False, "resetAtEachIter": True}},
    {"collect": {"framesPerBatch": 64, "trajFormat": "Cat"}},
    {"collect": {"framesPerBatch": 64, "infoKeys": [""]}},
    {"collect": {"framesPerBatch": 2**31}},
    {"weights": {"scheme": "rollfleet.schemes.Trained"}},
    {"weights": {"precision": "float16"}},
    {"delivery": {"maxBatchesAhead": 0}},
    {"stragglers": {"threshold": 1.5}},
    {"source": {"configMap": "My Code"}},
    {"source": {}},
    {"resources": {"gpu": {"resource": "nvidia.com/"}}},
    {"resources": {"requests": {"cpu": "4 cores"}}},
    {"autoscale": {"minWorkers": 3, "maxWorkers": 2}},
    {"autoscale": {"maxWorkers": 2, "targetWait": 1}},
    {"autoscale": {}},
    {"ttlSecondsAfterFinished": -1},
    {"learner": {}},
    {"template": "spec"},
]
# JSON has neither NaN nor keys that are no text; it knows no whole numbers, and null means that a field is left out.
NOT_FOR_JSON = ("nan cannot", "is not text", "got 2.0", "got null")
SPECS: list[Any] = [spec for spec, message in RULES if not any(part in message for part in NOT_FOR_JSON)] + MORE


def refusal(api_server: ApiServer, namespace: str, spec: dict[str, Any]) -> str:
    """What the API server says to a job, as kubectl would ask it; empty: it takes it."""
    job = job_data(**spec) | {"metadata": {"name": "mistaken", "namespace": namespace}}
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    try:
        api_server.request("POST", KINDS[KIND].path(namespace), job, query=query)
    except ApiError as error:
        return str(error)
    return ""


def test_validate_and_the_api_server_refuse_the_same_jobs(lab: Lab, api_server: ApiServer) -> None:
    assert refusal(api_server, lab.namespace, {}) == ""
    taken = []
    for spec in SPECS:
        with pytest.raises(JobErrors):
            parse_job(job_data(**spec))
        if not refusal(api_server, lab.namespace, spec):
            taken.append(spec)
    assert taken == []


def test_each_rule_of_the_definition_reports_a_violation(lab: Lab, api_server: ApiServer) -> None:
    result = "\n".join(refusal(api_server, lab.namespace, spec) for spec in SPECS)
    unheard = [text for text in rules_of_a_spec() if not re.search(text, result)]
    assert unheard == []


def rules_of_a_spec() -> Iterator[str]:
    """What each rule says, as a pattern; those of changes are tried with jobs that are there."""
    definition: Any = crd()
    parts = [definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]]
    while parts:
        part = parts.pop()
        parts += part.get("properties", {}).values()
        parts += [part[key] for key in ("items", "additionalProperties") if key in part]
        for rule in part.get("x-kubernetes-validations", []):
            if "oldSelf" not in rule["rule"]:
                with_numbers = re.match(r"'(.*)'\.format", rule.get("messageExpression", ""))
                yield re.escape(with_numbers[1]).replace("%d", r"\d+") if with_numbers else re.escape(rule["message"])


# Changes, which only the API server sees.


def refused(lab: Lab, **spec: Any) -> str:
    with pytest.raises(ApiError) as error:
        lab.apply(**spec)
    assert error.value.status == 422
    return str(error.value)


def test_name_that_is_too_long_is_refused_with_its_limit(lab: Lab) -> None:
    assert "at most 40 characters" in refused(lab, name="x" * 41)


def test_mode_is_fixed(lab: Lab) -> None:
    lab.apply(mode="Async")
    assert "delete and recreate the job" in refused(lab, mode="Sync")


def test_complete_job_takes_no_edits(lab: Lab) -> None:
    lab.apply()
    lab.learner_says(LearnerPhase.COMPLETE)
    lab.wait_condition("Complete", "LearnerDone")
    assert "the job is complete" in refused(lab, workers=5)


def test_a_mapping_can_be_emptied_by_server_side_apply(lab: Lab) -> None:
    def spec(policy: Any, quantities: Any, free: Any) -> Any:
        resources = {"requests": quantities, "limits": quantities}
        code = {"env": ENV | {"kwargs": free}, "policy": {"mlp": policy}, "template": free}
        return code | {"resources": resources, "learner": {"template": free}, "suspend": True}

    lab.apply(**spec({"hidden": [64, 64], "activation": "Tanh"}, {"cpu": 1}, {"spec": {"nodeName": "a"}}))
    emptied = lab.apply(**spec({}, {}, {}))["spec"]
    assert (emptied["policy"]["mlp"], emptied["env"]["kwargs"], emptied["template"]) == ({}, {}, {})


def test_defaults_are_filled_in(lab: Lab) -> None:
    spec = lab.apply()["spec"]
    assert (spec["mode"], spec["failure"]["maxRestartsPerWorker"], spec["delivery"]["maxBatchesAhead"]) == (
        "Async",
        10,
        1,
    )
