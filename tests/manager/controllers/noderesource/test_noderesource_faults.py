"""Objects that go in the middle of a write, servers that say no, and others who write at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api.builtin import NODES
from koord.api.custom import DEVICES, NODE_METRICS, NODE_RESOURCE_TOPOLOGIES
from koord.kube.refused import ok
from koord.kube.transport import Answer, PlainBody, Request
from tests.manager.controllers.noderesource.town import ON, Town, in_town

ZONES = ({"cpu": "50", "memory": "60G"}, {"cpu": "50", "memory": "60G"})
NODE_STATUS = "/api/v1/nodes/n1/status"
TOPOLOGY = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/n1"


def refusal(code: int, reason: str) -> Answer:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": "no"}
    return Answer(status=code, body=PlainBody(body))


def once(path: str, act: Callable[[], Awaitable[Answer | None]]) -> Callable[[Request], Awaitable[Answer | None]]:
    """Before the first patch of `path`."""
    done: list[bool] = []

    async def before(request: Request) -> Answer | None:
        if done or request.method != "PATCH" or request.path != path:
            return None
        done.append(True)
        return await act()

    return before


async def lending(town: Town) -> None:
    await town.configure()
    await town.node()
    await town.report()


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
    async def main(town: Town) -> None:
        await lending(town)
        await town.topology(*ZONES)

        async def refuse() -> Answer:
            return refusal(code, reason)

        town.wire.before = once(path, refuse)
        await town.manage()
        await town.settle(30)
        assert await town.lent() == "58k"
        assert "kubernetes.io/batch-cpu" in [entry["name"] for entry in (await town.zones())[0]["resources"]]
        assert town.controller.queue.delayed <= 1  # nothing but the end of the report is waited for

    in_town(main)


def test_a_node_deleted_before_the_write_needs_none() -> None:
    async def main(town: Town) -> None:
        await lending(town)

        async def delete() -> None:
            ok(await town.client.delete(NODES, "n1"))

        town.wire.before = once(NODE_STATUS, delete)
        await town.manage()
        await town.settle(60)
        assert len(town.wire.writes) == 1
        assert town.controller.tally.counts["failed", "updateNodeNotFound"] == 1

    in_town(main)


def test_a_namesake_does_not_get_what_was_meant_for_another() -> None:
    async def main(town: Town) -> None:
        await lending(town)

        async def replace() -> None:
            ok(await town.client.delete(NODES, "n1"))
            half = {"cpu": "50", "memory": "60G"}
            await town.node(capacity=half, allocatable=half)

        town.wire.before = once(NODE_STATUS, replace)
        await town.manage()
        await town.settle(60)
        assert await town.lent() == "25500"
        assert town.controller.tally.counts["failed", "updateNodeNotFound"] == 1

    in_town(main)


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
    async def main(town: Town) -> None:
        await lending(town)
        await town.topology(*ZONES)
        await town.device({"type": "rdma", "minor": 0, "health": True})

        async def delete() -> None:
            ok(await town.client.delete(resource, "n1"))

        town.wire.before = once(path, delete)
        await town.manage()
        await town.settle(60)
        assert await town.lent() == (None if resource is NODE_METRICS else "58k")
        assert await town.lent(resource="koordinator.sh/rdma") == (None if resource is DEVICES else "100")

    in_town(main)


def test_what_others_write_meanwhile_survives() -> None:
    async def main(town: Town) -> None:
        await lending(town)
        await town.topology(*ZONES)

        async def kubelet() -> None:
            status = {"allocatable": {"example.com/card": "3"}, "capacity": {"example.com/card": "4"}}
            patch = {"metadata": {"annotations": {"new": "1"}}, "status": status}
            ok(await town.client.plain.patch(NODES, "n1", patch, kind="merge", subresource="status"))

        town.wire.before = once(NODE_STATUS, kubelet)
        await town.manage()
        shown = await town.show()
        assert shown["status"]["allocatable"]["example.com/card"] == "3"
        assert shown["status"]["capacity"]["example.com/card"] == "4"
        assert shown["metadata"]["annotations"]["new"] == "1"
        assert shown["status"]["allocatable"]["kubernetes.io/batch-cpu"] == "58k"

    in_town(main)


def test_a_koordlet_that_writes_the_zones_meanwhile_is_not_overruled() -> None:
    async def main(town: Town) -> None:
        await lending(town)
        await town.topology(*ZONES)

        async def koordlet() -> None:
            zones = await town.zones()
            zones[1]["attributes"] = [{"name": "a", "value": "b"}]
            ok(await town.client.plain.patch(NODE_RESOURCE_TOPOLOGIES, "n1", {"zones": zones}, kind="merge"))

        town.wire.before = once(TOPOLOGY, koordlet)
        await town.manage()
        await town.settle(10)
        zones = await town.zones()
        assert zones[1]["attributes"] == [{"name": "a", "value": "b"}]
        assert [entry["name"] for entry in zones[1]["resources"]] == [
            "cpu",
            "kubernetes.io/batch-cpu",
            "kubernetes.io/batch-memory",
            "memory",
        ]

    in_town(main)


def test_an_overwritten_allocatable_is_restored() -> None:
    """A kubelet that restarts drops the names that it does not know."""

    async def main(town: Town) -> None:
        await lending(town)
        await town.manage()
        gone = {"status": {"allocatable": {"kubernetes.io/batch-cpu": None}}}
        ok(await town.client.plain.patch(NODES, "n1", gone, kind="merge", subresource="status"))
        await town.settle()
        assert await town.lent() == "58k"

    in_town(main)


def test_zones_keep_their_last_values_when_reports_end() -> None:
    async def main(town: Town) -> None:
        await lending(town)
        await town.topology(*ZONES)
        await town.manage()
        before = await town.zones()
        await town.settle(20 * 60)
        assert await town.lent() is None
        assert await town.zones() == before

    in_town(main)


def test_nothing_is_kept_of_nodes_that_are_gone() -> None:
    async def main(town: Town) -> None:
        await town.configure(ON)
        await town.manage()
        for number in range(20):
            await town.node(f"n{number}")
            await town.report(f"n{number}", cpu="-1" if number % 2 else 1)
        await town.settle()
        for number in range(20):
            ok(await town.client.delete(NODES, f"n{number}"))
            ok(await town.client.delete(NODE_METRICS, f"n{number}"))
        await town.settle(3600)
        assert len(town.controller.sight.nodes) == 0
        assert town.controller.remembered() == 0

    in_town(main)
