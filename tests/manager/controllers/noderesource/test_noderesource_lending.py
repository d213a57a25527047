"""From a report to what the node shows, and back when reports end."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.builtin import NODES, PODS
from koord.api.custom import DEVICES, NODE_METRICS, NODE_RESOURCE_TOPOLOGIES
from koord.kube.refused import ok
from koord.kube.transport import Request
from koord.manager.configuration.configuration import Configuration
from koord.manager.controllers.noderesource import NodeResourceController
from tests.manager.controllers.noderesource.town import ON, Town, in_town

MID_CPU = "kubernetes.io/mid-cpu"
ORIGIN = "node.koordinator.sh/originExtendedAllocatable"


async def begun(town: Town) -> None:
    await town.configure()
    await town.node()
    await town.report()
    await town.manage()


def test_a_report_becomes_batch_resources() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        shown = await town.show()
        assert shown["status"]["allocatable"]["kubernetes.io/batch-cpu"] == "58k"
        assert shown["status"]["capacity"]["kubernetes.io/batch-memory"] == "66G"
        assert shown["metadata"]["annotations"]["owner"] == "somebody"
        assert "58k" in shown["metadata"]["annotations"][ORIGIN]
        assert [(r.method, r.path) for r in town.wire.writes] == [("PATCH", "/api/v1/nodes/n1/status")]

    in_town(main)


def test_looking_again_writes_nothing() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        await town.topology({"cpu": "50", "memory": "60G"}, {"cpu": "50", "memory": "60G"})
        await town.settle()
        written = len(town.wire.writes)
        for _ in range(3):
            await town.controller.reconcile("n1")
            await town.report()
            await town.settle(60)
        await town.settle(600)
        await town.report()
        await town.settle()
        assert len(town.wire.writes) == written

    in_town(main)


def test_a_restarted_manager_changes_nothing_that_is_right() -> None:
    """It must not take a cache that is still empty for a cluster that lost its reports."""

    async def main(town: Town) -> None:
        await begun(town)
        await town.unmanage()
        town.wire.requests.clear()

        async def late(request: Request) -> None:
            if request.path.endswith("/nodemetrics"):
                await town.clock.sleep(20)

        town.wire.before = late
        await town.manage()
        await town.settle(60)
        assert town.wire.writes == []
        assert await town.lent() == "58k"

    in_town(main)


def test_a_silent_koordlet_ends_the_loan_without_any_event_in_the_cluster() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        await town.settle(14 * 60)
        assert await town.lent() == "58k"
        await town.settle(2 * 60)
        assert await town.lent() is None
        assert await town.lent(resource=MID_CPU) is None
        assert await town.reasons() == ["NodeMetricAbnormal"]
        await town.report()
        await town.settle()
        assert await town.lent() == "58k"
        assert sorted(await town.reasons()) == ["NodeMetricAbnormal", "NodeMetricRestored"]

    in_town(main)


@pytest.mark.parametrize(
    "absurd",
    [
        pytest.param({"cpu": "-3"}, id="negative"),
        pytest.param({"age_s": -7200}, id="from-the-future"),
        pytest.param({"nodeMetric": None}, id="incomplete"),
    ],
)
def test_an_absurd_report_is_told_once(absurd: dict[str, Any]) -> None:
    async def main(town: Town) -> None:
        await begun(town)
        for _ in range(4):
            await town.report(**absurd)
            await town.settle(60)
        assert await town.lent() is None
        assert await town.reasons() == ["NodeMetricAbnormal"]

    in_town(main)


def test_a_node_that_never_reported_is_no_news() -> None:
    async def main(town: Town) -> None:
        await town.configure()
        await town.node()
        await town.manage()
        await town.settle(3600)
        assert await town.lent() is None
        assert await town.reasons() == []

    in_town(main)


def test_a_deleted_report_ends_the_loan() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        ok(await town.client.delete(NODE_METRICS, "n1"))
        await town.settle()
        assert await town.lent() is None

    in_town(main)


def test_small_changes_wait_and_large_ones_do_not() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        await town.report(cpu=9)
        await town.settle()
        assert await town.lent() == "58k"
        await town.report(cpu=20)
        await town.settle()
        assert await town.lent() == "45k"
        await town.report(cpu=19)
        await town.settle(301)
        await town.report(cpu=19)
        await town.settle()
        assert await town.lent() == "46k"

    in_town(main)


def test_settings_reach_every_node() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        await town.node("n2")
        await town.report("n2")
        await town.settle()
        await town.configure({**ON, "cpuReclaimThresholdPercent": 50})
        await town.settle()
        assert [await town.lent("n1"), await town.lent("n2")] == ["43k", "43k"]
        await town.configure({"enable": False})
        await town.settle()
        assert [await town.lent("n1"), await town.lent("n2")] == [None, None]

    in_town(main)


def test_broken_settings_change_nothing() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        await town.configure('{"enable": "yes"}')
        await town.report(cpu=20)
        await town.settle()
        assert await town.lent() == "45k"  # by the last good ones
        await town.unmanage()
        await town.manage()
        await town.report(cpu=50)
        await town.settle()
        assert await town.lent() == "45k"  # none are known to this manager, so it leaves the node alone

    in_town(main)


def test_pods_count_with_the_next_report() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        await town.pod("web")
        await town.settle()
        assert await town.lent() == "58k"
        await town.report()
        await town.settle()
        assert await town.lent() == "38k"
        ok(
            await town.client.plain.patch(
                PODS, "web", {"status": {"phase": "Succeeded"}}, "default", kind="merge", subresource="status"
            )
        )
        await town.report()
        await town.settle()
        assert await town.lent() == "58k"

    in_town(main)


def test_devices() -> None:
    gpu = {
        "type": "gpu",
        "id": "g",
        "minor": 0,
        "health": True,
        "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"},
    }

    async def main(town: Town) -> None:
        await begun(town)
        await town.device(gpu, {**gpu, "minor": 1}, {"type": "rdma", "minor": 0, "health": True})
        await town.settle()
        assert await town.lent(resource="koordinator.sh/gpu") == "200"
        assert await town.lent(resource="koordinator.sh/rdma") == "100"
        ok(await town.client.delete(DEVICES, "n1"))
        await town.settle()
        assert await town.lent(resource="koordinator.sh/gpu") is None
        assert await town.lent(resource="koordinator.sh/rdma") is None

    in_town(main)


def test_the_amplification_follows_the_ratio_that_was_written_before() -> None:
    async def main(town: Town) -> None:
        await town.configure(ON, **{"cpu-normalization-config": {"enable": True, "defaultRatio": 1.2}})
        await town.node()
        await town.report()
        await town.topology()
        info = {"metadata": {"annotations": {"node.koordinator.sh/cpu-basic-info": '{"cpuModel":"X"}'}}}
        ok(await town.client.plain.patch(NODE_RESOURCE_TOPOLOGIES, "n1", info, kind="merge"))
        await town.manage()
        annotations = (await town.show())["metadata"]["annotations"]
        assert annotations["node.koordinator.sh/cpu-normalization-ratio"] == "1.20"
        assert annotations["node.koordinator.sh/resource-amplification-ratio"] == '{"cpu":1.20}'
        assert await town.lent() == "69600"

    in_town(main)


def test_parts_that_are_switched_off_write_nothing() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        assert await town.lent() == "58k"
        assert await town.lent(resource=MID_CPU) is None

    in_town(main, plugins=("*", "-MidResource"))


def test_the_answer_to_why_has_every_term() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        decision = town.controller.explain("n1")
        assert decision is not None
        assert decision.messages["BatchResource"].startswith(
            "batchAllocatable[CPU(Milli-Core)]:58000 = nodeCapacity:100000 - nodeSafetyMargin:35000"
        )
        assert town.controller.explain("n2") is None

    in_town(main)


def test_numbers_are_published_and_go_with_their_node() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        published = {reading.name: reading for reading in town.controller.readings()}
        gauge = published["slo_controller_node_extended_resource_allocatable_internal"]
        assert (("n1", "kubernetes.io/batch-cpu", "integer"), 58.0) in gauge.values
        ok(await town.client.delete(NODES, "n1"))
        await town.settle()
        gauge = {reading.name: reading for reading in town.controller.readings()}[gauge.name]
        assert gauge.values == ()

    in_town(main)


def test_no_request_goes_beyond_the_declared_rights() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        await town.topology({"cpu": "100", "memory": "120G"})
        await town.settle(3600)
        verbs = {"GET": ("get", "list", "watch"), "PATCH": ("patch",), "POST": ("create",)}
        rights = (*NodeResourceController.rights, *Configuration.rights)
        for request in town.wire.requests:
            parts = request.path.removeprefix("/apis/").removeprefix("/api/").split("/")
            group, rest = (parts[0], parts[2:]) if request.path.startswith("/apis/") else ("", parts[1:])
            if rest[0] == "namespaces":
                rest = rest[2:]
            resource = "/".join([rest[0], *rest[2:]])
            assert any(
                right.group == group and resource in right.resources and set(verbs[request.method]) & set(right.verbs)
                for right in rights
            ), request

    in_town(main)


def test_a_sync_period_looks_at_nodes_without_any_event() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        await town.pod("web")
        await town.settle(70)
        assert await town.lent() == "38k"

    in_town(main, sync_period_s=60.0)


def test_zones_that_grow_lend_more_at_once() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        await town.topology({"cpu": "50", "memory": "60G"}, {"cpu": "50", "memory": "60G"})
        await town.settle()
        zones = await town.zones()
        assert zones[0]["resources"][1]["allocatable"] == "29k"
        for entry in zones[0]["resources"]:
            if entry["name"] == "cpu":
                entry["allocatable"] = "70"
        ok(await town.client.plain.patch(NODE_RESOURCE_TOPOLOGIES, "n1", {"zones": zones}, kind="merge"))
        await town.settle()
        assert (await town.zones())[0]["resources"][1]["allocatable"] == "42k"

    in_town(main)


def test_small_changes_of_zones_wait_too() -> None:
    async def main(town: Town) -> None:
        await begun(town)
        await town.topology({"cpu": "100", "memory": "120G"})
        await town.settle()
        for wait_s, shown in ((2, "58k"), (301, "57k")):
            await town.settle(wait_s)
            await town.report(cpu=8)
            await town.settle()
            assert (await town.zones())[0]["resources"][1]["allocatable"] == shown

    in_town(main)
