"""The chart's monitors, alert rules, dashboards and network policies are rendered as values say."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.charts.helm import Obj, named, pod_specs, render
from tools.monitoring.dashboards import DASHBOARDS
from tools.monitoring.output import RULES

pytestmark = pytest.mark.real

MONITORS = ("manager.monitorEnabled", "scheduler.monitorEnabled", "descheduler.monitorEnabled")


def sets(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def of_kind(objects: list[Obj], kind: str) -> list[Obj]:
    return [one for one in objects if one["kind"] == kind]


def test_none_of_it_is_there_unless_it_is_asked_for() -> None:
    """The kinds of the Prometheus operator would make an install fail where it is absent."""
    objects = render()
    assert {one["apiVersion"] for one in objects if one["apiVersion"].startswith("monitoring.")} == set()
    assert not [one for one in objects if one["metadata"]["name"].startswith("dashboard-")]


def test_the_rule_is_the_rule_file() -> None:
    (rule,) = of_kind(
        render(*sets("prometheusRule.enabled=true", "prometheusRule.labels.release=prom")), "PrometheusRule"
    )
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert rule["metadata"]["namespace"] == "koordinator-system"
    assert rule["metadata"]["labels"]["release"] == "prom"


def test_each_dashboard_is_a_config_map_that_the_sidecar_finds() -> None:
    objects = render(*sets("grafanaDashboards.enabled=true", "grafanaDashboards.namespace=monitoring"))
    found = {one["metadata"]["name"]: one for one in objects if one["metadata"]["name"].startswith("dashboard-")}
    assert set(found) == {f"dashboard-{one.uid}" for one in DASHBOARDS}
    for dashboard in DASHBOARDS:
        config = found[f"dashboard-{dashboard.uid}"]
        assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert config["metadata"]["namespace"] == "monitoring"
        (text,) = config["data"].values()
        assert json.loads(text)["uid"] == dashboard.uid
        assert len(json.dumps(config)) < 1 << 20  # what a ConfigMap may hold


def test_series_carry_the_job_and_the_labels_that_rules_select_by() -> None:
    objects = render(*sets(*(f"{value}=true" for value in MONITORS), "koordlet.enableServiceMonitor=true"))
    monitors = of_kind(objects, "PodMonitor")
    assert len(monitors) == 3
    for one in monitors:
        (endpoint,) = one["spec"]["podMetricsEndpoints"]
        assert (one["spec"]["jobLabel"], endpoint["honorLabels"]) == ("koord-app", True)
    (agents,) = of_kind(objects, "ServiceMonitor")
    (endpoint,) = agents["spec"]["endpoints"]
    assert (agents["spec"]["jobLabel"], endpoint["honorLabels"]) == ("koord-app", True)
    assert endpoint["relabelings"] == [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}]
    service = named(objects, "Service", "koordlet-service")
    assert service["metadata"]["labels"]["koord-app"] == "koordlet"


def test_monitors_name_ports_of_the_pods() -> None:
    objects = render(*sets(*(f"{value}=true" for value in MONITORS)))
    specs = pod_specs(objects)
    for one in of_kind(objects, "PodMonitor"):
        ports = specs[one["spec"]["selector"]["matchLabels"]["koord-app"]]["containers"][0]["ports"]
        assert one["spec"]["podMetricsEndpoints"][0]["port"] in {port["name"] for port in ports}


@pytest.mark.parametrize("told", ["true", "false"])
def test_koordlet_can_do_without_the_right_to_every_path_of_kubelets(told: str) -> None:
    def kubelet_rights(*values: str) -> set[str]:
        role = named(render(*sets(f"koordlet.tellInterference={told}", *values)), "ClusterRole", "koordlet-role")
        found = {resource for rule in role["rules"] for resource in rule["resources"]}
        assert "persistentvolumeclaims" in found
        return {one for one in found if one.startswith("nodes/")}

    assert kubelet_rights() == {"nodes/status", "nodes/proxy"}
    assert kubelet_rights("koordlet.kubeletFineGrainedAuthz=true") == {"nodes/status", "nodes/pods", "nodes/configz"}


def test_network_policies_open_the_ports_of_the_containers_and_no_others() -> None:
    objects = render(*sets("networkPolicy.enabled=true"))
    specs = pod_specs(objects)
    policies = of_kind(objects, "NetworkPolicy")
    assert {one["metadata"]["name"] for one in policies} == {"koord-manager", "koord-scheduler", "koord-descheduler"}
    for one in policies:
        assert one["spec"]["policyTypes"] == ["Ingress"]
        (ingress,) = one["spec"]["ingress"]
        program = one["spec"]["podSelector"]["matchLabels"]["koord-app"]
        declared = {port["containerPort"] for port in specs[program]["containers"][0]["ports"]}
        assert {port["port"] for port in ingress["ports"]} == declared
