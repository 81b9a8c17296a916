"""Files of a job's learner that outlive its pod: `rollfleet submit --keep` mounts a volume, `rollfleet fetch` reads it.

Each new job gets a new claim: that of a deleted job of its name may be about to go.
"""

import secrets
from typing import Any, Final

from rollfleet.cluster.api import Manifest
from rollfleet.cluster.jobs import Jobs, owner
from rollfleet.errors import ClusterError, JobInvalid, JobNotFound
from rollfleet_api.job import CollectorJob, LearnerSpec
from rollfleet_api.kubernetes_names import JOB_LABEL, ROLE_LABEL
from rollfleet_api.quantity import parse_bytes
from rollfleet_api.views import JobView

FOLDER: Final = "/kept"
_VOLUME: Final = "rollfleet-kept"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def claim_for(jobs: Jobs, job: CollectorJob, size: str | None) -> str | None:
    """Return the name of a job's claim: the one that it has on the cluster, else a new one. None: no size, no claim.

    Raises:
        JobInvalid: `size`, such as `1Gi`, is no quantity, or 0. The message has the one to write.
    """
    try:
        if size is not None and not parse_bytes(size):
            raise ValueError(f"`{size}` keeps nothing; write e.g. `1Gi`")
    except ValueError as error:
        raise JobInvalid(f"--keep: {error}") from None
    try:
        found = claim_of(jobs.get(job.key if "namespace" in job.metadata.model_fields_set else job.metadata.name))
    except JobNotFound:
        found = None
    if found or size is None:
        return found
    return f"{job.metadata.name}-kept-{secrets.token_hex(3)}"


def claim_of(job: JobView) -> str | None:
    """Return the name of a job's claim. None: it keeps no files."""
    volumes = _learner(job).get("volumes") or []
    return next((each["persistentVolumeClaim"]["claimName"] for each in volumes if each.get("name") == _VOLUME), None)


def mounted(job: CollectorJob, claim: str) -> CollectorJob:
    """Return a job whose learner mounts a claim: as its working folder, unless its template names another one."""
    template = job.spec.learner.template if job.spec.learner else {}
    pod = template.get("spec") or {}
    container, *others = pod.get("containers") or [{"name": "learner"}]
    if container.get("workingDir", "/tmp") == "/tmp":
        container = container | {"workingDir": FOLDER}
    mounts = [*(container.get("volumeMounts") or []), {"name": _VOLUME, "mountPath": FOLDER}]
    volumes = [*(pod.get("volumes") or []), {"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim}}]
    pod = pod | {"containers": [container | {"volumeMounts": mounts}, *others], "volumes": volumes}
    spec = job.spec.model_copy(update={"learner": LearnerSpec(template=template | {"spec": pod})})
    return job.model_copy(update={"spec": spec})


def create_claim(jobs: Jobs, job: JobView, claim: str, size: str) -> bool:
    """Create a job's claim to a volume of the cluster's default class, which is deleted with the job.

    Return False if it is there: it keeps its size.

    Raises:
        ClusterError: The cluster refuses it. The learner's pod waits for it.
    """
    metadata = {"name": claim, "namespace": job.metadata.namespace, "ownerReferences": [owner(job)]}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    try:
        jobs.api.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    except ClusterError as error:
        if error.reason != "AlreadyExists":
            again = f"the learner of {job.key} waits for its volume: submit the job again"
            raise ClusterError(f"{error}; {again}", error.status, error.reason) from error
        return False
    return True


def reader(job: JobView) -> Manifest:
    """Return the template of a worker that reads a job's files: a pod like its learner's, and beside a running one.

    It has the resources of the job's workers, without GPUs: a quota may refuse pods without any.
    """
    pod, resources = _learner(job), (job.spec.model_extra or {}).get("resources") or {}
    learner = {"matchLabels": {JOB_LABEL: job.metadata.name, ROLE_LABEL: "learner"}}
    beside = {"weight": 100, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": learner}}
    affinity = pod.get("affinity") or {}
    near = affinity.get("podAffinity") or {}
    container = {
        "name": "worker",
        "resources": {key: value for key, value in resources.items() if key != "gpu"},
        "volumeMounts": [{"name": _VOLUME, "mountPath": FOLDER, "readOnly": True}],
    } | {key: value for key, value in pod["containers"][0].items() if key == "securityContext"}
    own = {
        "affinity": affinity | {"podAffinity": near | {_PREFERRED: [*(near.get(_PREFERRED) or []), beside]}},
        "containers": [container],
        "volumes": [each for each in pod["volumes"] if each.get("name") == _VOLUME],
    }
    return {"spec": {key: value for key, value in pod.items() if key not in ("initContainers", "resourceClaims")} | own}


def _learner(job: JobView) -> Manifest:
    learner: Any = job.spec.learner or {}
    return dict((learner.get("template") or {}).get("spec") or {})
