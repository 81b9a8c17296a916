"""What the chart makes of its values."""

import json
import re
import runpy
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from tests.control.chart.helm import Helm, Rendered

from rollfleet_api.kubernetes_names import JOB_LABEL
from rollfleet_api.nats_server import PORT
from rollfleet_api.permissions import Role
from rollfleet_operator.cache import Cache
from rollfleet_operator.metrics import Metrics
from rollfleet_operator.names import labels
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
    "nats__config": {"max_payload": 8388608},
    "networkPolicy__natsFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
}
EXTERNAL: dict[str, object] = {"nats__external": {"url": "tls://nats.example:4222", "secret": "nats-user"}}
VARIANTS: dict[str, dict[str, object]] = {
    "default": {},
    "everything": EVERYTHING,
    "namespaced": {"operator__namespaces": ["team-a", "team-b"]},
    "plain": {"nats__tls__enabled": False, "networkPolicy__enabled": False},
    "external": EXTERNAL,
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


def test_names_of_digits_are_texts(helm: Helm) -> None:
    values: dict[str, object] = {
        "operator": {"namespaces": ["9001"], "priorityClassName": "9002"},
        "serviceAccount.name": "9003",
        "imagePullSecrets": ["9004"],
        "nats.external": {"secret": "9006", "url": "tls://nats.example"},
    }
    options = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
    done = helm.run("template", "9007", str(helm.chart), "--namespace=9008", *options)
    manifests = json.dumps(Rendered(done.stdout).manifests)
    assert len(set(re.findall(r'"(900\d)"', manifests))) == 7
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
        if not role["metadata"]["name"].endswith(("-view", "-edit", "-user", "-ui"))
        for rule in role["rules"]
        if {"create", "patch", "delete"} & set(rule["verbs"])
    ]
    writes = {(group, resource) for group, resource in resources(operators) if "/" not in resource}
    assert writes <= resources(policy["spec"]["matchConstraints"]["resourceRules"])


def resources(rules: list[Any]) -> set[tuple[str, str]]:
    """The groups and resources that rules cover."""
    return {(group, each) for rule in rules for group in rule["apiGroups"] for each in rule["resources"]}


def test_the_operator_reads_the_charts_variables(variant: Rendered) -> None:
    settings = variant.settings()
    assert (settings.worker_image, settings.nats_image) == ("rollfleet-worker:0.1.0.dev0", "nats:2.15.1")
    assert settings.port == 8080
    assert settings.nats_resources == {"requests": {"cpu": "50m", "memory": "64Mi"}}
    assert settings.operator_pods["podSelector"]["matchLabels"].items() <= operators_labels(variant).items()


def operators_labels(shown: Rendered) -> dict[str, str]:
    labels: dict[str, str] = shown.of("Deployment")["rollfleet"]["spec"]["template"]["metadata"]["labels"]
    return labels


def test_the_key_is_the_only_secret_and_never_helms_to_write(variant: Rendered) -> None:
    assert list(variant.of("Secret")) == ["rollfleet-key"]
    assert "data" not in variant.of("Secret")["rollfleet-key"]
    assert variant.settings().key_secret == "site/rollfleet-key"
    if role := variant.of("Role").get("rollfleet-key"):
        (rule,) = role["rules"]
        assert (rule["resourceNames"], rule["verbs"]) == (["rollfleet-key"], ["get", "patch"])


@pytest.fixture(scope="module")
def existing(helm: Helm) -> Rendered:
    return helm.render(**EXTERNAL)


def test_the_operator_gets_the_user_of_an_existing_nats(existing: Rendered, rendered: Rendered) -> None:
    settings, pod = existing.settings(), existing.pod("rollfleet")
    assert settings.nats_url == "tls://nats.example:4222"
    (volume,) = [each for each in pod["volumes"] if each.get("secret", {}).get("secretName") == "nats-user"]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    assert mount == {"name": volume["name"], "mountPath": str(settings.nats_external), "readOnly": True}
    assert (rendered.settings().nats_url, rendered.settings().nats_external) == ("", None)


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
    shown = helm.render(nats__external={"url": url, "secret": "nats-user"})
    egress = shown.of("NetworkPolicy")["rollfleet"]["spec"]["egress"]
    assert [each["port"] for each in egress[-1]["ports"]] == ports


def test_egress_goes_to_the_servers_of_all_jobs_and_to_the_given_name_servers(helm: Helm) -> None:
    dns = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]
    shown = helm.render(networkPolicy__dnsTo=dns)
    assert shown.settings().dns == ({"to": dns},)
    of_any_job = {key: value for key, value in labels("x", Role.NATS).items() if key != JOB_LABEL}
    servers = [{"namespaceSelector": {}, "podSelector": {"matchLabels": of_any_job}}]
    egress = shown.of("NetworkPolicy")["rollfleet"]["spec"]["egress"]
    assert [rule.get("to") for rule in egress] == [dns, None, servers]
    assert egress[-1]["ports"] == [{"port": PORT}]


def test_name_servers_are_reached_at_the_port_of_their_pods(rendered: Rendered) -> None:
    rules = rendered.settings().dns
    assert list(rules) == rendered.of("NetworkPolicy")["rollfleet"]["spec"]["egress"][: len(rules)]
    by_port, by_pods = rules
    assert ({each["port"] for each in by_port["ports"]}, "to" in by_port) == ({53}, False)
    assert "ports" not in by_pods
    found = [each["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for each in by_pods["to"]]
    assert found == ["kube-system", "openshift-dns"]


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


def test_values_reach_the_programs(helm: Helm) -> None:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    shown = helm.render(
        operator__resources=resources,
        nats__resources=resources,
        nats__config={"max_payload": 8388608},
        nats__tls__enabled=False,
        nats__image__pullPolicy="Always",
        networkPolicy__natsFrom=[{"ipBlock": {"cidr": "10.0.0.0/8"}}],
        networkPolicy__apiServerPorts=[7443],
        worker__networkPolicies=False,
    )
    settings = shown.settings()
    assert (settings.network_policies, settings.nats_tls, settings.nats_pull_policy) == (False, False, "Always")
    assert (settings.nats_resources, settings.nats_config) == (resources, {"max_payload": 8388608})
    assert settings.nats_from == ({"ipBlock": {"cidr": "10.0.0.0/8"}},)
    assert [each["resources"] for each in shown.pod("rollfleet-test")["containers"]] == [resources], "for quotas"
    assert {"ports": [{"port": 7443}]} in shown.of("NetworkPolicy")["rollfleet"]["spec"]["egress"]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"operater": {}}, "operater"),
        ({"nats__external__url": "http://nats"}, "url"),
        ({"nats__external__url": "tls://nats"}, "secret"),
        ({"operator__namespaces": ["Team_A"]}, "namespaces"),
        ({"operator__replicas": "two"}, "replicas"),
        ({"operator__resources": {"request": {}}}, "request"),
        ({"crds__keep": "yes"}, "keep"),
        ({"nats__image__digest": "2.15.1"}, "digest"),
        ({"nats__enabled": False}, "gone: each job has a NATS server of its own, unless `nats.external.url` is set"),
        ({"nats__maxPayloadBytes": 1048576}, "gone: set `nats.config.max_payload` instead"),
        ({"nats__credentialsSeconds": 86400}, "gone: credentials do not expire"),
        (
            {"nats__jetstream": {"memoryBytes": "4Gi"}},
            "gone: each job has a NATS server of its own, which keeps nothing",
        ),
        ({"nats__service__type": "LoadBalancer"}, "gone: for learners outside, set `spec.nats.service: LoadBalancer`"),
        ({"nats__nodeSelector": {}}, "gone: a NATS server belongs to a job; set `spec.nats.template`"),
        ({"nats__tls__certManager": {}}, "gone: the operator signs a certificate"),
        ({"nats__external__ca": True}, "gone: the operator trusts `ca.crt`"),
        ({"operator__installation": ""}, "gone: installations share no signing key"),
        ({"admissionPolicy__serviceAccounts": ["it's"]}, "serviceAccounts"),
        ({"networkPolicy__apiServerPorts": []}, "apiServerPorts"),
        ({"nats__config": {"jetstream": {}}}, "jetstream"),
        ({"nats__config": {"max_payload": 1}}, "max_payload"),
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
    assert monitor["metadata"]["labels"]["team"] == "a"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= operators_labels(shown).items()
    (served,) = [port for port in service["spec"]["ports"] if port["name"] == endpoint["port"]]
    (container,) = shown.pod("rollfleet")["containers"]
    assert served["targetPort"] in {port["name"] for port in container["ports"]}
    assert endpoint["path"] == "/metrics"


@pytest.mark.parametrize(("status", "passes"), [(200, True), (503, False)])
def test_helm_test_asks_whether_the_operator_is_ready(rendered: Rendered, status: int, passes: bool) -> None:
    class Operator(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

    (container,) = rendered.pod("rollfleet-test")["containers"]
    server = HTTPServer(("127.0.0.1", 0), Operator)
    thread = Thread(target=server.handle_request)
    thread.start()
    here = f"127.0.0.1:{server.server_port}"
    command = [each.replace("rollfleet-metrics.site.svc:8080", here) for each in container["command"]]
    done = subprocess.run([sys.executable, *command[1:]], capture_output=True)
    thread.join()
    server.server_close()
    assert (done.returncode == 0) is passes


def test_the_dashboard_uses_existing_metrics(repository: Path) -> None:
    exposition = Metrics(Cache(), WorkQueue()).exposition().decode()
    there = set(re.findall(r"^# TYPE (\w+)", exposition, re.MULTILINE))
    there |= {f"{name}_bucket" for name in there}
    dashboard = json.loads((repository / "charts/rollfleet/files/dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"\brollfleet_\w+", query)}
    assert len(asked) > 10
    assert asked <= there
