"""Where and how workers run: code, resources, pods and their failures. Most of it has a meaning on a cluster only."""

from collections.abc import Callable
from typing import Annotated, Final, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from rollfleet_api.fields import FreeForm, Model, Quantity, matches, matching_text, refusal, rule

OBJECT_NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
RESOURCE_NAME_PATTERN: Final = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
IMAGE_PATTERN: Final = r"^[^\s]+$"


_EXPECTED_OBJECT_NAME: Final = "expected the name of a ConfigMap: up to 253 of a-z, 0-9, `-` and `.`, e.g. `my-code`"
_EXPECTED_RESOURCE_NAME: Final = "expected the name of a resource, e.g. `nvidia.com/gpu` or `nvidia.com/mig-1g.10gb`"
_EXPECTED_IMAGE: Final = "expected the name of an image, e.g. `my-org/my-worker:1.0`"


MAX_WORKERS: Final = 65_536
"""Workers of a job: the bits that a trajectory id has for them, and the digits that a host name has."""

FEWEST_OVER_MOST: Final = "must not be above `autoscale.maxWorkers`"


def _text(pattern: str, max_length: int, expected: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not matches(text, pattern, max_length):
            raise refusal(("", f"{expected}, got `{text}`"))
        return text

    return check


ObjectName = Annotated[
    str,
    AfterValidator(_text(OBJECT_NAME_PATTERN, 253, _EXPECTED_OBJECT_NAME)),
    matching_text(OBJECT_NAME_PATTERN, 253, _EXPECTED_OBJECT_NAME),
]
"""The name of a Kubernetes object (RFC 1123 subdomain)."""

ResourceName = Annotated[
    str,
    AfterValidator(_text(RESOURCE_NAME_PATTERN, 317, _EXPECTED_RESOURCE_NAME)),
    matching_text(RESOURCE_NAME_PATTERN, 317, _EXPECTED_RESOURCE_NAME),
]
"""The name of a resource that a node offers."""

Image = Annotated[
    str,
    AfterValidator(_text(IMAGE_PATTERN, 1024, _EXPECTED_IMAGE)),
    matching_text(IMAGE_PATTERN, 1024, _EXPECTED_IMAGE),
]
"""The name of a container image."""


class SourceSpec(Model):
    """Python files for the workers, so that no image need be built for them."""

    config_map: ObjectName = Field(
        description="A ConfigMap in the job's namespace; its `.py` files are put on the workers' import path.",
        examples=["my-code"],
    )


class GpuSpec(Model):
    """The GPUs of each worker."""

    count: int = Field(default=0, ge=0, le=1024, description="GPUs of each worker; 0: none, and none is visible to it.")
    resource: ResourceName = Field(
        default="nvidia.com/gpu", description="What nodes call it, e.g. `nvidia.com/mig-1g.10gb` or `amd.com/gpu`."
    )


class ResourcesSpec(Model):
    """What each worker asks for."""

    gpu: GpuSpec = Field(default=GpuSpec(), description="The GPUs of each worker.")
    requests: dict[str, Quantity] = Field(
        default={}, description='What each worker gets for sure, e.g. `{cpu: "4", memory: 8Gi}`.'
    )
    limits: dict[str, Quantity] = Field(default={}, description="What each worker may never exceed.")


class LearnerSpec(Model):
    """The trainer as a pod of the job, with the learner's credentials mounted."""

    template: FreeForm = Field(
        description="The pod template: `{spec: {containers: [...]}}`; the first container is the learner.",
        examples=["{spec: {containers: [...]}}"],
    )


class AutoscaleSpec(Model):
    """Between which numbers of workers the operator chooses, and by what."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule("self.minWorkers <= self.maxWorkers", FEWEST_OVER_MOST, field=".minWorkers"),
            ]
        }
    )

    min_workers: int = Field(default=1, ge=1, le=MAX_WORKERS, description="The fewest workers.")
    max_workers: int = Field(ge=1, le=MAX_WORKERS, description="The most workers.", examples=["16"])
    target_wait: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="The share of its time that the learner's loop may wait for data: above it workers are added, "
        "well below it they are taken away.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_workers > self.max_workers:
            raise refusal(("minWorkers", FEWEST_OVER_MOST))
        return self


class FailureSpec(Model):
    """What is made of workers that fail, hang or fall silent, and when a job with such is given up."""

    max_restarts_per_worker: int = Field(
        default=10,
        ge=0,
        le=32_767,
        description="Restarts of one worker after which the job fails. Disruptions by the cluster do not count.",
    )
    pending_deadline_seconds: int = Field(
        default=600,
        ge=0,
        le=2**31 - 1,
        description="Seconds that a worker may wait for a node, and again on it until it starts, before the job fails; "
        "0: for ever.",
    )
    suspect_after_seconds: int = Field(
        default=10,
        ge=3,
        le=86_400,
        description="Seconds in one environment step, or without a heartbeat, after which a worker is told of. Rounds "
        "of mode Sync do not wait for one that is silent.",
    )
