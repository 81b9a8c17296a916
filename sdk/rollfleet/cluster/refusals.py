"""Errors of the API server and of its client, as errors of ours: one line with the cause and what to write."""

import re
from collections.abc import Mapping
from typing import Any, Final

from rollfleet.errors import ClusterError
from rollfleet_api.job import KIND

USER_ROLE: Final = "rollfleet-user"
"""The ClusterRole of the chart with all rights that this package needs."""

_INSTALL: Final = (
    "install it with `helm install rollfleet charts/rollfleet --namespace rollfleet --create-namespace`: "
    "see docs/install.md"
)

_FIELDS: Final = "docs/fields.md has all fields; if it has this one, `rollfleet doctor` compares the versions"

_UNKNOWN: Final = re.compile(r'unknown field "(spec\..+?)"|\.(spec\.\S+): field not declared in schema')
"""A field that a definition does not have: to a write or a patch, and to an apply."""


def refusal(
    status: int, answer: Mapping[str, Any], verb: str, kind: str, namespace: str | None, name: str
) -> ClusterError:
    """Translate a refusal of the API server. What it or an admission webhook says stays word for word.

    Args:
        status: The HTTP status.
        answer: The `Status` object of the answer; with `message` only, if the answer was none.
        verb: The verb of the request, as roles name it.
        kind: The kind of the object, with its subresource.
        namespace: The object's namespace. None: all.
        name: The object's name. Empty: several, or not known yet.
    """
    message, reason = " ".join(str(answer.get("message", "")).split()), str(answer.get("reason") or "")
    subject = f"{kind} {namespace}/{name}" if namespace and name else f"{kind}s in {namespace or 'all namespaces'}"
    if status == 401:
        message = "the cluster does not accept your credentials: log in again, or name another context"
    elif status == 403 and '"system:anonymous"' in message:
        message = "the cluster got no credentials: the kubeconfig's user has none, or its plugin (`exec`) did not run"
    elif status == 403 and re.search(r'\bcannot \w+ resource "', message):
        message = f"you may not {verb} {subject}: ask the cluster's administrators for the ClusterRole {USER_ROLE}"
    elif status == 403 and "exceeded quota" in message:
        message += "; request less, or have the quota raised: `kubectl describe quota`"
    elif status == 404 and not reason:  # the path is unknown
        reason, message = "NotInstalled", f"Rollfleet is not installed on this cluster; {_INSTALL}"
        if kind != KIND:
            message = f"this cluster does not know {kind}"
    elif status == 404 and answer.get("details", {}).get("kind") == "namespaces":
        reason = "NoNamespace"
        message = f"the cluster has no namespace {namespace}: write another, or `kubectl create namespace {namespace}`"
    elif kind == KIND and (unknown := [*map("".join, _UNKNOWN.findall(message))]):
        reason, message = "Invalid", f"the jobs of this cluster have no {', '.join(unknown)}; {_FIELDS}"
    elif reason == "Conflict":
        message += "; another program changed it meanwhile: repeat the change"
    elif reason == "AlreadyExists":
        message += "; write another name, or delete it first"
    return ClusterError(message or f"the cluster refused to {verb} {subject} (HTTP {status})", status, reason)


def passes(error: ClusterError) -> bool:
    """Return whether a request may succeed later: no answer, an error of the server, too many requests."""
    return error.reason == "Unreachable" or error.status == 429 or error.status >= 500


def unreachable(server: str, error: Exception) -> ClusterError:
    """Translate a connection that failed."""
    cause = " ".join(str(getattr(error, "reason", None) or error).split()) or type(error).__name__
    cause = re.sub(r"^<?\w*Connection\w*(\([^)]*\))?( object at \w+>)?: ", "", cause)
    message = f"the cluster at {server} cannot be reached: {cause}; check the network, or name another context"
    return ClusterError(message, 0, "Unreachable")


def no_client(error: ImportError) -> ClusterError:
    """Return the error of a machine without the client of clusters."""
    message = f"the package kubernetes cannot be imported ({error}); pip install 'rollfleet[cluster]'"
    return ClusterError(message, 0, "NoClient")


def no_kubeconfig(file: str) -> ClusterError:
    """Return the error of a machine that names no cluster."""
    message = f"no cluster is named: {file} is missing, and this is no pod; set KUBECONFIG, or name the file"
    message += ". Runs of this machine need none: `rollfleet run --ui`, `rollfleet ui runs`"
    return ClusterError(message, 0, "NoKubeconfig")


def unusable_kubeconfig(file: str, cause: str) -> ClusterError:
    """Return the error of a kubeconfig that names no cluster or no user."""
    return ClusterError(f"the kubeconfig {file} cannot be used: {' '.join(cause.split())}", 0, "NoKubeconfig")


def tunnel_refused(error: BaseException, namespace: str, pod: str) -> ClusterError:
    """Translate a port-forward that failed, by websocket-client's error."""
    status = getattr(error, "status_code", 0)
    if status == 403:
        message = (
            f"you may not forward a port of Pod {namespace}/{pod}: ask the cluster's administrators for the "
            f"ClusterRole {USER_ROLE} in namespace {namespace}"
        )
        return ClusterError(message, status, "Forbidden")
    cause = " ".join(str(error).split(" -+-+- ")[0].split())
    return ClusterError(f"no port of Pod {namespace}/{pod} can be forwarded: {cause}", status, "Unreachable")
