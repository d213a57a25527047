"""The watch: rows are those of `koord top nodes`, pending pods come and go, and a lost API server is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.koordinator.protocol import A_GANG_NAME, L_POD_GROUP
from koord.api.kubernetes.builtin_kinds import CUSTOM_RESOURCE_DEFINITIONS, NODES, PODS
from koord.cli.commands import top
from koord.cli.commands.dashboard.cluster_watch import NO_METRICS, ClusterWatch
from koord.dashboard.fleet import FleetTable, ResourceUse
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock, run_virtual

HOSTILE = "</td><script>alert(1)</script>"


class WatchedCluster(msgspec.Struct):
    client: Client
    watch: ClusterWatch
    fleet: FleetTable
    clock: LoopClock

    async def settle(self) -> dict[str, Any]:
        await self.clock.sleep(1)
        self.watch.refresh()
        self.fleet.tick(self.clock.time())
        return self.fleet.update("", 0)


def on_cluster(story: Callable[[WatchedCluster], Awaitable[None]], *, metrics: bool = True) -> None:
    async def main(clock: LoopClock) -> None:
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), [], clock=clock)
        await cluster.start()
        assert cluster.client is not None
        if not metrics:
            unwrap(await cluster.client.delete(CUSTOM_RESOURCE_DEFINITIONS, f"nodemetrics.{NODE_METRICS.group}"))
        fleet = FleetTable("epoch", clock.time())
        async with InformerFactory(cluster.client, clock) as informers:
            watch = ClusterWatch(cluster.client, informers, clock, fleet)
            watch.start()
            try:
                await story(WatchedCluster(cluster.client, watch, fleet, clock))
            finally:
                await watch.stop()
        await cluster.stop()

    run_virtual(main)


def node(name: str, **labels: str) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "110", "kubernetes.io/batch-cpu": "3000"}
    conditions = [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def pod(name: str, cpu: str, node_name: str = "", tier: str = "prod") -> dict[str, Any]:
    resource = {"prod": "cpu", "batch": "kubernetes.io/batch-cpu"}[tier]
    container = {"name": "main", "image": "i", "resources": {"requests": {resource: cpu}, "limits": {resource: cpu}}}
    spec: dict[str, Any] = {"containers": [container], "nodeName": node_name}
    labels = {"koordinator.sh/priority-class": f"koord-{tier}"}
    return {"metadata": {"name": name, "namespace": "default", "labels": labels}, "spec": spec}


def metric(name: str, at: str) -> dict[str, Any]:
    usage = {"resources": {"cpu": "2", "memory": "1Gi"}}
    pods = [{"namespace": "default", "name": "work", "podUsage": {"resources": {"cpu": "1500m", "memory": "512Mi"}}}]
    status = {"updateTime": at, "nodeMetric": {"nodeUsage": usage}, "podsMetric": pods}
    return {"metadata": {"name": name}, "status": status}


def test_rows_are_what_koord_top_nodes_prints() -> None:
    async def story(world: WatchedCluster) -> None:
        client = world.client
        unwrap(await client.dynamic.create(NODES, node("a", zone="x")))
        unwrap(await client.dynamic.create(PODS, pod("web", "2", "a")))
        unwrap(await client.dynamic.create(PODS, pod("work", "2000", "a", "batch")))
        reported = metric("a", "2026-01-01T00:00:00Z")
        unwrap(await client.dynamic.create(NODE_METRICS, reported))
        unwrap(await client.patch(NODE_METRICS, "a", reported, kind="merge", subresource="status"))
        update = await world.settle()
        (row,) = update["nodes"]
        (expected,) = await top.read_node_shares(client, "")
        assert expected.cpu.batch.used == 1500
        assert row[1] == ResourceUse(
            expected.cpu.capacity,
            expected.cpu.used,
            expected.cpu.prod.requested,
            expected.cpu.prod.used,
            expected.cpu.mid.room,
            expected.cpu.mid.requested,
            expected.cpu.mid.used,
            expected.cpu.batch.room,
            expected.cpu.batch.requested,
            expected.cpu.batch.used,
            expected.cpu.system,
        )
        assert (row[3], row[5], row[6]) == (2, 1, 1)
        assert (update["ready"], update["problem"], update["notes"]) == (True, "", ())

    on_cluster(story)


def test_rows_follow_deletions_and_cordons() -> None:
    async def story(world: WatchedCluster) -> None:
        for name in ("a", "b"):
            unwrap(await world.client.dynamic.create(NODES, node(name)))
        unwrap(await world.client.dynamic.create(PODS, pod("web", "2", "a")))
        await world.settle()
        unwrap(await world.client.delete(PODS, "web", "default", grace_seconds=0))
        unwrap(await world.client.patch(NODES, "a", {"spec": {"unschedulable": True}}, kind="merge"))
        unwrap(await world.client.delete(NODES, "b"))
        update = await world.settle()
        (row,) = update["nodes"]
        assert (row[0], row[1].prod_requested, row[3], row[6]) == ("a", 0, 0, 0)
        assert update["sums"]["cpu"][0] == 8000

    on_cluster(story)


def test_pending_pods_have_the_reason_of_their_condition_and_leave_when_bound() -> None:
    async def story(world: WatchedCluster) -> None:
        unwrap(await world.client.dynamic.create(PODS, pod("web", "2")))
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        said["message"] = f"0/1 nodes are available: 1 {HOSTILE}."
        patch = {"status": {"conditions": [said]}}
        unwrap(await world.client.patch(PODS, "web", patch, "default", kind="merge", subresource="status"))
        (group,) = (await world.settle())["pending"]
        assert (group["reason"], group["examples"]) == (HOSTILE, ["default/web"])
        unwrap(await world.client.delete(PODS, "web", "default", grace_seconds=0))
        assert (await world.settle())["pending"] == []

    on_cluster(story)


@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_a_pending_member_of_a_gang_waits_for_the_others_until_something_is_told(where: str) -> None:
    async def story(world: WatchedCluster) -> None:
        member = pod("member", "2")
        key = L_POD_GROUP if where == "labels" else A_GANG_NAME
        member["metadata"][where] = {**member["metadata"].get(where, {}), key: "train"}
        unwrap(await world.client.dynamic.create(PODS, member))
        (group,) = (await world.settle())["pending"]
        assert group["reason"] == "waits for the other members of gang train"

    on_cluster(story)


def test_pods_are_found_by_parts_of_their_name_in_windows() -> None:
    async def story(world: WatchedCluster) -> None:
        for number in range(5):
            unwrap(await world.client.dynamic.create(PODS, pod(f"web-{number}", "1")))
        unwrap(await world.client.dynamic.create(PODS, pod("api", "1")))
        await world.settle()
        found = world.watch.find_pods(["web", "default"], "", 2, 2)
        assert (found["total"], [one.name for one in found["pods"]]) == (5, ["web-2", "web-3"])
        assert world.watch.find_pods(["nothing"], "", 0, 10)["total"] == 0

    on_cluster(story)


def test_a_cluster_without_node_metrics_is_shown_and_told() -> None:
    async def story(world: WatchedCluster) -> None:
        unwrap(await world.client.dynamic.create(NODES, node("a")))
        update = await world.settle()
        assert update["notes"] == (NO_METRICS,)
        assert (update["ready"], update["problem"], len(update["nodes"])) == (True, "", 1)

    on_cluster(story, metrics=False)
