"""The metadata of a job: its name, its labels, and the fields that Kubernetes adds.

A job's name becomes part of NATS subjects (one token each for namespace and name) and of the names of its Kubernetes
objects.
"""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, ConfigDict, Field

from rollfleet_api.fields import Model, refusal

MAX_LABEL_LENGTH: Final = 63
"""The most characters of a DNS label (RFC 1123), and therefore of a pod's host name."""

WORKER_JOB_INFIX: Final = "-workers-"
DIGEST_LENGTH: Final = 8
"""Hex digits of a digest, such as that of a pod template in the name of its Kubernetes Job."""

MAX_WORKER_INDEX_DIGITS: Final = 5

MAX_NAME_LENGTH: Final = MAX_LABEL_LENGTH - len(WORKER_JOB_INFIX) - DIGEST_LENGTH - len("-") - MAX_WORKER_INDEX_DIGITS
"""The most characters of a job's name (40). A worker's host: `<name>-workers-<8 hex digits>-<up to 5 digits>`."""

DNS_LABEL_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

NAME_TOO_LONG: Final = (
    f"at most {MAX_NAME_LENGTH} characters: workers' host names are "
    f"`<name>{WORKER_JOB_INFIX}<{DIGEST_LENGTH} hex digits>-<index of up to {MAX_WORKER_INDEX_DIGITS} digits>`, "
    f"and a host name has at most {MAX_LABEL_LENGTH}"
)


def _dns_label(text: str, max_length: int, too_long: str) -> str:
    if not re.fullmatch(DNS_LABEL_PATTERN, text):
        message = f"`{text}` may only hold a-z, 0-9 and `-`, and must begin and end with a letter or digit"
        suggestion = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:max_length].rstrip("-")
        raise refusal(("", f"{message}; write e.g. `{suggestion}`" if suggestion else message))
    if len(text) > max_length:
        shorter = text[:max_length].rstrip("-")
        raise refusal(("", f"`{text}` has {len(text)} characters; {too_long}; write e.g. `{shorter}`"))
    return text


def _name(text: str) -> str:
    return _dns_label(text, MAX_NAME_LENGTH, NAME_TOO_LONG)


def _namespace(text: str) -> str:
    return _dns_label(text, MAX_LABEL_LENGTH, f"a namespace has at most {MAX_LABEL_LENGTH} characters")


JobName = Annotated[str, AfterValidator(_name)]
"""A DNS label of at most `MAX_NAME_LENGTH` characters."""

Namespace = Annotated[str, AfterValidator(_namespace)]
"""A DNS label of at most 63 characters."""


class Metadata(Model):
    """Kubernetes' metadata of a job. All but the first four fields belong to the API server; others are left out."""

    model_config = ConfigDict(extra="ignore")

    name: JobName = Field(description="The job's name: a DNS label.", examples=["cartpole"])
    namespace: Namespace = Field(default="default", description="The Kubernetes namespace.")
    labels: dict[str, str] = Field(default={}, description="Labels, for selectors.")
    annotations: dict[str, str] = Field(default={}, description="Annotations of users and tools.")

    uid: str | None = Field(default=None, description="Unique id in the cluster, never used again.")
    generation: int | None = Field(default=None, description="Number of changes of the spec.")
    resource_version: str | None = Field(default=None, description="Version of the object; changes with every write.")
    creation_timestamp: str | None = Field(default=None, description="Creation time (RFC 3339).")
