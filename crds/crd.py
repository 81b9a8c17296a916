"""The CustomResourceDefinition of a CollectorJob, generated from the models.

`make crd` writes it. Pydantic writes JSON Schema, but the API server accepts only "structural" OpenAPI 3.0. Therefore
references are resolved, and keywords that OpenAPI lacks are translated.
"""

from copy import deepcopy
from pathlib import Path
from typing import Final, cast

import yaml
from pydantic import JsonValue

from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.status import UNSEEN

Schema = dict[str, JsonValue]

FILES: Final = ("crds/collectorjob.yaml", "charts/rollfleet/files/collectorjob.yaml")
"""Where it stands, from the repository's root."""

_HEADER: Final = "# Generated from sdk/rollfleet_api by `make crd`; edit the models.\n"

_WORDS: Final = """
description type format enum minimum maximum maxLength maxItems pattern anyOf required
x-kubernetes-int-or-string x-kubernetes-preserve-unknown-fields
x-kubernetes-list-type x-kubernetes-list-map-keys x-kubernetes-validations
"""
_KEPT: Final = tuple(_WORDS.split())
"""Keywords that are copied. Not `additionalProperties: false`: the API server refuses or prunes unknown fields."""

_COLUMNS: Final = (
    ("Mode", "string", ".spec.mode"),
    ("Workers", "integer", ".spec.workers"),
    ("Ready", "integer", ".status.workers.ready"),
    ("GPUs", "integer", ".status.gpus"),
    ("Frames", "integer", ".status.frames"),
    ("FPS", "number", ".status.framesPerSecond"),
    ("Return", "number", ".status.meanReturn"),
    ("Version", "integer", ".status.publishedVersion"),
    ("Phase", "string", ".status.phase"),
    ("Age", "date", ".metadata.creationTimestamp"),
)


def crd() -> Schema:
    """Return the CustomResourceDefinition as plain data."""
    group, version = API_VERSION.split("/")
    plural = f"{KIND.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": plural,
                "singular": KIND.lower(),
                "shortNames": ["cj", "cjob"],  # where `cj` means CronJobs to kubectl, `cjob` works
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.workers",
                            "statusReplicasPath": ".status.workers.ready",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in _COLUMNS
                    ],
                    "schema": {"openAPIV3Schema": _root_schema()},
                }
            ],
        },
    }


def crd_yaml() -> str:
    """Return the CustomResourceDefinition as the text of its files."""
    return _HEADER + yaml.safe_dump(crd(), sort_keys=False, width=120, allow_unicode=True)


def _root_schema() -> Schema:
    schema = cast(Schema, CollectorJob.model_json_schema(by_alias=True, mode="validation"))
    root = _structural(schema, cast(Schema, schema["$defs"]), defaults=True)
    properties = cast(Schema, root["properties"])
    # The API server has its own schemas of these three and allows no others here.
    properties["apiVersion"] = {"type": "string"}
    properties["kind"] = {"type": "string"}
    properties["metadata"] = {"type": "object"}
    cast(Schema, properties["status"])["default"] = {"observedGeneration": UNSEEN}
    root["required"] = ["spec"]
    return root


def _structural(schema: Schema, definitions: Schema, *, defaults: bool) -> Schema:
    """Translate a schema of pydantic's into a structural one.

    Args:
        schema: The schema from pydantic.
        definitions: The targets of its references.
        defaults: Whether to write defaults. The status has but one: the API server must not fill it in.
    """
    is_optional, schema = "anyOf" in schema, _resolved(schema, definitions)
    result: Schema = deepcopy({key: schema[key] for key in _KEPT if key in schema})  # YAML marks what is shared
    free = "properties" not in schema or (is_optional and not schema.get("required"))
    if defaults and free and result.get("type") == "object":
        # It may be `{}`. Server-side apply would make a mapping null that loses its last field, which the API server
        # refuses. An atomic one is replaced as a whole, and others own no defaults in it.
        result["x-kubernetes-map-type"], defaults = "atomic", False
    if result.get("type") == "integer":
        result["format"] = "int64"
    if "exclusiveMinimum" in schema:  # a number in JSON Schema, a flag in OpenAPI 3.0
        result |= {"minimum": schema["exclusiveMinimum"], "exclusiveMinimum": True}
    if "exclusiveMaximum" in schema:
        result |= {"maximum": schema["exclusiveMaximum"], "exclusiveMaximum": True}
    if defaults and schema.get("default") not in (None, {}, []):
        # The defaults of a part stand in its fields; `{}` makes the API server create the part and fill them in.
        result["default"] = {} if "properties" in schema else schema["default"]
    if "properties" in schema:
        result["properties"] = {
            name: _structural(cast(Schema, part), definitions, defaults=defaults and name != "status")
            for name, part in cast(Schema, schema["properties"]).items()
        }
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            result[key] = _structural(cast(Schema, schema[key]), definitions, defaults=defaults)
    return result


def _resolved(schema: Schema, definitions: Schema) -> Schema:
    """Resolve references, and drop the null of optional fields (in YAML such a field is left out)."""
    if "$ref" in schema:
        target = cast(Schema, definitions[str(schema["$ref"]).rsplit("/", 1)[-1]])
        return _resolved({**target, **{key: value for key, value in schema.items() if key != "$ref"}}, definitions)
    choices = schema.get("anyOf")
    if isinstance(choices, list) and {"type": "null"} in choices:
        (choice,) = (cast(Schema, choice) for choice in choices if choice != {"type": "null"})
        around = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        return _resolved({**choice, **around}, definitions)
    return schema


if __name__ == "__main__":
    for file in FILES:
        (Path(__file__).parents[1] / file).write_text(crd_yaml(), encoding="utf-8")
