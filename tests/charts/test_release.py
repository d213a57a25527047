"""A release from its install to its uninstall, by Helm itself: on the embedded API server and on a real one."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from koord import __version__
from koord.api.schema import crd_manifests
from tests.charts.api_servers import CRDS, SERVERS, ApiServer
from tests.charts.helm import CHART, HelmFailed, run_helm, values_file
from tests.charts.koordinator_release import write_koordinator_chart
from tests.koord_up_process import koord_up

pytestmark = pytest.mark.real

SYSTEM = "/api/v1/namespaces/koordinator-system"
MANAGER = "/apis/apps/v1/namespaces/koordinator-system/deployments/koord-manager"
SCHEDULER = "/apis/apps/v1/namespaces/koordinator-system/deployments/koord-scheduler"
SLO_CONFIG = f"{SYSTEM}/configmaps/slo-controller-config"
POD_GROUPS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups"
WEBHOOKS = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/koordinator-mutating-webhook-configuration"
)


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    with SERVERS[request.param]() as running:
        yield running


def helm(server: ApiServer, *args: str) -> str:
    return run_helm(*args, kubeconfig=server.kubeconfig)


def uninstall(server: ApiServer, release: str, *args: str) -> None:
    """Uninstall without the Job that restores nodes: nothing runs pods here. tests/install has a cluster that does."""
    helm(server, "uninstall", release, "--no-hooks", *args)


@contextlib.contextmanager
def installed(server: ApiServer, *args: str, release: str = "koord", namespace: str = "default") -> Iterator[None]:
    helm(server, "install", release, str(CHART), "--namespace", namespace, *args)
    try:
        yield
    finally:
        uninstall(server, release, "--namespace", namespace)


def test_what_people_made_outlives_an_uninstall(server: ApiServer) -> None:
    with installed(server):
        assert server.request("GET", MANAGER)["spec"]["replicas"] == 2
        server.wait_until_served(POD_GROUPS)
        gang = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "gang"}}
        server.request("POST", POD_GROUPS, {**gang, "spec": {"minMember": 2}})
        server.request("POST", f"{SYSTEM}/configmaps", {"metadata": {"name": "mine"}})
    assert not server.exists(MANAGER)
    assert not server.exists(WEBHOOKS)
    assert server.exists(f"{POD_GROUPS}/gang")
    assert server.exists(f"{SYSTEM}/configmaps/mine")
    assert server.exists("/apis/scheduling.k8s.io/v1/priorityclasses/koord-batch")
    names = {one["metadata"]["name"] for one in server.request("GET", CRDS)["items"]}
    assert {one["metadata"]["name"] for one in crd_manifests()} <= names
    with installed(server):  # again, over what was left
        assert server.exists(MANAGER)
        assert server.exists(f"{POD_GROUPS}/gang")


def test_another_release_takes_over_what_was_left_when_it_is_told_to(server: ApiServer) -> None:
    with installed(server):
        pass
    with pytest.raises(HelmFailed, match="cannot be imported into the current release"):
        helm(server, "install", "other", str(CHART))
    helm(server, "install", "other", str(CHART), "--take-ownership")
    assert server.exists(MANAGER)
    uninstall(server, "other")
    with installed(server, "--take-ownership"):
        assert server.exists(MANAGER)


def test_an_upgrade_keeps_edits_and_the_trust_in_webhooks(server: ApiServer) -> None:
    trusted = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()
    with installed(server):
        server.merge(SLO_CONFIG, {"data": {"colocation-config": '{"enable":false}', "own": "{}"}})
        before = server.request("GET", WEBHOOKS)
        for webhook in before["webhooks"]:
            webhook["clientConfig"]["caBundle"] = trusted
        server.merge(WEBHOOKS, {"webhooks": before["webhooks"], "metadata": {"annotations": {"template": "[]"}}})
        helm(server, "upgrade", "koord", str(CHART), "--set", "scheduler.replicas=3")
        assert server.request("GET", SCHEDULER)["spec"]["replicas"] == 3
        data = server.request("GET", SLO_CONFIG)["data"]
        assert (data["colocation-config"], data["own"]) == ('{"enable":false}', "{}")
        after = server.request("GET", WEBHOOKS)["webhooks"]
        assert [one["clientConfig"]["caBundle"] for one in after] == [trusted] * len(before["webhooks"])
        helm(server, "upgrade", "koord", str(CHART), "--set", "sloControllerConfig.colocation-config.enable=true")
        data = server.request("GET", SLO_CONFIG)["data"]
        assert (data["colocation-config"], data["own"]) == ('{"enable":true}', "{}"), "values win over edits"


def test_an_upgrade_brings_definitions_up_to_date(server: ApiServer) -> None:
    with installed(server):
        path = f"{CRDS}/reservations.scheduling.koordinator.sh"
        wanted = server.request("GET", path)["spec"]["versions"]
        assert wanted[0]["additionalPrinterColumns"]
        older = {key: value for key, value in wanted[0].items() if key != "additionalPrinterColumns"}
        server.merge(path, {"spec": {"versions": [older]}})
        assert server.request("GET", path)["spec"]["versions"] != wanted
        helm(server, "upgrade", "koord", str(CHART))
        assert server.request("GET", path)["spec"]["versions"] == wanted


def test_a_gate_adds_its_webhook_and_takes_it_away(server: ApiServer) -> None:
    def names() -> set[str]:
        return {one["name"] for one in server.request("GET", WEBHOOKS)["webhooks"]}

    with installed(server):
        first = names()
        helm(server, "upgrade", "koord", str(CHART), "--set", "featureGates=NodeMutatingWebhook=true")
        assert names() - first == {"mnode-status.koordinator.sh"}
        helm(server, "upgrade", "koord", str(CHART), "--reset-values")
        assert names() == first


def test_a_rollback_is_what_was_before(server: ApiServer) -> None:
    with installed(server):
        helm(
            server, "upgrade", "koord", str(CHART), "--set", "manager.replicas=5", "--set", "descheduler.enabled=false"
        )
        assert server.request("GET", MANAGER)["spec"]["replicas"] == 5
        descheduler = MANAGER.replace("koord-manager", "koord-descheduler")
        assert not server.exists(descheduler)
        helm(server, "rollback", "koord", "1")
        assert server.request("GET", MANAGER)["spec"]["replicas"] == 2
        assert server.exists(descheduler)


def test_a_namespace_that_is_there_already_is_used(server: ApiServer) -> None:
    if not server.exists("/api/v1/namespaces/premade"):
        server.request("POST", "/api/v1/namespaces", {"metadata": {"name": "premade"}})
    with installed(server, "--set", "installation.namespace=premade"):
        assert server.exists("/apis/apps/v1/namespaces/premade/deployments/koord-manager")
        helm(server, "upgrade", "koord", str(CHART), "--set", "installation.namespace=premade")
        assert server.exists("/apis/apps/v1/namespaces/premade/daemonsets/koordlet")
    assert server.exists("/api/v1/namespaces/premade")


def test_the_namespace_of_the_release(server: ApiServer) -> None:
    own = ("--create-namespace", "--set", "installation.namespace=", "--set", "crds.managed=false")
    with installed(server, *own, "--take-ownership", release="night-shift", namespace="platform"):
        assert server.exists("/apis/apps/v1/namespaces/platform/deployments/koord-manager")
    assert server.exists("/api/v1/namespaces/platform")


@pytest.mark.parametrize("home", SERVERS)
def test_a_release_of_koordinators_chart_becomes_one_of_koord(home: str, tmp_path: Path) -> None:
    """A cluster of its own: nothing of earlier releases may help."""
    with SERVERS[home]() as server:
        helm(server, "install", "koordinator", str(write_koordinator_chart(tmp_path)))
        server.wait_until_served(POD_GROUPS)
        gang = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "gang"}}
        server.request("POST", POD_GROUPS, {**gang, "spec": {"minMember": 2}})
        server.merge(SLO_CONFIG, {"data": {"colocation-config": '{"enable":false}'}})
        with pytest.raises(HelmFailed, match=r"manager\.enabled.*--reset-then-reuse-values in place of --reuse-values"):
            helm(server, "upgrade", "koordinator", str(CHART), "--reuse-values")
        helm(server, "upgrade", "koordinator", str(CHART), *values_file("koordinator-1.8"))
        (container,) = server.request("GET", MANAGER)["spec"]["template"]["spec"]["containers"]
        assert container["image"].endswith(f"/koord:{__version__}")
        assert not server.exists(MANAGER.replace("deployments/koord-manager", "daemonsets/koord-device-daemon"))
        assert server.request("GET", SLO_CONFIG)["data"]["colocation-config"] == '{"enable":false}'
        uninstall(server, "koordinator")
        assert server.exists(f"{POD_GROUPS}/gang"), "now they are kept"


def test_helm_waits_until_every_program_is_ready() -> None:
    with koord_up("--nodes", "2", "--components", "workloads,nodes,scheduler") as running:
        server = ApiServer(running.url, running.token, running.ssl(), running.kubeconfig)
        helm(server, "install", "koord", str(CHART), "--take-ownership", "--wait", "--timeout", "120s")
        status = server.request("GET", MANAGER)["status"]
        assert status["readyReplicas"] == 2
        agents = server.request("GET", MANAGER.replace("deployments/koord-manager", "daemonsets/koordlet"))["status"]
        assert (agents["numberReady"], agents["desiredNumberScheduled"]) == (2, 2)


class TestNotes:
    def notes(self, server: ApiServer, *args: str) -> str:
        said = helm(server, "install", "koord", str(CHART), "--dry-run=server", "--take-ownership", *args)
        return said.partition("\nNOTES:\n")[2]

    def test_values_without_effect_are_told(self, server: ApiServer) -> None:
        notes = self.notes(server, *values_file("koordinator-1.8"))
        for path in ("installation.roleListGroups", "koordlet.hostDirs.koordletTSDBDir"):
            assert f"- {path} has no effect: " in notes
        assert "- koordlet.image names an image of Koordinator" in notes

    def test_without_them_nothing_is_told(self, server: ApiServer) -> None:
        notes = self.notes(server)
        assert "rollout status deployment/koord-manager" in notes
        assert "To know" not in notes

    def test_failing_closed_is_told(self, server: ApiServer) -> None:
        notes = self.notes(server, "--set", "webhookConfiguration.failurePolicy.pods=Fail")
        assert "- webhookConfiguration.failurePolicy.pods is Fail" in notes
