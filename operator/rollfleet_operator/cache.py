"""The newest known state of each object in the cluster: from watches, and from the answers to the operator's writes."""

from collections import defaultdict
from typing import Final, NamedTuple

from rollfleet_api.job import KIND
from rollfleet_api.kubernetes_names import JOB_LABEL
from rollfleet_api.pods import Pod
from rollfleet_api.validation import bounded
from rollfleet_operator.manifest import Manifest, Ref, ref
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.observed import parsed

WATCHED: Final = (KIND, "Job", "Deployment", "Service", "ServiceAccount", "NetworkPolicy", "Pod")
"""The cached kinds. Not Secrets: a watch would need the right to read all Secrets of a namespace."""

_GONE: Final = 4096
"""Number of remembered deletions: the answer to an earlier write must not restore a deleted object."""


class _Known(NamedTuple):
    """The newest known state of an object.

    Of a pod, `value` is only what is read of it; None: it is not one of the operator's.
    """

    uid: str
    version: int
    value: Manifest | Pod | None


class Cache:
    """Objects by job. For one event loop."""

    def __init__(self) -> None:
        self._objects: defaultdict[JobKey, dict[Ref, _Known]] = defaultdict(dict)  # a job, and what belongs to it
        self._keys: dict[str, JobKey] = {}  # the job under which each object is, by UID
        # The version at which an object was seen to be deleted, by its UID. One that has only lost the label of its
        # watch looks deleted, too, and has this version.
        self._gone: dict[str, int] = {}

    def put(self, manifest: Manifest) -> JobKey | None:
        """Store an object, unless this state or a newer one is known, or it was deleted; return its job, if stored."""
        key, which = job_key(manifest), ref(manifest)
        before = self._keys.get(manifest["metadata"]["uid"])
        if before is not None and before != key and (known := self._objects[before].get(which)):
            if known.version >= _version(manifest):
                return None
            self._drop(before, which)  # its label names another job now
        return key if key is not None and self._take(key, manifest) else None

    def remove(self, manifest: Manifest) -> JobKey | None:
        """Remove an object; return its job, if any."""
        uid = manifest["metadata"]["uid"]
        key = self._keys.get(uid) or job_key(manifest)
        if key is None:
            return None
        self._gone[uid] = _version(manifest)
        while len(self._gone) > _GONE:
            del self._gone[next(iter(self._gone))]
        known = self._objects.get(key, {}).get(ref(manifest))
        if known and known.uid == uid:
            self._drop(key, ref(manifest))
        return key

    def keep_only(
        self, kind: str, listed: set[str], resource_version: str, namespace: str | None = None
    ) -> set[JobKey]:
        """Remove all objects of a kind that a list does not have; return the jobs with changes.

        Args:
            kind: The kind.
            listed: The UIDs of all objects in the list.
            resource_version: The version of the list; objects that are newer stay.
            namespace: The listed namespace; None: all namespaces.
        """
        version, gone = int(resource_version), list[tuple[JobKey, Ref]]()
        for key, objects in self._objects.items():
            if namespace in (None, key.namespace):
                gone += [
                    (key, which)
                    for which, known in objects.items()
                    if which.kind == kind and known.uid not in listed and known.version <= version
                ]
        for key, which in gone:
            self._drop(key, which)
        return {key for key, _ in gone}

    def job(self, key: JobKey) -> Manifest | None:
        """Return a CollectorJob; None: it does not exist."""
        known = self._objects.get(key, {}).get(Ref(KIND, key.name))
        return known.value if known and isinstance(known.value, dict) else None

    def jobs(self) -> dict[JobKey, Manifest]:
        """Return all CollectorJobs."""
        return {key: job for key in self._objects if (job := self.job(key)) is not None}

    def children(self, key: JobKey, uid: str) -> list[Manifest]:
        """Return the objects that the job with this UID owns."""
        found = (known.value for known in self._objects.get(key, {}).values())
        return [child for child in found if isinstance(child, dict) and owned_by(child, uid)]

    def pods(self, key: JobKey) -> list[Pod]:
        """Return the pods of the job, and of earlier jobs of its name."""
        return [known.value for known in self._objects.get(key, {}).values() if isinstance(known.value, Pod)]

    def _take(self, key: JobKey, manifest: Manifest) -> bool:
        """Store an object; return whether it is new or newer."""
        which, uid, version = ref(manifest), manifest["metadata"]["uid"], _version(manifest)
        known = self._objects.get(key, {}).get(which)
        if version < self._gone.get(uid, 0) or (known is not None and known.version >= version):
            return False
        manifest["metadata"].pop("managedFields", None)
        if which.kind == KIND:
            manifest["spec"] = bounded(manifest.get("spec"))  # many jobs of megabytes would not fit into memory
        if known is not None:
            self._keys.pop(known.uid, None)
        self._keys[uid] = key
        value = parsed(Pod.parse, manifest) if which.kind == "Pod" else manifest
        self._objects[key][which] = _Known(uid, version, value)
        return True

    def _drop(self, key: JobKey, which: Ref) -> None:
        self._keys.pop(self._objects[key].pop(which).uid, None)
        if not self._objects[key]:
            del self._objects[key]


def job_key(manifest: Manifest) -> JobKey | None:
    """Return the job that an object belongs to, or is; None: it belongs to none.

    An owner reference counts more than a label, which anyone may change. A pod's owner is a Kubernetes Job, so that its
    label counts.
    """
    metadata = manifest["metadata"]
    name = metadata["name"] if manifest["kind"] == KIND else None
    owners = [owner["name"] for owner in metadata.get("ownerReferences") or [] if owner["kind"] == KIND]
    name = name or next(iter(owners), None) or (metadata.get("labels") or {}).get(JOB_LABEL)
    return JobKey(metadata["namespace"], name) if name else None


def owned_by(manifest: Manifest, uid: str) -> bool:
    """Return whether the object with this UID owns an object."""
    return any(owner["uid"] == uid for owner in manifest["metadata"].get("ownerReferences") or [])


def _version(manifest: Manifest) -> int:
    """Return the resource version as a number, which grows with each write of any object of a kind.

    Kubernetes guarantees it since 1.35.
    """
    return int(manifest["metadata"]["resourceVersion"])
