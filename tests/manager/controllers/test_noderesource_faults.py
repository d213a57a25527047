"""Objects that go in the middle of a write, servers that say no, and others who write at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import DEVICES, NODE_METRICS, NODE_RESOURCE_TOPOLOGIES
from koord.api.kubernetes.builtin_kinds import NODES
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest, ApiResponse, UnstructuredBody
from tests.manager.controllers.noderesource_harness import ON, NodeResourceHarness, run_in_harness

ZONES = ({"cpu": "50", "memory": "60G"}, {"cpu": "50", "memory": "60G"})
NODE_STATUS = "/api/v1/nodes/n1/status"
TOPOLOGY = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/n1"


def refusal(code: int, reason: str) -> ApiResponse:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": "no"}
    return ApiResponse(status=code, body=UnstructuredBody(body))


def once(
    path: str, act: Callable[[], Awaitable[ApiResponse | None]]
) -> Callable[[ApiRequest], Awaitable[ApiResponse | None]]:
    """Before the first patch of `path`."""
    done: list[bool] = []

    async def before(request: ApiRequest) -> ApiResponse | None:
        if done or request.method != "PATCH" or request.path != path:
            return None
        done.append(True)
        return await act()

    return before


async def lending(harness: NodeResourceHarness) -> None:
    await harness.configure()
    await harness.node()
    await harness.report()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        pytest.param(409, "Conflict", id="conflict"),
        pytest.param(429, "TooManyRequests", id="too-many"),
        pytest.param(500, "InternalError", id="trouble"),
        pytest.param(403, "Forbidden", id="forbidden-for-a-while"),
    ],
)
@pytest.mark.parametrize("path", [pytest.param(NODE_STATUS, id="node"), pytest.param(TOPOLOGY, id="topology")])
def test_a_refused_write_is_made_again(code: int, reason: str, path: str) -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await lending(harness)
        await harness.topology(*ZONES)

        async def refuse() -> ApiResponse:
            return refusal(code, reason)

        harness.wire.before = once(path, refuse)
        await harness.manage()
        await harness.settle(30)
        assert await harness.lent() == "58k"
        assert "kubernetes.io/batch-cpu" in [entry["name"] for entry in (await harness.zones())[0]["resources"]]
        assert harness.controller.loop.queue.delayed <= 1  # nothing but the end of the report is waited for

    run_in_harness(main)


def test_a_node_deleted_before_the_write_needs_none() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await lending(harness)

        async def delete() -> None:
            unwrap(await harness.client.delete(NODES, "n1"))

        harness.wire.before = once(NODE_STATUS, delete)
        await harness.manage()
        await harness.settle(60)
        assert len(harness.wire.writes) == 1
        assert harness.controller.counter.counts["failed", "updateNodeNotFound"] == 1

    run_in_harness(main)


def test_a_namesake_does_not_get_what_was_meant_for_another() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await lending(harness)

        async def replace() -> None:
            unwrap(await harness.client.delete(NODES, "n1"))
            half = {"cpu": "50", "memory": "60G"}
            await harness.node(capacity=half, allocatable=half)

        harness.wire.before = once(NODE_STATUS, replace)
        await harness.manage()
        await harness.settle(60)
        assert await harness.lent() == "25500"
        assert harness.controller.counter.counts["failed", "updateNodeNotFound"] == 1

    run_in_harness(main)


@pytest.mark.parametrize(
    "resource",
    [
        pytest.param(NODE_METRICS, id="report"),
        pytest.param(NODE_RESOURCE_TOPOLOGIES, id="topology"),
        pytest.param(DEVICES, id="device"),
    ],
)
@pytest.mark.parametrize("path", [pytest.param(NODE_STATUS, id="node"), pytest.param(TOPOLOGY, id="zones")])
def test_what_was_seen_may_be_gone_when_it_is_written(resource: Any, path: str) -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await lending(harness)
        await harness.topology(*ZONES)
        await harness.device({"type": "rdma", "minor": 0, "health": True})

        async def delete() -> None:
            unwrap(await harness.client.delete(resource, "n1"))

        harness.wire.before = once(path, delete)
        await harness.manage()
        await harness.settle(60)
        assert await harness.lent() == (None if resource is NODE_METRICS else "58k")
        assert await harness.lent(resource="koordinator.sh/rdma") == (None if resource is DEVICES else "100")

    run_in_harness(main)


def test_what_others_write_meanwhile_survives() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await lending(harness)
        await harness.topology(*ZONES)

        async def kubelet() -> None:
            status = {"allocatable": {"example.com/card": "3"}, "capacity": {"example.com/card": "4"}}
            patch = {"metadata": {"annotations": {"new": "1"}}, "status": status}
            unwrap(await harness.client.dynamic.patch(NODES, "n1", patch, kind="merge", subresource="status"))

        harness.wire.before = once(NODE_STATUS, kubelet)
        await harness.manage()
        shown = await harness.show()
        assert shown["status"]["allocatable"]["example.com/card"] == "3"
        assert shown["status"]["capacity"]["example.com/card"] == "4"
        assert shown["metadata"]["annotations"]["new"] == "1"
        assert shown["status"]["allocatable"]["kubernetes.io/batch-cpu"] == "58k"

    run_in_harness(main)


def test_a_koordlet_that_writes_the_zones_meanwhile_is_not_overruled() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await lending(harness)
        await harness.topology(*ZONES)

        async def koordlet() -> None:
            zones = await harness.zones()
            zones[1]["attributes"] = [{"name": "a", "value": "b"}]
            unwrap(await harness.client.dynamic.patch(NODE_RESOURCE_TOPOLOGIES, "n1", {"zones": zones}, kind="merge"))

        harness.wire.before = once(TOPOLOGY, koordlet)
        await harness.manage()
        await harness.settle(10)
        zones = await harness.zones()
        assert zones[1]["attributes"] == [{"name": "a", "value": "b"}]
        assert [entry["name"] for entry in zones[1]["resources"]] == [
            "cpu",
            "kubernetes.io/batch-cpu",
            "kubernetes.io/batch-memory",
            "memory",
        ]

    run_in_harness(main)


def test_an_overwritten_allocatable_is_restored() -> None:
    """A kubelet that restarts drops the names that it does not know."""

    async def main(harness: NodeResourceHarness) -> None:
        await lending(harness)
        await harness.manage()
        gone = {"status": {"allocatable": {"kubernetes.io/batch-cpu": None}}}
        unwrap(await harness.client.dynamic.patch(NODES, "n1", gone, kind="merge", subresource="status"))
        await harness.settle()
        assert await harness.lent() == "58k"

    run_in_harness(main)


def test_zones_keep_their_last_values_when_reports_end() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await lending(harness)
        await harness.topology(*ZONES)
        await harness.manage()
        before = await harness.zones()
        await harness.settle(20 * 60)
        assert await harness.lent() is None
        assert await harness.zones() == before

    run_in_harness(main)


def test_nothing_is_kept_of_nodes_that_are_gone() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await harness.configure(ON)
        await harness.manage()
        for number in range(20):
            await harness.node(f"n{number}")
            await harness.report(f"n{number}", cpu="-1" if number % 2 else 1)
        await harness.settle()
        for number in range(20):
            unwrap(await harness.client.delete(NODES, f"n{number}"))
            unwrap(await harness.client.delete(NODE_METRICS, f"n{number}"))
        await harness.settle(3600)
        assert len(harness.controller.informers.nodes) == 0
        assert harness.controller.remembered_nodes() == 0

    run_in_harness(main)


def test_a_flood_of_reports_is_worked_on_one_write_at_a_time_and_ends_with_the_last() -> None:
    nodes, turns = [f"n{number}" for number in range(4)], 100

    async def main(harness: NodeResourceHarness) -> None:
        await harness.configure()
        for name in nodes:
            await harness.node(name)
            await harness.report(name)
        await harness.manage()

        async def slow(request: ApiRequest) -> ApiResponse | None:
            if request.method == "PATCH":
                await harness.clock.sleep(1.0)
            return None

        harness.wire.before, before = slow, len(harness.wire.writes)
        for turn in range(turns):  # 20 reports a second of each node, each too different to be passed over
            for name in nodes:
                await harness.report(name, cpu=5 + 40 * (turn % 2))
            await harness.clock.sleep(0.05)
            assert harness.controller.loop.queue.depth <= len(nodes), "a node waits once, however much it reports"
        await harness.settle(5)
        assert [await harness.lent(name) for name in nodes] == ["20k"] * len(nodes)
        assert len(harness.wire.writes) - before <= len(nodes) * 8, "one write a second, not one for each report"

    run_in_harness(main)
