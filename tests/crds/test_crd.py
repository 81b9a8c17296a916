"""The CRD in crds/ agrees with the models and is a structural schema."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from crds import crd

ROOT = Path(__file__).parents[2]
VERSION: Any = yaml.safe_load(crd.crd_yaml())["spec"]["versions"][0]
SCHEMA: Any = VERSION["schema"]["openAPIV3Schema"]
SPEC: Any = SCHEMA["properties"]["spec"]


def parts(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from parts(part, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from parts(schema[key], f"{path}.{key}")


@pytest.mark.parametrize("file", crd.FILES)
def test_file_is_current(file: str) -> None:
    assert (ROOT / file).read_text() == crd.crd_yaml(), "run make crd"


def test_schema_is_structural() -> None:
    for path, part in parts(SCHEMA):
        assert "type" in part or part.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "$defs", "title", "const", "examples"} & set(part), path
        assert part.get("additionalProperties") is not False, path
        assert "anyOf" not in part or part["x-kubernetes-int-or-string"], path


def test_every_field_is_described() -> None:
    for path, part in parts(SPEC, "spec"):
        if not path.endswith((".items", ".additionalProperties")):
            assert part.get("description"), path


def test_status_has_no_default_but_that_no_operator_has_seen_the_job() -> None:
    assert [part["default"] for _, part in parts(SCHEMA["properties"]["status"]) if "default" in part] == [
        {"observedGeneration": -1}
    ]


def test_columns_and_scale_point_to_fields_that_exist() -> None:
    known = {path for path, _ in parts(SCHEMA)} | {".metadata.creationTimestamp"}
    assert {column["jsonPath"] for column in VERSION["additionalPrinterColumns"]} <= known
    assert set(VERSION["subresources"]["scale"].values()) <= known


def test_rules_keep_the_limits_of_the_api_server() -> None:
    for path, part in parts(SCHEMA):
        for rule in part.get("x-kubernetes-validations", []):
            assert set(rule) <= {"rule", "message", "messageExpression", "fieldPath"}, path
            assert 0 < len(rule["message"]) <= 2048, path
            assert "\n" not in rule["message"], path
            # A default is checked as `{}`, before what is below it is filled in: its rules must not expect fields.
            if part.get("default") == {}:
                assert rule["rule"].startswith("!has("), path
