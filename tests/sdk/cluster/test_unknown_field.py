"""A field that the cluster's definition of a job does not have."""

from pathlib import Path

import pytest

from rollfleet import Jobs
from rollfleet.cluster.api import ClusterApi
from rollfleet.errors import ClusterError
from rollfleet.testing import small_job
from rollfleet_api.metadata import Metadata


def test_an_unknown_field_is_refused_in_one_line_with_its_name(
    api: ClusterApi, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    jobs = Jobs(namespace=api.namespace)
    jobs.submit(small_job(policy={"random": {}}).model_copy(update={"metadata": Metadata(name="old")}))
    with pytest.raises(
        ClusterError, match=r"^the jobs of this cluster have no spec\.collect\.inofKeys; docs/fields\.md .*doctor.*$"
    ) as refused:
        jobs.edit("old", {"collect": {"inofKeys": ["z"]}})
    assert refused.value.reason == "Invalid"
    assert "\n" not in str(refused.value)
