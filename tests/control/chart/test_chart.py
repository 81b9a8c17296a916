"""What the chart makes of its values."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.control.chart.helm import Helm, Rendered

from rollfleet_operator.cache import Cache
from rollfleet_operator.metrics import Metrics
from rollfleet_operator.nats.settings import NatsSettings
from rollfleet_operator.nats.trust import new_keys
from rollfleet_operator.work_queue import WorkQueue

EVERYTHING = {
    "metrics__serviceMonitor__enabled": True,
    "metrics__dashboard__enabled": True,
    "ui__enabled": True,
    "imagePullSecrets": ["pull"],
    "operator__tolerations": [{"key": "a", "operator": "Exists"}],
    "operator__nodeSelector": {"a": "b"},
    "operator__podLabels": {"a": "b"},
    "operator__podAnnotations": {"a": "b"},
    "operator__affinity": {"nodeAffinity": {}},
    "operator__priorityClassName": "high",
    "serviceAccount__annotations": {"a": "b"},
    "nats__service__annotations": {"a": "b"},
    "nats__podLabels": {"a": "b"},
    "networkPolicy__natsFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
}
EXTERNAL: dict[str, object] = {
    "nats__enabled": False,
    "nats__external": {"url": "tls://nats.example:4222", "secret": "nats-operator", "ca": True},
}
VARIANTS: dict[str, dict[str, object]] = {
    "default": {},
    "everything": EVERYTHING,
    "namespaced": {"operator__namespaces": ["team-a", "team-b"]},
    "plain": {"nats__tls__enabled": False, "networkPolicy__enabled": False},
    "external": EXTERNAL,
    "cert-manager": {"nats__tls__certManager": {"enabled": True, "issuerRef": {"name": "ca"}}},
    "bare": {"crds__enabled": False, "rbac__create": False, "serviceAccount__create": False},
}


@pytest.fixture(scope="module", params=list(VARIANTS))
def variant(helm: Helm, request: pytest.FixtureRequest) -> Rendered:
    return helm.render(**VARIANTS[request.param])


def test_helm_lint_passes(helm: Helm) -> None:
    done = helm.run("lint", "--strict", str(helm.chart))
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


def test_every_pod_is_restricted_and_bounded(variant: Rendered) -> None:
    pods = list(variant.pods())
    assert pods
    for _, pod in pods:
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all("sizeLimit" in each["emptyDir"] for each in pod.get("volumes", []) if "emptyDir" in each)
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]


def test_the_cluster_chooses_the_users_of_pods_if_the_values_say_so(helm: Helm, rendered: Rendered) -> None:
    chosen = helm.render(fixedUser=False)
    assert "65532" not in chosen.text
    assert (rendered.settings().fixed_user, chosen.settings().fixed_user) == (True, False)


@pytest.mark.parametrize("more", [{}, {"nats.enabled": False}, {"nats.tls.existingSecret": "9000"}])
def test_names_of_digits_are_texts(helm: Helm, more: dict[str, object]) -> None:
    values: dict[str, object] = {
        "operator": {"namespaces": ["9001"], "priorityClassName": "9002"},
        "serviceAccount.name": "9003",
        "imagePullSecrets": ["9004"],
        "nats.priorityClassName": "9005",
        "nats.external": {"secret": "9006", "url": "tls://nats.example", "ca": True},
    } | more
    options = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
    done = helm.run("template", "9007", str(helm.chart), "--namespace=9008", *options)
    manifests = json.dumps(Rendered(done.stdout).manifests)
    assert len(set(re.findall(r'"(900\d)"', manifests))) >= 6
    assert re.findall(r"(?<=[ \[])900\d(?=[],}])", manifests) == [], "names as numbers"


def test_only_the_operator_has_a_token(variant: Rendered) -> None:
    assert {name for name, pod in variant.pods() if pod["automountServiceAccountToken"]} == {"rollfleet"}


def test_the_definition_is_the_one_that_is_generated(repository: Path, rendered: Rendered) -> None:
    (shown,) = rendered.of("CustomResourceDefinition").values()
    assert shown["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert shown["metadata"].pop("labels")
    assert shown == yaml.safe_load((repository / "crds/collectorjob.yaml").read_text())


def test_the_definition_and_the_admission_policy_can_be_left_out(helm: Helm) -> None:
    without = helm.render(crds__enabled=False, admissionPolicy__enabled=False)
    for kind in ("CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        assert not without.of(kind)


def test_the_definition_can_be_deleted_with_the_release(helm: Helm) -> None:
    (let_go,) = helm.render(crds__keep=False).of("CustomResourceDefinition").values()
    assert "annotations" not in let_go["metadata"]


def test_the_operator_may_not_list_secrets_and_has_no_wildcard_rights(variant: Rendered) -> None:
    for role in [*variant.of("ClusterRole").values(), *variant.of("Role").values()]:
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
            if "secrets" in rule["resources"]:
                assert not {"list", "watch", "update", "deletecollection"} & set(rule["verbs"])


def test_namespaces_restrict_rights_to_these(helm: Helm, rendered: Rendered) -> None:
    assert "rollfleet-site" in rendered.of("ClusterRole")
    namespaced = helm.render(operator__namespaces=["team-a", "team-b"])
    assert "rollfleet-site" not in namespaced.of("ClusterRole")
    assert not namespaced.of("ClusterRoleBinding")
    assert {"team-a/rollfleet", "team-b/rollfleet"} < set(namespaced.of("Role"))
    assert {"team-a/rollfleet", "team-b/rollfleet"} < set(namespaced.of("RoleBinding"))
    assert namespaced.settings().namespaces == ("team-a", "team-b")


def test_pods_of_the_operator_share_a_lease_and_may_write_no_other(helm: Helm) -> None:
    shown = helm.render(operator__replicas=2)
    deployment = shown.of("Deployment")["rollfleet"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (2, {"type": "RollingUpdate"})
    assert (shown.settings().lease, shown.settings().pod) == ("site/rollfleet", "of-the-pod")
    assert list(shown.of("Lease")) == ["rollfleet"]
    (rule,) = shown.of("Role")["rollfleet-leader"]["rules"]
    assert (rule["resources"], rule["resourceNames"]) == (["leases"], ["rollfleet"])
    assert rule["verbs"] == ["get", "patch", "create"]


def test_the_admission_policy_bounds_the_operator_alone(variant: Rendered) -> None:
    (policy,) = variant.of("ValidatingAdmissionPolicy").values()
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"] == "request.userInfo.username == 'system:serviceaccount:site:rollfleet'"
    assert policy["spec"]["failurePolicy"] == "Fail"
    (binding,) = variant.of("ValidatingAdmissionPolicyBinding").values()
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    roles = [*variant.of("ClusterRole").values(), *variant.of("Role").values()]
    operators = [
        rule
        for role in roles
        if not role["metadata"]["name"].endswith(("-view", "-edit", "-user", "-tunnel", "-ui"))
        for rule in role["rules"]
        if {"create", "patch", "delete"} & set(rule["verbs"])
    ]
    writes = {(group, resource) for group, resource in resources(operators) if "/" not in resource}
    assert writes <= resources(policy["spec"]["matchConstraints"]["resourceRules"])


def resources(rules: list[Any]) -> set[tuple[str, str]]:
    """The groups and resources that rules cover."""
    return {(group, each) for rule in rules for group in rule["apiGroups"] for each in rule["resources"]}


def test_the_operator_reads_the_charts_variables(variant: Rendered, tmp_path: Path) -> None:
    environ, settings = variant.environment(), variant.settings()
    assert settings.worker_image == "rollfleet-worker:0.1.0.dev0"
    assert settings.port == 8080
    (tmp_path / "operator.seed").write_text(new_keys(b"k" * 32).operator.seed)
    environ["ROLLFLEET_NATS_KEYS"] = str(tmp_path)
    if "ROLLFLEET_NATS_CA" in environ:
        assert environ["ROLLFLEET_NATS_CA"] == "/ca/ca.crt"
        (tmp_path / "ca.crt").write_text("ca")
        environ["ROLLFLEET_NATS_CA"] = str(tmp_path / "ca.crt")
    if "ROLLFLEET_INSTALLATION_FILE" in environ:
        environ["ROLLFLEET_INSTALLATION_FILE"] = str(tmp_path / "installation")
        (tmp_path / "installation").write_text("rollfleet.uid-1")
    nats = NatsSettings.read(environ)
    assert nats.installation == ("rollfleet.uid-1" if "ROLLFLEET_INSTALLATION_FILE" in environ else "")
    assert nats.state_bytes == 64 << 20
    assert nats.life_s == 86400


@pytest.fixture(scope="module")
def existing(helm: Helm) -> Rendered:
    return helm.render(**EXTERNAL)


def test_existing_nats_is_used_unchanged(existing: Rendered) -> None:
    assert not existing.of("StatefulSet")
    assert not existing.of("Secret")
    assert existing.environment()["ROLLFLEET_NATS_URL"] == "tls://nats.example:4222"
    volumes = existing.pod("rollfleet")["volumes"]
    assert {each["secret"]["secretName"] for each in volumes if "secret" in each} == {"nats-operator"}


def test_other_names_in_the_certificate_restart_the_programs_that_read_it(helm: Helm) -> None:
    def pods(*names: str) -> list[Any]:
        shown = helm.render(nats__tls__names=[*names])
        programs = (shown.of("StatefulSet")["rollfleet-nats"], shown.of("Deployment")["rollfleet"])
        return [each["spec"]["template"] for each in programs]

    before = pods("nats.example")
    assert all(one != other for one, other in zip(before, pods("nats.other"), strict=True))
    assert before == pods("nats.example")


def test_each_installation_with_an_existing_nats_has_an_id(helm: Helm, existing: Rendered) -> None:
    (program,) = existing.pod("rollfleet")["initContainers"]
    assert program["command"][-2:] == ["rollfleet", existing.environment()["ROLLFLEET_INSTALLATION_FILE"]]
    (rule,) = existing.of("Role")["rollfleet-installation"]["rules"]
    assert rule == {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["site"], "verbs": ["get"]}
    named = helm.render(operator__installation="production", **EXTERNAL)
    assert "initContainers" not in named.pod("rollfleet")
    assert named.environment()["ROLLFLEET_INSTALLATION"] == "production"
    assert "rollfleet-installation" not in named.of("Role")


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("tls://nats.example:4443", [4443]),
        ("nats://user1:1@a.example:4222,nats://b.example:5222", [4222, 5222]),
        ("tls://nats.example", [4222]),
        ("tls://a.example:5222,tls://b.example", [5222, 4222]),
    ],
)
def test_the_operator_may_reach_nats_where_it_is(helm: Helm, url: str, ports: list[int]) -> None:
    shown = helm.render(nats__enabled=False, nats__external={"url": url, "secret": "nats-operator"})
    egress = shown.of("NetworkPolicy")["rollfleet"]["spec"]["egress"]
    assert [each["port"] for each in egress[-1]["ports"]] == ports


def test_egress_goes_to_the_pods_of_nats_and_to_the_given_name_servers(helm: Helm) -> None:
    dns = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]
    shown = helm.render(networkPolicy__dnsTo=dns)
    (nats,) = shown.settings().nats_to
    assert nats["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "site"}
    pod = shown.of("StatefulSet")["rollfleet-nats"]["spec"]["template"]
    assert nats["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert shown.settings().dns_to == tuple(dns)
    policies = shown.of("NetworkPolicy")
    assert [rule.get("to") for rule in policies["rollfleet"]["spec"]["egress"]] == [dns, None, [nats]]
    assert policies["rollfleet-nats"]["spec"]["egress"] == []


def test_egress_goes_to_the_given_places_of_an_existing_nats(helm: Helm, existing: Rendered) -> None:
    place = [{"ipBlock": {"cidr": "10.1.2.3/32"}}]
    shown = helm.render(networkPolicy__natsTo=place, **EXTERNAL)
    assert shown.settings().nats_to == tuple(place)
    assert shown.of("NetworkPolicy")["rollfleet"]["spec"]["egress"][-1]["to"] == place
    assert existing.settings().nats_to == ()
    assert "to" not in existing.of("NetworkPolicy")["rollfleet"]["spec"]["egress"][-1]


def test_images_have_the_registry_and_the_digests_of_the_values(helm: Helm) -> None:
    digest = f"sha256:{'0a' * 32}"
    digests = {f"{owner}__image__digest": digest for owner in ("operator", "worker", "nats")}
    for image in helm.render(imageRegistry="registry.example/team/", **digests).images():
        assert image.startswith("registry.example/team/")
        assert image.endswith(f"@{digest}")
        assert "//" not in image


def test_values_reach_the_programs(helm: Helm, rendered: Rendered) -> None:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    shown = helm.render(
        operator__resources=resources,
        nats__maxConnections=200000,
        nats__publicUrl="tls://nats.example:4222",
        networkPolicy__apiServerPorts=[7443],
        worker__networkPolicies=False,
    )
    assert shown.settings().network_policies is False
    assert [each["resources"] for each in shown.pod("rollfleet-test")["containers"]] == [resources], "for quotas"
    assert "max_connections: 200000\n" in shown.of("ConfigMap")["rollfleet-nats"]["data"]["nats.conf"]
    assert shown.environment()["ROLLFLEET_NATS_PUBLIC_URL"] == "tls://nats.example:4222"
    assert "ROLLFLEET_NATS_PUBLIC_URL" not in rendered.environment()
    assert {"ports": [{"port": 7443}]} in shown.of("NetworkPolicy")["rollfleet"]["spec"]["egress"]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"operater": {}}, "operater"),
        ({"nats__stateBytes": "big"}, "stateBytes"),
        ({"nats__stateBytes": 20}, "stateBytes"),
        ({"nats__credentialsSeconds": 60}, "credentialsSeconds"),
        ({"nats__enabled": False}, "url"),
        ({"nats__external__url": "http://nats"}, "url"),
        ({"operator__namespaces": ["Team_A"]}, "namespaces"),
        ({"operator__replicas": "two"}, "replicas"),
        ({"operator__resources": {"request": {}}}, "request"),
        ({"crds__keep": "yes"}, "keep"),
        ({"nats__image__digest": "2.15.1"}, "digest"),
        ({"nats__replicas": 3}, "gone: the chart installs one NATS server"),
        ({"nats__routesPassword": "secretOfTheServers"}, "gone: the chart installs one NATS server"),
        ({"nats__maxBytesPerJob": "4Gi"}, "gone: NATS keeps no batches"),
        ({"nats__persistence": {"enabled": False}}, "gone: NATS keeps no batches"),
        ({"nats__jetstream__fileBytes": "18Gi"}, "gone: NATS keeps no batches"),
        ({"nats__jetstream__syncInterval": "2m"}, "gone: NATS keeps no batches"),
        ({"admissionPolicy__serviceAccounts": ["it's"]}, "serviceAccounts"),
        ({"nats__service__type": "Public"}, "type"),
        ({"networkPolicy__apiServerPorts": []}, "apiServerPorts"),
        ({"nats__config": {"jetstream": {}}}, "jetstream"),
        ({"ui__enabled": "yes"}, "enabled"),
        ({"ui__ingress": True}, "ingress"),
        ({"networkPolicy__uiFrom": "all"}, "uiFrom"),
    ],
)
def test_invalid_value_is_refused(helm: Helm, values: dict[str, Any], field: str) -> None:
    refusal = helm.refusal(**values)
    assert "schema" in refusal
    assert field in refusal


def test_every_value_is_in_the_table(repository: Path) -> None:
    values_table = runpy.run_path(str(repository / "charts/values_table.py"))
    text = (repository / "charts/rollfleet/values.yaml").read_text()
    readme = (repository / "charts/rollfleet/README.md").read_text()
    assert values_table["written"](readme, text) == readme, "run `python charts/values_table.py charts/rollfleet`"
    paths = {path for path, _ in values_table["described"](text)}
    leaves = {path for path in _leaves(yaml.safe_load(text)) if not any(path[: len(each)] == each for each in paths)}
    assert not leaves, "these have no text"


def _leaves(values: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(values, dict) and values:
        return [leaf for key, value in values.items() for leaf in _leaves(value, (*path, key))]
    return [path]


def test_prometheus_finds_the_operator(helm: Helm) -> None:
    shown = helm.render(metrics__serviceMonitor__enabled=True, metrics__serviceMonitor__labels={"team": "a"})
    (monitor,) = shown.of("ServiceMonitor").values()
    (endpoint,) = monitor["spec"]["endpoints"]
    service = shown.of("Service")["rollfleet-metrics"]
    operator = shown.of("Deployment")["rollfleet"]["spec"]["template"]
    assert monitor["metadata"]["labels"]["team"] == "a"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= operator["metadata"]["labels"].items()
    (served,) = [port for port in service["spec"]["ports"] if port["name"] == endpoint["port"]]
    (container,) = operator["spec"]["containers"]
    assert served["targetPort"] in {port["name"] for port in container["ports"]}
    assert endpoint["path"] == "/metrics"


def test_the_dashboard_uses_existing_metrics(repository: Path) -> None:
    exposition = Metrics(Cache(), WorkQueue()).exposition().decode()
    there = set(re.findall(r"^# TYPE (\w+)", exposition, re.MULTILINE))
    there |= {f"{name}_bucket" for name in there}
    dashboard = json.loads((repository / "charts/rollfleet/files/dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"\brollfleet_\w+", query)}
    assert len(asked) > 10
    assert asked <= there
