"""The kinds of objects that the operator speaks of, and where the API server keeps them."""

from dataclasses import dataclass
from typing import Final

from rollfleet_api.job import API_VERSION, KIND


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind.

    Attributes:
        api_version: `group/version`, or `v1`.
        plural: As the API server's paths have it.
    """

    api_version: str
    plural: str

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Where an object, or a list of them, is; None: the list over all namespaces."""
        group = "api" if "/" not in self.api_version else "apis"
        place = f"/namespaces/{namespace}" if namespace is not None else ""
        rest = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"/{group}/{self.api_version}{place}/{self.plural}{rest}"


KINDS: Final = {
    KIND: Kind(api_version=API_VERSION, plural="collectorjobs"),
    "Job": Kind(api_version="batch/v1", plural="jobs"),
    "Pod": Kind(api_version="v1", plural="pods"),
    "ServiceAccount": Kind(api_version="v1", plural="serviceaccounts"),
    "NetworkPolicy": Kind(api_version="networking.k8s.io/v1", plural="networkpolicies"),
    "Secret": Kind(api_version="v1", plural="secrets"),
    "ConfigMap": Kind(api_version="v1", plural="configmaps"),
    "Event": Kind(api_version="v1", plural="events"),
}

WATCHED: Final = ("Job", "Pod", "ServiceAccount", "NetworkPolicy")
"""Children whose changes are followed. Not Secrets: to follow ours would need a right to read everybody's."""
