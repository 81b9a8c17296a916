"""Requests to a cluster's API server, over plain dicts. They are not repeated: callers decide when to try again."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rollfleet.cluster.refusals import no_client, no_kubeconfig, refusal, unreachable, unusable_kubeconfig
from rollfleet.errors import ClusterError
from rollfleet_api.kinds import KINDS

Manifest = dict[str, Any]
"""An object of the cluster, in the words of its YAML."""

TIMEOUT_S: Final = 15.0
WATCH_S: Final = 240
"""The length of a watch: the next one continues where it ends."""

FIELD_MANAGER: Final = "rollfleet-sdk"
_WRITE: Final = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}  # an unknown field is an error


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of objects, and its version, from which a watch can start."""

    items: list[Manifest]
    resource_version: str


class ClusterApi:
    """A client of a cluster, with the rights of a kubeconfig's user; in a pod without kubeconfig, of its account.

    Each method raises `ClusterError` if the cluster refuses or cannot be reached.

    Args:
        context: The kubeconfig's context. None: the current one.
        namespace: The default namespace. None: that of the context or of the pod, else `default`.
        kubeconfig: The file. None: `KUBECONFIG`, or `~/.kube/config`.

    Attributes:
        client: The official client, for requests that have no method here.
        namespace: The default namespace. No method uses it by itself.

    Raises:
        ClusterError: The kubeconfig is missing or unusable, or the package `kubernetes` is missing.
    """

    def __init__(
        self, *, context: str | None = None, namespace: str | None = None, kubeconfig: str | Path | None = None
    ) -> None:
        try:  # not at the top: it takes 0.4 s
            from kubernetes.client import ApiClient, Configuration
            from kubernetes.dynamic import DynamicClient
        except ImportError as error:
            raise no_client(error) from error
        configuration = Configuration()
        configuration.retries = False
        default = _load(configuration, context, kubeconfig)
        self.client = ApiClient(configuration)
        self.client.user_agent = FIELD_MANAGER
        self.namespace: str = namespace or default or "default"
        self._dynamic = DynamicClient(self.client, discoverer=lambda *_: None)  # the paths are known

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return an object; None: it does not exist."""
        try:
            return self._request("GET", kind, namespace, name)
        except ClusterError as error:
            if error.reason == "NotFound":
                return None
            raise

    def list(self, kind: str, namespace: str | None, *, labels: str = "", fields: str = "") -> Listing:
        """List the objects that match the selectors; `namespace` None: in all namespaces."""
        query = {"labelSelector": labels, "fieldSelector": fields}
        found = self._request("GET", kind, namespace, query=query)
        return Listing(found["items"], found["metadata"]["resourceVersion"])

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Create an object, or only ask whether it would be; `metadata.generateName` makes up a name."""
        query = _WRITE | {"dryRun": "All" if dry_run else ""}
        return self._request("POST", manifest["kind"], manifest["metadata"]["namespace"], query=query, body=manifest)

    def apply(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Create or change an object by server-side apply, or only ask. Fields that others have set stay."""
        metadata = manifest["metadata"]
        where = (manifest["kind"], metadata["namespace"], metadata["name"])
        query = _WRITE | {"force": "true", "dryRun": "All" if dry_run else ""}
        return self._request("PATCH", *where, query=query, body=manifest, form="apply-patch+yaml")

    def patch(self, kind: str, namespace: str, name: str, patch: Manifest) -> Manifest:
        """Change fields of an object by a JSON merge patch; with `metadata.resourceVersion`, only that version."""
        return self._request("PATCH", kind, namespace, name, query=_WRITE, body=patch)

    def delete(self, kind: str, namespace: str, name: str) -> bool:
        """Delete an object, and then its children. Return whether it existed."""
        try:
            self._request("DELETE", kind, namespace, name, body={"propagationPolicy": "Background"})
        except ClusterError as error:
            if error.reason == "NotFound":
                return False
            raise
        return True

    def watch(
        self, kind: str, namespace: str | None, resource_version: str, *, fields: str = "", for_s: float = WATCH_S
    ) -> Iterator[tuple[Literal["ADDED", "MODIFIED", "DELETED"], Manifest]]:
        """Yield the changes of objects after a version of a list, for at most `for_s` seconds, or `WATCH_S`.

        Raises:
            ClusterError: With the reason `Expired`: list again, and watch from that version.
        """
        most_s = math.ceil(min(max(for_s, 1), WATCH_S))
        query = {"watch": "1", "timeoutSeconds": most_s, "resourceVersion": resource_version, "fieldSelector": fields}
        for line in self._lines(kind, namespace, query=query, silent_s=most_s + TIMEOUT_S):
            with self._translated("watch", kind, namespace, ""):
                event = json.loads(line)
            if event["type"] == "ERROR":
                raise refusal(event["object"].get("code", 0), event["object"], "watch", kind, namespace, "")
            yield event["type"], event["object"]

    def logs(
        self, namespace: str, pod: str, container: str = "", *, follow: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        """Yield the lines of a container's log, without their ends: the `tail` last ones, or all.

        `container` empty: of the pod's only one. With `follow`, wait for new lines until the container ends.
        """
        query = {"container": container, "follow": "true" if follow else "", "tailLines": "" if tail is None else tail}
        for line in self._lines("Pod", namespace, pod, "log", query=query, silent_s=None if follow else TIMEOUT_S):
            yield line.decode(errors="replace")

    def version(self) -> str:
        """Return the version of the cluster, such as `v1.33.1`."""
        with self._translated("get", "/version", None, ""):
            return str(json.loads(self._send("GET", "/version").data)["gitVersion"])

    def _request(
        self,
        method: str,
        kind: str,
        namespace: str | None,
        name: str = "",
        *,
        query: Manifest | None = None,
        body: Manifest | None = None,
        form: Literal["merge-patch+json", "apply-patch+yaml"] = "merge-patch+json",
    ) -> Manifest:
        options = {"content_type": f"application/{form}"} if method == "PATCH" else {}
        with self._translated(_verb(method, name), kind, namespace, name):
            response = self._send(method, KINDS[kind].path(namespace, name), query=query, body=body, **options)
            found: Manifest = json.loads(response.data)
        return found

    def _lines(
        self,
        kind: str,
        namespace: str | None,
        name: str = "",
        subresource: str = "",
        *,
        query: Manifest,
        silent_s: float | None,
    ) -> Iterator[bytes]:
        path, timeout = KINDS[kind].path(namespace, name, subresource), (TIMEOUT_S, silent_s)
        verb, subject, rest = "get" if name else "watch", "/".join(filter(None, (kind, subresource))), b""
        with (
            self._translated(verb, subject, namespace, name),
            closing(self._send("GET", path, query=query, _request_timeout=timeout)) as response,
        ):
            for data in response.stream(None):
                *lines, rest = (rest + data).split(b"\n")
                yield from lines
        if rest:
            yield rest

    def _send(self, method: str, path: str, *, query: Manifest | None = None, **options: Any) -> Any:
        """Return urllib3's response, not read yet."""
        pairs = [(key, value) for key, value in (query or {}).items() if value != ""]
        options = {"_request_timeout": (TIMEOUT_S, TIMEOUT_S), "serialize": False} | options
        return self._dynamic.request(method, path, query_params=pairs, header_params={}, **options)

    @contextmanager
    def _translated(self, verb: str, kind: str, namespace: str | None, name: str) -> Iterator[None]:
        """Translate the errors of a request; see `refusal` for the arguments."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:
            if not error.status:  # no answer: TLS failed
                raise unreachable(self.client.configuration.host, error) from error
            raise refusal(error.status, _status(error.body), verb, kind, namespace, name) from error
        except (HTTPError, OSError) as error:
            raise unreachable(self.client.configuration.host, error) from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            other = ValueError("what answers there is no API server")
            raise unreachable(self.client.configuration.host, other) from error


def _load(configuration: Any, context: str | None, kubeconfig: str | Path | None) -> str | None:
    """Load a kubeconfig, or the account of this pod. Return the default namespace."""
    from kubernetes.config import ConfigException, incluster_config, load_kube_config
    from kubernetes.config.kube_config import KubeConfigMerger
    from yaml import YAMLError

    named = str(kubeconfig or os.environ.get("KUBECONFIG") or "")
    file = named or str(Path.home() / ".kube" / "config")
    try:
        if not any(Path(each).expanduser().exists() for each in file.split(os.pathsep) if each):
            if named or context or "KUBERNETES_SERVICE_HOST" not in os.environ:
                raise no_kubeconfig(file)
            incluster_config.load_incluster_config(configuration)
            return Path(incluster_config.SERVICE_TOKEN_FILENAME).with_name("namespace").read_text().strip()
        config = KubeConfigMerger(file).config  # `list_kube_config_contexts` refuses one without a current context
        known = {each["name"]: each.value for each in config["contexts"]}
        context = context or config["current-context"]
        if context not in known:
            raise unusable_kubeconfig(file, f"it has no context {context!r}; write one of {', '.join(known)}")
        load_kube_config(file, context=context, client_configuration=configuration)
    except (ConfigException, YAMLError, OSError, ValueError, TypeError, KeyError) as error:
        raise unusable_kubeconfig(file, str(error)) from error
    namespace: str | None = known[context]["context"].get("namespace")
    return namespace


def _verb(method: str, name: str) -> str:
    return {"GET": "get" if name else "list", "POST": "create"}.get(method, method.lower())


def _status(body: object) -> Manifest:
    """Return the API server's `Status`; of another answer, a `Status` with its text."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": text}
