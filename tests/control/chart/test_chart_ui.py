"""The page in the chart: off by default, and without rights of the operator."""

import pytest
from tests.control.chart.helm import Helm, Rendered


@pytest.fixture(scope="module")
def page(helm: Helm) -> Rendered:
    return helm.render(ui__enabled=True)


def test_the_page_is_off_by_default(rendered: Rendered) -> None:
    assert rendered.settings().ui_port is None
    for kind in ("Service", "Role"):
        assert not [name for name in rendered.of(kind) if name.endswith("-ui")]


def test_the_service_leads_to_the_page_inside_of_the_cluster_alone(page: Rendered) -> None:
    service = page.of("Service")["rollfleet-ui"]["spec"]
    operator = page.of("Deployment")["rollfleet"]["spec"]["template"]
    assert service["type"] == "ClusterIP"
    assert service["selector"].items() <= operator["metadata"]["labels"].items()
    (port,) = service["ports"]
    (container,) = operator["spec"]["containers"]
    (opened,) = [each for each in container["ports"] if each["name"] == port["targetPort"]]
    assert opened["containerPort"] == page.settings().ui_port != page.settings().port
    assert not page.of("Ingress")


def test_by_default_no_pod_of_the_cluster_reaches_the_page(helm: Helm, page: Rendered, rendered: Rendered) -> None:
    (metrics,) = page.of("NetworkPolicy")["rollfleet"]["spec"]["ingress"]
    assert metrics["ports"] == [{"port": "http"}]
    proxy = [{"podSelector": {"matchLabels": {"app": "oauth2-proxy"}}}]
    shown = helm.render(ui__enabled=True, networkPolicy__uiFrom=proxy)
    assert {"ports": [{"port": "ui"}], "from": proxy} in shown.of("NetworkPolicy")["rollfleet"]["spec"]["ingress"]
    assert helm.render(networkPolicy__uiFrom=proxy).of("NetworkPolicy") == rendered.of("NetworkPolicy")


@pytest.mark.parametrize("namespaces", [[], ["team-a"]])
def test_the_page_gives_the_operator_no_right(helm: Helm, namespaces: list[str]) -> None:
    without, shown = (helm.render(operator__namespaces=namespaces, ui__enabled=on) for on in (False, True))
    for kind in ("ClusterRole", "ClusterRoleBinding", "RoleBinding"):
        assert shown.of(kind) == without.of(kind)
    assert set(shown.of("Role")) - set(without.of("Role")) == {"rollfleet-ui"}


def test_users_of_the_page_may_forward_a_port_and_nothing_else(page: Rendered) -> None:
    rules = page.of("Role")["rollfleet-ui"]["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["pods"], ["list"]),
        (["pods/portforward"], ["get", "create"]),
    ]


def test_without_rbac_the_chart_makes_no_roles_for_the_page(helm: Helm) -> None:
    shown = helm.render(ui__enabled=True, rbac__create=False)
    assert "rollfleet-ui" not in shown.of("Role")
    assert "rollfleet-ui" in shown.of("Service")
