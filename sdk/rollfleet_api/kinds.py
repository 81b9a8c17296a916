"""The kinds of objects that Rollfleet uses, and their paths on the API server."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from rollfleet_api.job import API_VERSION, KIND


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of objects: `api_version` is `group/version` or `v1`, `plural` is its name in paths."""

    api_version: str
    plural: str

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the path of an object, or of a list of them; `namespace` None: in all namespaces."""
        group = "api" if "/" not in self.api_version else "apis"
        scope = ("namespaces", namespace) if namespace is not None else ()
        parts = (quote(part, safe="") for part in (*scope, self.plural, name, subresource) if part)
        return f"/{group}/{self.api_version}/{'/'.join(parts)}"


KINDS: Final = {
    KIND: Kind(api_version=API_VERSION, plural="collectorjobs"),
    "Job": Kind(api_version="batch/v1", plural="jobs"),
    "Pod": Kind(api_version="v1", plural="pods"),
    "ServiceAccount": Kind(api_version="v1", plural="serviceaccounts"),
    "NetworkPolicy": Kind(api_version="networking.k8s.io/v1", plural="networkpolicies"),
    "Secret": Kind(api_version="v1", plural="secrets"),
    "ConfigMap": Kind(api_version="v1", plural="configmaps"),
    "Event": Kind(api_version="v1", plural="events"),
    "Lease": Kind(api_version="coordination.k8s.io/v1", plural="leases"),
    "Service": Kind(api_version="v1", plural="services"),
    "Deployment": Kind(api_version="apps/v1", plural="deployments"),
    "PersistentVolumeClaim": Kind(api_version="v1", plural="persistentvolumeclaims"),
    "Namespace": Kind(api_version="v1", plural="namespaces"),
    "SelfSubjectAccessReview": Kind(api_version="authorization.k8s.io/v1", plural="selfsubjectaccessreviews"),
}
