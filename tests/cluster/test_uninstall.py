"""An uninstall leaves the definition of CollectorJobs, and with it the jobs (`crds.keep`), and nothing else."""

from typing import Any

import pytest
from tests.cluster.lab import Lab, Release, run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

DEFINITION = "customresourcedefinition.apiextensions.k8s.io/collectorjobs.rollfleet.dev"
# What the cluster makes by itself in every namespace, and what it forgets by itself.
OTHERS = ("configmap/kube-root-ca.crt", "serviceaccount/default", "event/", "event.events.k8s.io/")

ELSEWHERE = ("namespace/", "persistentvolume/", "apiservice.")  # ours to remove, and what follows the definition


def all_of(namespace: str) -> set[str]:
    """All objects of a namespace, of every kind that the cluster has."""
    kinds = run("kubectl", "api-resources", "--namespaced", "--verbs=list", "--output=name").split()
    found = run("kubectl", f"--namespace={namespace}", "get", ",".join(kinds), "--output=name", "--ignore-not-found")
    return {name for name in found.split() if not name.startswith(OTHERS)}


def cluster_wide() -> set[str]:
    """All objects of no namespace that are called after us."""
    kinds = run("kubectl", "api-resources", "--namespaced=false", "--verbs=list", "--output=name").split()
    found = run("kubectl", "get", ",".join(kinds), "--output=name", "--ignore-not-found").split()
    return {name for name in found if "rollfleet" in name and not name.startswith(ELSEWHERE)}


def test_an_uninstall_leaves_the_definition_and_the_jobs_which_go_without_an_operator(
    release: Release, lab: Lab, counting: dict[str, Any]
) -> None:
    lab.apply(counting)
    lab.wait_for_frames("counting", more_than=0)
    release.uninstall()
    try:
        assert all_of(release.namespace) == set()
        assert cluster_wide() == {DEFINITION}
        assert lab.get("collectorjob", "counting")["spec"]["workers"] == 2
        assert len(lab.pods("worker")) == 2, "they were stopped"

        lab.kubectl("delete", "collectorjob/counting", "--timeout=60s")
        lab.kubectl("wait", "--for=delete", "pods", "--all", "--timeout=120s")
        left = all_of(lab.namespace)
        assert left == {"configmap/learner"}
    finally:
        release.install()
