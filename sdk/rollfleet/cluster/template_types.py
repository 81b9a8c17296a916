"""The types of a pod template's fields, by the official `kubernetes` client, which has those of one Kubernetes."""

import logging
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from pydantic import ValidationError, create_model

from rollfleet.cluster.refusals import no_client
from rollfleet_api.fields import Model
from rollfleet_api.wording import worded

log = logging.getLogger(__name__)

_QUANTITIES: Final = ("divisor", "limits", "overhead", "requests", "size_limit")  # numbers or text; the client has text


def template_problems(part: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of a part's pod template that Kubernetes cannot read: their path, and what to write."""
    template = part.get("template") if isinstance(part, Mapping) else None
    if not isinstance(template, Mapping) or not template:
        return
    try:
        model = _type("V1PodTemplateSpec")
        model.model_validate(template, by_alias=True, by_name=False)
    except ImportError as error:
        log.warning("`%s.template` was not checked: %s", path, no_client(error))
    except ValidationError as error:
        yield from ((f"{path}.template.{place}", message) for place, message in worded(error, model))


@cache
def _type(written: str) -> Any:
    """Return a type of the client's, such as `List[V1Container]`, as Python's. Its classes become models."""
    if parts := re.fullmatch(r"(List\[|Dict\[str, )(.+)\]", written):
        item = _type(parts[2])
        return list[item] if parts[1] == "List[" else dict[str, item | None]  # type: ignore[valid-type]
    from kubernetes.client import models  # not at the top: it takes a second

    if not hasattr(models, written):
        return {"str": str, "int": int, "bool": bool}.get(written, Any)
    client: Any = getattr(models, written)
    types = client.openapi_types | dict.fromkeys(_QUANTITIES, "object")
    fields: Any = {name: (_type(types[field]) | None, None) for field, name in client.attribute_map.items()}
    return create_model(written, __base__=Model, **fields)
