"""What the chart's manifests are without helm's own help: piped to kubectl, of odd names, with values removed."""

import json
import re
from pathlib import Path

import pytest
from tests.control.chart.helm import Helm, Rendered


def test_each_object_names_the_releases_namespace(helm: Helm) -> None:
    everything = {"ui__enabled": True, "metrics__serviceMonitor__enabled": True, "metrics__dashboard__enabled": True}
    of_the_cluster = ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "ValidatingAdmissionPolicy")
    for each in helm.render(**everything).manifests:
        assert each["kind"].startswith(of_the_cluster) or "namespace" in each["metadata"], each["metadata"]["name"]


def test_the_manifests_for_gitops_have_no_test(helm: Helm, repository: Path) -> None:
    (command,) = re.findall(r"`helm template [^|]*(--skip-tests)", (repository / "docs/install.md").read_text())
    assert "helm.sh/hook" not in helm.render(command).text


def test_removed_values_leave_an_operator_that_starts(helm: Helm, tmp_path: Path) -> None:
    values = {"nats": {"resources": None, "config": None, "serviceAnnotations": None}, "imagePullSecrets": None}
    fences = {"worker": {"networkPolicies": None}, "networkPolicy": {"natsFrom": None, "dnsTo": None}}
    (tmp_path / "null.json").write_text(
        json.dumps(values | fences | {"operator": {"namespaces": None, "podDisruptionBudget": None}})
    )
    found = helm.render(f"--values={tmp_path / 'null.json'}").settings()
    assert (found.nats_resources, found.nats_config, found.nats_from) == ({}, {}, ())


@pytest.mark.parametrize("release", ["2024", "2024-rollfleet"])
def test_services_of_a_release_that_begins_with_a_digit_begin_with_a_letter(helm: Helm, release: str) -> None:
    shown = Rendered(helm.run("template", release, str(helm.chart), "--set=ui.enabled=true").stdout)
    assert {name[:10] for name in shown.of("Service")} == {"default/ro"}
