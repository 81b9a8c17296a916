"""The newest known state of each object in the cluster, from watches and lists.

Watches miss changes: they are cut, and deletions in between are lost. Therefore a list replaces all objects of a kind
now and then.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from rollfleet_api.job import KIND
from rollfleet_operator import names
from rollfleet_operator.manifest import Manifest, Ref, ref
from rollfleet_operator.nats_port import JobKey

_GONE: Final = 4096
"""Number of remembered deletions: a list that began before a deletion must not restore the object."""


class Cache:
    """Objects by job. For one event loop."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, Manifest] = {}
        self._children: defaultdict[JobKey, dict[Ref, Manifest]] = defaultdict(dict)
        self._gone: dict[str, None] = {}

    def put(self, manifest: Manifest) -> JobKey | None:
        """Store an object, unless a newer state is known; return its job, if any."""
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
        """Remove an object; return its job, if any."""
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
        """Replace the objects of a kind by a list; return the jobs with changes.

        Args:
            kind: The kind.
            manifests: All objects of the kind.
            resource_version: The version of the list.
            namespace: The listed namespace; None: all namespaces.
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
        """Return a CollectorJob; None: it does not exist."""
        return self._jobs.get(key)

    def jobs(self) -> dict[JobKey, Manifest]:
        """Return all CollectorJobs."""
        return dict(self._jobs)

    def children(self, key: JobKey, uid: str) -> list[Manifest]:
        """Return the objects that the job with this UID owns."""
        found = self._children.get(key, {})
        return [child for child in found.values() if owned_by(child, uid)]

    def pods(self, key: JobKey) -> list[Manifest]:
        """Return the pods of the job, and of earlier jobs of its name."""
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
    """Return the job that an object belongs to, or is; None: it belongs to none.

    An owner reference counts more than a label, which anyone may change. A pod's owner is a Kubernetes Job, so that its
    label counts.
    """
    metadata = manifest["metadata"]
    name = metadata["name"] if manifest["kind"] == KIND else None
    owners = [owner["name"] for owner in metadata.get("ownerReferences") or [] if owner["kind"] == KIND]
    name = name or next(iter(owners), None) or (metadata.get("labels") or {}).get(names.JOB)
    return JobKey(metadata["namespace"], name) if name else None


def owned_by(manifest: Manifest, uid: str) -> bool:
    """Return whether the object with this UID owns an object."""
    return any(owner["uid"] == uid for owner in manifest["metadata"].get("ownerReferences") or [])


def _version(manifest: Manifest) -> int:
    """Return the resource version as a number, which grows with each write (guaranteed since Kubernetes 1.35)."""
    return int(manifest["metadata"]["resourceVersion"])
