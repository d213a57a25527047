"""Nodes that stop reporting or vanish, the fate of their pods, and budgets, in virtual time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, LEASES, NODES, POD_DISRUPTION_BUDGETS, PODS
from koord.telemetry.clock import LoopClock, run_virtual
from koord.values import timestamp
from tests.embedded.workloads.workload_cluster import WorkloadCluster, names, template, workload_cluster

NODE_WATCH = ("node-lifecycle", "taint-eviction", "pod-gc")


def stamp(clock: LoopClock) -> str:
    return timestamp.micro_text(datetime.fromtimestamp(clock.time(), UTC))


class Beats:
    """The leases of some nodes, renewed by hand."""

    def __init__(self, here: WorkloadCluster, clock: LoopClock) -> None:
        self.here, self.clock = here, clock

    async def begin(self, *nodes: str) -> None:
        for node in nodes:
            await self.here.create(
                LEASES, {"metadata": {"name": node}, "spec": {"renewTime": stamp(self.clock)}}, "kube-node-lease"
            )

    async def go_on(self, seconds: float, *nodes: str) -> None:
        left = seconds
        while left > 0:
            for node in nodes:
                await self.here.merge(LEASES, node, {"spec": {"renewTime": stamp(self.clock)}}, "kube-node-lease")
            await self.here.pass_time(min(10, left))
            left -= 10


def taints(node: Any) -> set[tuple[str, str]]:
    return {(taint.key.rpartition("/")[2], taint.effect) for taint in node.spec.taints}


def pod_on(name: str, node: str, *tolerations: dict[str, Any]) -> dict[str, Any]:
    spec = {**template()["spec"], "nodeName": node, "tolerations": list(tolerations)}
    return {"metadata": {"name": name}, "spec": spec}


def bears(seconds: int) -> dict[str, Any]:
    key = "node.kubernetes.io/unreachable"
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}


def test_silent_node_is_marked_and_its_pods_leave() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, NODE_WATCH) as here:
            beats = Beats(here, clock)
            await beats.begin("node-0", "node-1", "node-2")
            await here.create(PODS, pod_on("impatient", "node-0", bears(0)))
            await here.create(PODS, pod_on("patient", "node-0", bears(100)))
            await here.create(PODS, pod_on("elsewhere", "node-1"))
            await beats.go_on(35, "node-1", "node-2")
            assert taints(await here.get(NODES, "node-0", None)) == set()
            await beats.go_on(20, "node-1", "node-2")
            lost = await here.get(NODES, "node-0", None)
            ready = {each.type: each for each in lost.status.conditions}["Ready"]
            assert (ready.status, ready.reason) == ("Unknown", "NodeStatusUnknown")
            assert taints(lost) == {("unreachable", "NoSchedule"), ("unreachable", "NoExecute")}
            assert names(await here.list(PODS)) == ["elsewhere", "patient"]
            marked = await here.get(PODS, "patient")
            assert [(c.status, c.reason) for c in marked.status.conditions if c.type == "Ready"] == [
                ("False", "NodeNotReady")
            ]
            await beats.go_on(70, "node-1", "node-2")
            assert names(await here.list(PODS)) == ["elsewhere", "patient"]
            await beats.go_on(30, "node-1", "node-2")
            assert names(await here.list(PODS)) == ["elsewhere"]
            await here.client.patch(
                NODES, "node-0", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
                kind="strategic", subresource="status",
            )  # fmt: skip
            await here.pass_time(1)
            assert taints(await here.get(NODES, "node-0", None)) == set()

    run_virtual(story)


def test_when_everything_is_silent_nothing_is_evicted() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, NODE_WATCH) as here:
            for node in ("node-0", "node-1", "node-2"):
                await here.create(PODS, pod_on(f"on-{node}", node))
            await here.pass_time(600)
            for node in await here.list(NODES, None):
                assert ("unreachable", "NoSchedule") in taints(node)
                assert ("unreachable", "NoExecute") not in taints(node)
            assert len(await here.list(PODS)) == 3

    run_virtual(story)


def test_evictions_are_one_node_at_a_time() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, NODE_WATCH, nodes=6) as here:
            beats = Beats(here, clock)
            alive = ["node-2", "node-3", "node-4", "node-5"]
            await beats.begin("node-0", "node-1", *alive)
            await beats.go_on(45, *alive)

            async def evicted() -> int:
                return sum(("unreachable", "NoExecute") in taints(node) for node in await here.list(NODES, None))

            assert await evicted() == 1
            await beats.go_on(15, *alive)
            assert await evicted() == 2

    run_virtual(story)


def test_cordoned_and_pressed_nodes_are_tainted() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, NODE_WATCH) as here:
            await here.merge(NODES, "node-0", {"spec": {"unschedulable": True}}, None)
            pressed = {"type": "MemoryPressure", "status": "True"}
            await here.client.patch(
                NODES, "node-1", {"status": {"conditions": [pressed]}}, kind="strategic", subresource="status"
            )
            await here.pass_time(1)
            assert taints(await here.get(NODES, "node-0", None)) == {("unschedulable", "NoSchedule")}
            assert taints(await here.get(NODES, "node-1", None)) == {("memory-pressure", "NoSchedule")}
            await here.merge(NODES, "node-0", {"spec": {"unschedulable": None}}, None)
            await here.pass_time(1)
            assert taints(await here.get(NODES, "node-0", None)) == set()

    run_virtual(story)


def test_pods_of_a_deleted_node_are_removed() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, ("pod-gc",)) as here:
            await here.create(PODS, pod_on("stranded", "node-0"))
            await here.create(PODS, pod_on("fine", "node-1"))
            await here.pass_time(5)
            here.kubelet.deaf = True
            await here.delete(NODES, "node-0", None)
            await here.pass_time(30)
            assert names(await here.list(PODS)) == ["fine", "stranded"]
            await here.pass_time(60)
            assert names(await here.list(PODS)) == ["fine"]

    run_virtual(story)


# -- budgets


def web(replicas: int) -> dict[str, Any]:
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template()}
    return {"metadata": {"name": "web"}, "spec": spec}


def budget(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "guard"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}}


def test_budget_counts_and_guards() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, ("deployment", "replicaset", "disruption")) as here:
            await here.create(DEPLOYMENTS, web(4))
            await here.create(POD_DISRUPTION_BUDGETS, budget(maxUnavailable="25%"))
            await here.pass_time(5)
            status = (await here.get(POD_DISRUPTION_BUDGETS, "guard")).status
            counted = (status.expected_pods, status.current_healthy, status.desired_healthy, status.disruptions_allowed)
            assert counted == (4, 4, 3, 1)
            assert [(c.type, c.status, c.reason) for c in status.conditions] == [
                ("DisruptionAllowed", "True", "SufficientPods")
            ]
            first, second, *_ = names(await here.list(PODS))
            assert await here.client.evict("default", first) is None
            refused = await here.client.evict("default", second)
            assert refused is not None
            assert refused.too_many
            await here.pass_time(0.5)
            low = (await here.get(POD_DISRUPTION_BUDGETS, "guard")).status
            assert (low.disruptions_allowed, low.disrupted_pods) == (0, {})  # its deletion has been seen
            await here.pass_time(5)
            again = (await here.get(POD_DISRUPTION_BUDGETS, "guard")).status
            assert again.disruptions_allowed == 1

    run_virtual(story)


def test_budget_over_two_revisions_counts_the_deployment_once() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, ("deployment", "replicaset", "disruption")) as here:
            await here.create(DEPLOYMENTS, web(4))
            await here.create(POD_DISRUPTION_BUDGETS, budget(minAvailable="50%"))
            await here.pass_time(5)
            stuck = template(image="app:2", toy__never_ready="yes")
            await here.merge(DEPLOYMENTS, "web", {"spec": {"template": stuck}})
            await here.pass_time(10)
            status = (await here.get(POD_DISRUPTION_BUDGETS, "guard")).status
            assert (status.expected_pods, status.desired_healthy, status.current_healthy) == (4, 2, 3)

    run_virtual(story)
