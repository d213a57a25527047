"""Prometheus itself answers the dashboards' expressions and evaluates the alert rules on a living cluster."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.charts import prometheus
from tests.charts.prometheus import NOT_HAPPENED, Prometheus, Target, prometheus_binary, silent_panels
from tests.koord_up_process import KoordUpProcess, koord_up
from tools.monitoring.dashboards import DASHBOARDS

pytestmark = pytest.mark.real

NODES = 2
PROGRAMS = ("koord-scheduler", "koord-manager", "koord-descheduler")
EXPECTED_ALERT = "KoordSchedulerPodsUnschedulable"  # of the pods that fit nowhere
NO_LEADERS = {"KoordDeschedulerNoLeader", "KoordManagerNoLeader", "KoordSchedulerNoLeader"}  # nobody elects here
_CALLED = "webhooks are called inside of the process"
# What programs in one process have not; tests/install asks those of a real cluster.
IN_ONE_PROCESS = {
    "koord_manager_webhook_certificate_not_after_seconds": _CALLED,
    "koord_manager_webhook_failed_decisions_total": _CALLED,
    "koord_manager_webhook_malformed_reviews_total": _CALLED,
    "koord_manager_webhook_webhook_duration_milliseconds_bucket": _CALLED,
    "koordlet_resource_update_duration_milliseconds_count": "simulated agents have no kernel files",
    "koordlet_runtime_hook_invoked_duration_milliseconds_count": "simulated nodes have no container runtime",
    "leader_election_master_status": "nobody elects",
    "process_cpu_seconds_total": "the one process tells its own",
    "process_resident_memory_bytes": "the one process tells its own",
    "rest_client_requests_total": "programs call the API server inside of the process",
}
WITHOUT_CARDS = {
    'scheduler_reservation_resource{type="utilization",resource=~".*(gpu|npu|rdma|fpga).*"}': "no card is reserved",
}
PODS = "/api/v1/namespaces/default/pods"
GROUP = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default"


def pod(name: str, amounts: dict[str, str], labels: dict[str, str], **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "web", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"schedulerName": "koord-scheduler", "containers": [container], **spec},
    }


def pod_group(name: str, members: int) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": members, "scheduleTimeoutSeconds": 60},
    }


def workload() -> list[tuple[str, dict[str, Any]]]:
    """Return what makes every part of the platform work: services, batch pods, a quota, a gang and half of another,
    a Reservation, and a pod that fits nowhere.
    """
    tiny, small = {"cpu": "100m", "memory": "64Mi"}, {"cpu": "1", "memory": "1Gi"}
    batch = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"}
    quota = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": "team"},
        "spec": {"min": {"cpu": "1", "memory": "1Gi"}, "max": {"cpu": "8", "memory": "8Gi", "nvidia.com/gpu": "2"}},
    }
    reservation = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "later"},
        "spec": {
            "template": {"spec": pod("later", small, {})["spec"]},
            "owners": [{"labelSelector": {"matchLabels": {"app": "later"}}}],
            "ttl": "1h",
        },
    }
    of_gang, of_quota = "pod-group.scheduling.sigs.k8s.io", {"quota.scheduling.koordinator.sh/name": "team"}
    is_batch = {"koordinator.sh/qosClass": "BE"}
    return [
        (f"{GROUP}/elasticquotas", quota),
        (f"{GROUP}/podgroups", pod_group("whole", 2)),
        (f"{GROUP}/podgroups", pod_group("half", 2)),
        ("/apis/scheduling.koordinator.sh/v1alpha1/reservations", reservation),
        *((PODS, pod(f"web-{number}", tiny, of_quota)) for number in range(60)),
        *((PODS, pod(f"whole-{number}", small, {of_gang: "whole"})) for number in range(2)),
        (PODS, pod("half-0", small, {of_gang: "half"})),
        *((PODS, pod(f"batch-{number}", batch, is_batch, priorityClassName="koord-batch")) for number in range(2)),
        (PODS, pod("large", {"cpu": "4000"}, {})),
    ]


def create(cluster: KoordUpProcess, path: str, one: dict[str, Any]) -> None:
    headers = {"Authorization": f"Bearer {cluster.token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(f"{cluster.url}{path}", json.dumps(one).encode(), headers)
    try:
        with urllib.request.urlopen(asked, context=cluster.ssl(), timeout=30):
            pass
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{one['metadata']['name']}: {error.read().decode()}") from error


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus, scraping a cluster of simulated nodes whose agents and programs have work."""
    if not prometheus_binary().is_file():
        pytest.skip("no prometheus here: run `python -m tools.assets prometheus` first")
    folder = tmp_path_factory.mktemp("prometheus")
    with koord_up("--nodes", str(NODES), "--set", "nodes.agents=true") as cluster:
        (authority := folder / "authority.crt").write_text(
            ssl.DER_cert_to_PEM_cert(cluster.ssl().get_ca_certs(binary_form=True)[0])
        )
        address = cluster.url.removeprefix("https://")

        def target(job: str, path: str, **labels: str) -> Target:
            return Target(job, address, path, labels, "https", cluster.token, authority)

        targets = [target(name, f"/koord/{name}/metrics") for name in PROGRAMS]
        targets += [
            target("koordlet", f"/koord/koordlet/nodes/node-{number}/metrics", node=f"node-{number}")
            for number in range(NODES)
        ]
        with prometheus.running(targets, folder / "data") as running:
            running.until_scraped()
            for path, one in workload():
                create(cluster, path, one)
            yield running


def test_every_panel_has_data_or_a_reason_to_have_none(answers: Prometheus) -> None:
    explained = {**NOT_HAPPENED, **IN_ONE_PROCESS, **WITHOUT_CARDS}
    answers.until(
        lambda: not silent_panels(answers, DASHBOARDS, explained),
        lambda: "\n".join(silent_panels(answers, DASHBOARDS, explained)),
    )


def test_every_rule_is_evaluated_and_only_pods_that_fit_nowhere_are_told(answers: Prometheus) -> None:
    assert answers.broken_rules() == []
    answers.until(lambda: EXPECTED_ALERT in answers.firing(), answers.firing)
    assert set(answers.firing()) - NO_LEADERS == {EXPECTED_ALERT}
