"""What a job is called, and what Kubernetes keeps beside that.

A job's name goes into NATS subjects (one token each for namespace and name) and into the names of what the operator
makes.
"""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field, WithJsonSchema

from rollfleet_api.fields import FreeForm, Model, refusal

MAX_LABEL_LENGTH: Final = 63
"""Characters of a DNS label (RFC 1123), and so of a pod's host name."""

WORKER_JOB_INFIX: Final = "-workers-"
TEMPLATE_HASH_LENGTH: Final = 8
MAX_WORKER_INDEX_DIGITS: Final = 5

MAX_NAME_LENGTH: Final = (
    MAX_LABEL_LENGTH - len(WORKER_JOB_INFIX) - TEMPLATE_HASH_LENGTH - len("-") - MAX_WORKER_INDEX_DIGITS
)
"""Characters of a job's name, 40: a worker's host is `<name>-workers-<8 hex digits>-<index of up to 5 digits>`."""

DNS_LABEL_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

NAME_TOO_LONG: Final = (
    f"at most {MAX_NAME_LENGTH} characters: workers' host names are "
    f"`<name>{WORKER_JOB_INFIX}<{TEMPLATE_HASH_LENGTH} hex digits>-<index of up to {MAX_WORKER_INDEX_DIGITS} digits>`, "
    f"and a host name has {MAX_LABEL_LENGTH} at most"
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
    return _dns_label(text, MAX_LABEL_LENGTH, f"a namespace has at most {MAX_LABEL_LENGTH}")


JobName = Annotated[
    str,
    AfterValidator(_name),
    WithJsonSchema({"type": "string", "pattern": DNS_LABEL_PATTERN, "maxLength": MAX_NAME_LENGTH}),
]
"""A DNS label of at most `MAX_NAME_LENGTH` characters."""

Namespace = Annotated[
    str,
    AfterValidator(_namespace),
    WithJsonSchema({"type": "string", "pattern": DNS_LABEL_PATTERN, "maxLength": MAX_LABEL_LENGTH}),
]
"""A DNS label of at most 63 characters."""


class Metadata(Model):
    """Kubernetes' metadata of a job. All but the first four fields are the API server's."""

    name: JobName = Field(description="The job's name: a DNS label.", examples=["cartpole"])
    namespace: Namespace = Field(default="default", description="The Kubernetes namespace.")
    labels: dict[str, str] = Field(default={}, description="Labels, for selecting.")
    annotations: dict[str, str] = Field(default={}, description="Notes of people and tools.")

    uid: str | None = Field(default=None, description="Unique over the cluster's life.")
    generation: int | None = Field(default=None, description="Counts the changes of the spec.")
    resource_version: str | None = Field(default=None, description="Changes with every write.")
    creation_timestamp: str | None = Field(default=None, description="When it was created (RFC 3339).")
    deletion_timestamp: str | None = Field(default=None, description="When its deletion was asked for (RFC 3339).")
    deletion_grace_period_seconds: int | None = Field(default=None, description="Seconds until deletion is forced.")
    generate_name: str | None = Field(default=None, description="The prefix that the API server made the name from.")
    self_link: str | None = Field(default=None, description="Unused since Kubernetes 1.20.")
    finalizers: list[str] = Field(default=[], description="Who must agree before it is deleted.")
    owner_references: list[FreeForm] = Field(default=[], description="What is deleted together with this job's owner.")
    managed_fields: list[FreeForm] = Field(default=[], description="Which tool wrote which field.")
