"""What is known of the cluster: the newest of each object that a watch or a list told of.

Watches miss things (they are cut, and deletions in between are told to nobody), so that a list now and then replaces
all of a kind.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from rollfleet_api.job import KIND
from rollfleet_operator import names
from rollfleet_operator.manifest import Manifest, Ref, ref
from rollfleet_operator.nats_port import JobKey

_GONE: Final = 4096
"""Deletions that are remembered, so that a list which began before one does not bring the object back."""


class Cache:
    """Objects by the job that they belong to. For one event loop."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, Manifest] = {}
        self._children: defaultdict[JobKey, dict[Ref, Manifest]] = defaultdict(dict)
        self._gone: dict[str, None] = {}

    def put(self, manifest: Manifest) -> JobKey | None:
        """Remember an object, unless a newer state of it is known. Returns the job that it belongs to, if any."""
        key = job_key(manifest)
        if key is None:
            return None
        known = self._find(key, manifest)
        if (
            known is None
            or known["metadata"]["uid"] != manifest["metadata"]["uid"]
            or _version(known) <= _version(manifest)
        ):
            manifest["metadata"].pop("managedFields", None)
            self._store(key, manifest)
        return key

    def remove(self, manifest: Manifest) -> JobKey | None:
        """Forget an object. Returns the job that it belonged to, if any."""
        key = job_key(manifest)
        if key is None:
            return None
        uid = manifest["metadata"]["uid"]
        self._gone[uid] = None
        while len(self._gone) > _GONE:
            del self._gone[next(iter(self._gone))]
        known = self._find(key, manifest)
        if known and known["metadata"]["uid"] == uid:
            self._drop(key, ref(known))
        return key

    def replace(
        self, kind: str, manifests: Iterable[Manifest], resource_version: str, namespace: str | None = None
    ) -> set[JobKey]:
        """Take a list for the truth about a kind. Returns the jobs that it told something new of.

        Args:
            kind: What was listed.
            manifests: All that there are.
            resource_version: Of the list.
            namespace: What was listed; None: all namespaces.
        """
        changed: set[JobKey] = set()
        listed: set[str] = set()
        for manifest in manifests:
            key, uid = job_key(manifest), manifest["metadata"]["uid"]
            listed.add(uid)
            if key is not None and uid not in self._gone:
                known = self._find(key, manifest)
                if known is None or _version(known) < _version(manifest):
                    changed.add(key)
                self.put(manifest)
        for key, known in [*self._of_kind(kind)]:
            if namespace not in (None, key.namespace):
                continue
            if known["metadata"]["uid"] not in listed and _version(known) <= int(resource_version):
                self._drop(key, ref(known))
                changed.add(key)
        return changed

    def job(self, key: JobKey) -> Manifest | None:
        """A CollectorJob; None: there is none."""
        return self._jobs.get(key)

    def jobs(self) -> dict[JobKey, Manifest]:
        """All CollectorJobs."""
        return dict(self._jobs)

    def children(self, key: JobKey, uid: str) -> list[Manifest]:
        """What the job of that UID owns."""
        found = self._children.get(key, {})
        return [child for child in found.values() if owned_by(child, uid)]

    def pods(self, key: JobKey) -> list[Manifest]:
        """Pods of the job, and of earlier ones of its name."""
        return [child for which, child in self._children.get(key, {}).items() if which.kind == "Pod"]

    def _find(self, key: JobKey, manifest: Manifest) -> Manifest | None:
        if manifest["kind"] == KIND:
            return self._jobs.get(key)
        return self._children.get(key, {}).get(ref(manifest))

    def _store(self, key: JobKey, manifest: Manifest) -> None:
        if manifest["kind"] == KIND:
            self._jobs[key] = manifest
        else:
            self._children[key][ref(manifest)] = manifest

    def _drop(self, key: JobKey, which: Ref) -> None:
        if which.kind == KIND:
            self._jobs.pop(key, None)
            return
        self._children[key].pop(which, None)
        if not self._children[key]:
            del self._children[key]

    def _of_kind(self, kind: str) -> Iterator[tuple[JobKey, Manifest]]:
        if kind == KIND:
            yield from self._jobs.items()
            return
        for key, children in self._children.items():
            yield from ((key, child) for which, child in children.items() if which.kind == kind)


def job_key(manifest: Manifest) -> JobKey | None:
    """The job that an object belongs to, or is; None: it says of none.

    An owner counts more than a label, which anybody may have changed; a pod's owner is a run, so that its label counts.
    """
    metadata = manifest["metadata"]
    name = metadata["name"] if manifest["kind"] == KIND else None
    owners = [owner["name"] for owner in metadata.get("ownerReferences") or [] if owner["kind"] == KIND]
    name = name or next(iter(owners), None) or (metadata.get("labels") or {}).get(names.JOB)
    return JobKey(metadata["namespace"], name) if name else None


def owned_by(manifest: Manifest, uid: str) -> bool:
    """Whether an object is deleted together with the one of that UID."""
    return any(owner["uid"] == uid for owner in manifest["metadata"].get("ownerReferences") or [])


def _version(manifest: Manifest) -> int:
    """Grows with each write: resource versions are numbers, which Kubernetes promises since 1.35 and did before."""
    return int(manifest["metadata"]["resourceVersion"])
