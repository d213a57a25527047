"""A release of the chart on a real cluster, from its install to its uninstall: the tests follow each other in order."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from koord import __version__
from koord.api.schema import crd_manifests
from tests.install.cluster import APPS, DEPLOYMENTS, SYSTEM, InstalledCluster
from tests.real.real_node import KNOBS, QUOTA, SHARES, web
from tools.nodeagent import IMAGE, is_running, until
from tools.oci_image.declaration import NAME_PREFIX
from tools.realnode import NODE

pytestmark = [pytest.mark.real, pytest.mark.machine]

Obj = dict[str, Any]

MEMORY = "memory.limit_in_bytes"
BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
PROFILES = "/apis/config.koordinator.sh/v1alpha1/clustercolocationprofiles"
JOBS = "/api/v1/namespaces/jobs/pods"
REPOSITORY = f"{NAME_PREFIX}/koord"
NEXT = "next"  # the tag of the second image
LEASES = {
    "koordinator-manager": "koord-manager",
    "koord-scheduler": "koord-scheduler",
    "koord-descheduler": "koord-descheduler",
}
WEBHOOKS = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/koordinator-mutating-webhook-configuration",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/koordinator-validating-webhook-configuration",
)
BATCH_VALUES = ("204", "20000", str(64 * 2**20))  # of 200 batch-cpu and 64Mi of batch-memory
UNLIMITED = ("2", "-1", "-1")  # what the kubelet gives to a pod without requests and limits
PROFILE: Obj = {
    "apiVersion": "config.koordinator.sh/v1alpha1",
    "kind": "ClusterColocationProfile",
    "metadata": {"name": "batch"},
    "spec": {
        "namespaceSelector": {"matchLabels": {"koordinator.sh/enable-colocation": "true"}},
        "qosClass": "BE",
        "priorityClassName": "koord-batch",
        "koordinatorPriority": 1000,
        "schedulerName": "koord-scheduler",
        "labels": {"koordinator.sh/mutated": "true"},
    },
}


def batch_pod(name: str) -> Obj:
    """Return a pod as a user writes it, who knows nothing of batch resources."""
    amounts = {"cpu": "200m", "memory": "64Mi"}
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "resources": {"requests": amounts, "limits": amounts},
    }
    spec = {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def batch_values(cluster: InstalledCluster) -> tuple[tuple[str, ...], ...]:
    """Return the shares, the quota and the memory limit of the batch pod and of its container."""
    pod = cluster.api.seen(f"{JOBS}/work")
    group = cluster.tree.layout.pod_dir(pod["status"]["qosClass"], pod["metadata"]["uid"])
    container = f"{group}/{pod['status']['containerStatuses'][0]['containerID'].partition('://')[2]}"
    return tuple(tuple(cluster.value(knob, one) for knob in (SHARES, QUOTA, MEMORY)) for one in (group, container))


def identity(cluster: InstalledCluster) -> tuple[Any, ...]:
    """Return what stays the same for as long as a pod runs on without a restart."""
    pod = cluster.api.seen(f"{JOBS}/work")
    (state,) = pod["status"]["containerStatuses"]
    return pod["metadata"]["uid"], pod["spec"]["nodeName"], state["containerID"], state["restartCount"]


def pod_names(cluster: InstalledCluster, program: str) -> set[str]:
    return {one["metadata"]["name"] for one in cluster.program_pods(program)}


def until_held(cluster: InstalledCluster, lease: str, names: set[str]) -> None:
    until(lambda: cluster.lease_holder(lease) in names, f"{lease} is held by one of {names}")


class Admissions(threading.Thread):
    """Admissions asks for pods all the time, which are not stored, and counts those that no webhook changed."""

    def __init__(self, cluster: InstalledCluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._ended = threading.Event()
        self.asked, self.unchanged = 0, 0
        self.refused: list[str] = []

    def run(self) -> None:
        while not self._ended.wait(0.2):
            self.asked += 1
            try:
                made = self._cluster.api.create(f"{JOBS}?dryRun=All", batch_pod("dry"))
            except (OSError, RuntimeError) as error:
                self.refused.append(str(error))
                continue
            self.unchanged += made["spec"]["schedulerName"] != "koord-scheduler"

    def __enter__(self) -> Admissions:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


@pytest.fixture(autouse=True)
def told(cluster: InstalledCluster, request: pytest.FixtureRequest) -> Iterator[None]:
    before = request.session.testsfailed
    yield
    if request.session.testsfailed > before:
        sys.stdout.write(cluster.diagnosis())


@pytest.fixture(scope="module")
def untouched(cluster: InstalledCluster) -> dict[str, Any]:
    """Return the node before anything of koord was there: what it shows, and the values of its groups of pods."""
    # An administrator's own thresholds, without one for CPU: other processes of the machine may need all of it.
    thresholds = {"scheduling.koordinator.sh/usage-thresholds": json.dumps({"usageThresholds": {"memory": 95}})}
    cluster.api.merge(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": thresholds}})
    cluster.run(web("web"))
    node = cluster.node_object()
    return {
        "allocatable": set(node["status"]["allocatable"]),
        "labels": node["metadata"]["labels"],
        "annotations": set(node["metadata"].get("annotations", {})),
        "conditions": {one["type"] for one in node["status"]["conditions"]},
        "groups": group_values(cluster),
    }


def group_values(cluster: InstalledCluster) -> dict[str, list[str]]:
    """Return the values of the groups that hold pods, and of a service that was there before."""
    layout = cluster.tree.layout
    shared = (layout.kubepods, layout.qos_dir("Burstable"), layout.qos_dir("BestEffort"))
    # The kubelet itself sets the shares of classes, by the pods that are there.
    found = {group: [cluster.value(knob, group) for knob in KNOBS if knob != SHARES] for group in shared}
    own = (cluster.group("web"), cluster.container("web"))
    return found | {group: [cluster.value(knob, group) for knob in KNOBS] for group in own}


def test_install_waits_until_every_program_is_ready(cluster: InstalledCluster, untouched: dict[str, Any]) -> None:
    assert untouched["allocatable"]
    notes = cluster.install()
    assert "rollout status deployment/koord-manager" in notes
    for name in DEPLOYMENTS:
        assert cluster.api.seen(f"{APPS}/deployments/{name}")["status"]["readyReplicas"] == 2
    # Helm waits for as many agents as a rollout leaves running: of a single one it waits for none.
    until(
        lambda: cluster.api.seen(f"{APPS}/daemonsets/koordlet")["status"]["numberReady"] == 1, "koordlet is ready", 60
    )
    assert cluster.restarts() == {}
    for lease, program in LEASES.items():
        until_held(cluster, lease, pod_names(cluster, program))


def test_the_node_lends_batch_resources(cluster: InstalledCluster) -> None:
    until(lambda: cluster.allocatable(BATCH_CPU) > 1000, "batch-cpu is lent", 60)
    assert cluster.allocatable(BATCH_MEMORY) > 2**30


def test_doctor_finds_nothing_wrong(cluster: InstalledCluster) -> None:
    assert cluster.findings("error", "unknown") == []
    # What the kernel of this machine lacks is the machine's own.
    assert [one for one in cluster.findings("warning") if not one.startswith("strategy-unsupported")] == []


def test_a_batch_pod_from_its_profile_to_its_cgroup(cluster: InstalledCluster) -> None:
    labels = {"koordinator.sh/enable-colocation": "true"}
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": "jobs", "labels": labels}})
    cluster.api.create(PROFILES, PROFILE)

    def is_mutated() -> bool:
        made = cluster.api.create(f"{JOBS}?dryRun=All", batch_pod("dry"))
        return bool(made["spec"]["schedulerName"] == "koord-scheduler")

    until(is_mutated, "the manager knows the profile")
    made = cluster.api.create(JOBS, batch_pod("work"))
    resources = made["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {BATCH_CPU: "200", BATCH_MEMORY: "64Mi"}
    assert made["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE"
    assert (made["spec"]["priority"], made["spec"]["priorityClassName"]) == (5000, "koord-batch")
    until(lambda: is_running(cluster.api.get(f"{JOBS}/work")), "the pod runs", 60)
    assert cluster.api.seen(f"{JOBS}/work")["spec"]["nodeName"] == NODE
    assert batch_values(cluster) == (BATCH_VALUES, BATCH_VALUES)


def test_an_upgrade_replaces_programs_and_leaves_workloads(cluster: InstalledCluster) -> None:
    before, leaders = identity(cluster), {lease: cluster.lease_holder(lease) for lease in LEASES}
    cluster.node.ctr("images", "tag", f"{REPOSITORY}:{__version__}", f"{REPOSITORY}:{NEXT}")
    with Admissions(cluster) as admissions:
        cluster.upgrade("--set", f"image.tag={NEXT}", "--set", "manager.log.level=5")
    assert admissions.asked > 10
    # One call may still meet a replica in the moment of its end; the failure policy then lets the pod pass.
    assert admissions.unchanged <= 1, cluster.webhook_failures()
    assert admissions.refused == []
    # Helm does not wait for the end of the pods that are replaced.
    until(lambda: cluster.images() == {f"koord:{NEXT}"}, "all programs are replaced", 60)
    assert identity(cluster) == before
    assert batch_values(cluster) == (BATCH_VALUES, BATCH_VALUES)
    for lease, program in LEASES.items():
        names = pod_names(cluster, program)
        assert leaders[lease] not in names
        until_held(cluster, lease, names)
    assert cluster.restarts() == {}
    assert cluster.findings("error") == []


def test_a_rollback_puts_the_image_and_the_values_back(cluster: InstalledCluster) -> None:
    before = identity(cluster)
    cluster.helm("rollback", "koord", "1", "--wait", "--timeout", "150s")
    until(lambda: cluster.images() == {f"koord:{__version__}"}, "all programs are replaced", 60)
    (container,) = cluster.api.seen(f"{APPS}/deployments/koord-manager")["spec"]["template"]["spec"]["containers"]
    assert "--v=4" in container["args"]
    assert identity(cluster) == before
    assert cluster.restarts() == {}
    for lease, program in LEASES.items():
        until_held(cluster, lease, pod_names(cluster, program))
    assert cluster.findings("error") == []
    assert cluster.programs_with_tracebacks() == []


def test_an_uninstall_leaves_a_clean_node(cluster: InstalledCluster, untouched: dict[str, Any]) -> None:
    before = identity(cluster)
    cluster.helm("uninstall", "koord", "--wait", "--timeout", "280s")
    node = cluster.node_object()
    assert set(node["status"]["allocatable"]) == untouched["allocatable"]
    assert set(node["status"]["capacity"]) == untouched["allocatable"]
    assert node["metadata"]["labels"] == untouched["labels"]
    assert set(node["metadata"].get("annotations", {})) == untouched["annotations"]
    assert {one["type"] for one in node["status"]["conditions"]} == untouched["conditions"]
    assert group_values(cluster) == untouched["groups"]
    assert identity(cluster) == before, "the batch pod runs on"
    assert batch_values(cluster) == (UNLIMITED, UNLIMITED)


def test_an_uninstall_removes_what_the_release_made(cluster: InstalledCluster) -> None:
    for path in WEBHOOKS:
        assert cluster.api.get(path) is None
    for kind in ("clusterroles", "clusterrolebindings"):
        found = cluster.api.seen(f"/apis/rbac.authorization.k8s.io/v1/{kind}")["items"]
        assert [one["metadata"]["name"] for one in found if one["metadata"]["name"].startswith("koord")] == []
    for kind in ("roles", "rolebindings"):
        assert cluster.api.seen(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SYSTEM}/{kind}")["items"] == []
    for path in (f"{APPS}/deployments", f"{APPS}/daemonsets", f"/apis/batch/v1/namespaces/{SYSTEM}/jobs"):
        assert cluster.api.seen(path)["items"] == []
    for kind in ("services", "secrets"):
        assert cluster.api.seen(f"/api/v1/namespaces/{SYSTEM}/{kind}")["items"] == []
    assert cluster.api.seen(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases")["items"] == []


def test_an_uninstall_keeps_definitions_and_their_objects(cluster: InstalledCluster) -> None:
    listed = cluster.api.seen("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    assert {one["metadata"]["name"] for one in listed} == {one["metadata"]["name"] for one in crd_manifests()}
    assert cluster.api.get(f"{PROFILES}/batch") is not None
    assert cluster.api.get("/apis/scheduling.k8s.io/v1/priorityclasses/koord-batch") is not None


def test_an_install_after_it_takes_over_what_was_left(cluster: InstalledCluster) -> None:
    before = identity(cluster)
    cluster.install()
    until(lambda: cluster.allocatable(BATCH_CPU) > 1000, "batch-cpu is lent again", 60)
    until(lambda: batch_values(cluster) == (BATCH_VALUES, BATCH_VALUES), "the batch pod is limited again", 60)
    assert identity(cluster) == before
