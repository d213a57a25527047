"""From a report to what the node shows, and back when reports end."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.gates import default_feature_gates
from koord.api.koordinator.custom_kinds import DEVICES, NODE_METRICS, NODE_RESOURCE_TOPOLOGIES
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from koord.manager.configuration.watcher import SloControllerConfig
from koord.manager.controllers.noderesource import NodeResourceController
from koord.manager.feature_gates import MANAGER_GATES
from tests.manager.controllers.noderesource_harness import ON, NodeResourceHarness, Plain, run_in_harness

MID_CPU = "kubernetes.io/mid-cpu"
ORIGIN = "node.koordinator.sh/originExtendedAllocatable"


async def begun(harness: NodeResourceHarness) -> None:
    await harness.configure()
    await harness.node()
    await harness.report()
    await harness.manage()


def test_a_report_becomes_batch_resources() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        shown = await harness.show()
        assert shown["status"]["allocatable"]["kubernetes.io/batch-cpu"] == "58k"
        assert shown["status"]["capacity"]["kubernetes.io/batch-memory"] == "66G"
        assert shown["metadata"]["annotations"]["owner"] == "somebody"
        assert "58k" in shown["metadata"]["annotations"][ORIGIN]
        assert [(r.method, r.path) for r in harness.wire.writes] == [("PATCH", "/api/v1/nodes/n1/status")]

    run_in_harness(main)


def test_looking_again_writes_nothing() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        await harness.topology({"cpu": "50", "memory": "60G"}, {"cpu": "50", "memory": "60G"})
        await harness.settle()
        written = len(harness.wire.writes)
        for _ in range(3):
            await harness.controller.reconcile("n1")
            await harness.report()
            await harness.settle(60)
        await harness.settle(600)
        await harness.report()
        await harness.settle()
        assert len(harness.wire.writes) == written

    run_in_harness(main)


def test_a_restarted_manager_changes_nothing_that_is_right() -> None:
    """It must not take a cache that is still empty for a cluster that lost its reports."""

    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        await harness.unmanage()
        harness.wire.requests.clear()

        async def late(request: ApiRequest) -> None:
            if request.path.endswith("/nodemetrics"):
                await harness.clock.sleep(20)

        harness.wire.before = late
        await harness.manage()
        await harness.settle(60)
        assert harness.wire.writes == []
        assert await harness.lent() == "58k"

    run_in_harness(main)


def test_a_silent_koordlet_ends_the_loan_without_any_event_in_the_cluster() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        await harness.settle(14 * 60)
        assert await harness.lent() == "58k"
        await harness.settle(2 * 60)
        assert await harness.lent() is None
        assert await harness.lent(resource=MID_CPU) is None
        assert await harness.reasons() == ["NodeMetricAbnormal"]
        await harness.report()
        await harness.settle()
        assert await harness.lent() == "58k"
        assert sorted(await harness.reasons()) == ["NodeMetricAbnormal", "NodeMetricRestored"]

    run_in_harness(main)


@pytest.mark.parametrize(
    "absurd",
    [
        pytest.param({"cpu": "-3"}, id="negative"),
        pytest.param({"age_s": -7200}, id="from-the-future"),
        pytest.param({"nodeMetric": None}, id="incomplete"),
    ],
)
def test_an_absurd_report_is_told_once(absurd: dict[str, Any]) -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        for _ in range(4):
            await harness.report(**absurd)
            await harness.settle(60)
        assert await harness.lent() is None
        assert await harness.reasons() == ["NodeMetricAbnormal"]

    run_in_harness(main)


def test_a_node_that_never_reported_is_no_news() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await harness.configure()
        await harness.node()
        await harness.manage()
        await harness.settle(3600)
        assert await harness.lent() is None
        assert await harness.reasons() == []

    run_in_harness(main)


def test_a_deleted_report_ends_the_loan() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        unwrap(await harness.client.delete(NODE_METRICS, "n1"))
        await harness.settle()
        assert await harness.lent() is None

    run_in_harness(main)


def test_small_changes_wait_and_large_ones_do_not() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        await harness.report(cpu=9)
        await harness.settle()
        assert await harness.lent() == "58k"
        await harness.report(cpu=20)
        await harness.settle()
        assert await harness.lent() == "45k"
        await harness.report(cpu=19)
        await harness.settle(301)
        await harness.report(cpu=19)
        await harness.settle()
        assert await harness.lent() == "46k"

    run_in_harness(main)


def test_settings_reach_every_node() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        await harness.node("n2")
        await harness.report("n2")
        await harness.settle()
        await harness.configure({**ON, "cpuReclaimThresholdPercent": 50})
        await harness.settle()
        assert [await harness.lent("n1"), await harness.lent("n2")] == ["43k", "43k"]
        await harness.configure({"enable": False})
        await harness.settle()
        assert [await harness.lent("n1"), await harness.lent("n2")] == [None, None]

    run_in_harness(main)


def test_broken_settings_change_nothing() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        await harness.configure('{"enable": "yes"}')
        await harness.report(cpu=20)
        await harness.settle()
        assert await harness.lent() == "45k"  # by the last good ones
        await harness.unmanage()
        await harness.manage()
        await harness.report(cpu=50)
        await harness.settle()
        assert await harness.lent() == "45k"  # none are known to this manager, so it leaves the node alone

    run_in_harness(main)


def test_pods_count_with_the_next_report() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        await harness.pod("web")
        await harness.settle()
        assert await harness.lent() == "58k"
        await harness.report()
        await harness.settle()
        assert await harness.lent() == "38k"
        unwrap(
            await harness.client.dynamic.patch(
                PODS, "web", {"status": {"phase": "Succeeded"}}, "default", kind="merge", subresource="status"
            )
        )
        await harness.report()
        await harness.settle()
        assert await harness.lent() == "58k"

    run_in_harness(main)


GPU = {
    "type": "gpu",
    "id": "g",
    "minor": 0,
    "health": True,
    "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"},
}


@pytest.mark.parametrize(
    ("gates", "shared", "told"),
    [
        pytest.param({}, None, ["GPUSharedNotSynced"], id="no-pod-that-shares-fits"),
        pytest.param({"EnableSyncGPUSharedResource": True}, "200", [], id="synced"),
        pytest.param({"DisableDeviceResourceSpec": True}, None, [], id="no-pod-is-made-to-ask"),
    ],
)
def test_shared_gpus_are_offered_or_it_is_told_why_not(gates: Plain, shared: str | None, told: list[str]) -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        await harness.device(GPU, {**GPU, "minor": 1})
        await harness.settle()
        await harness.report()
        await harness.settle()
        assert await harness.lent(resource="koordinator.sh/gpu.shared") == shared
        assert await harness.reasons() == told

    run_in_harness(main, gates=default_feature_gates(MANAGER_GATES) | gates)


def test_devices() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        await harness.device(GPU, {**GPU, "minor": 1}, {"type": "rdma", "minor": 0, "health": True})
        await harness.settle()
        assert await harness.lent(resource="koordinator.sh/gpu") == "200"
        assert await harness.lent(resource="koordinator.sh/rdma") == "100"
        unwrap(await harness.client.delete(DEVICES, "n1"))
        await harness.settle()
        assert await harness.lent(resource="koordinator.sh/gpu") is None
        assert await harness.lent(resource="koordinator.sh/rdma") is None

    run_in_harness(main)


def test_the_amplification_follows_the_ratio_that_was_written_before() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await harness.configure(ON, **{"cpu-normalization-config": {"enable": True, "defaultRatio": 1.2}})
        await harness.node()
        await harness.report()
        await harness.topology()
        info = {"metadata": {"annotations": {"node.koordinator.sh/cpu-basic-info": '{"cpuModel":"X"}'}}}
        unwrap(await harness.client.dynamic.patch(NODE_RESOURCE_TOPOLOGIES, "n1", info, kind="merge"))
        await harness.manage()
        annotations = (await harness.show())["metadata"]["annotations"]
        assert annotations["node.koordinator.sh/cpu-normalization-ratio"] == "1.20"
        assert annotations["node.koordinator.sh/resource-amplification-ratio"] == '{"cpu":1.20}'
        assert await harness.lent() == "69600"

    run_in_harness(main)


def test_parts_that_are_switched_off_write_nothing() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        assert await harness.lent() == "58k"
        assert await harness.lent(resource=MID_CPU) is None

    run_in_harness(main, plugins=("*", "-MidResource"))


def test_the_answer_to_why_has_every_term() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        decision = harness.controller.explain("n1")
        assert decision is not None
        assert decision.messages["BatchResource"].startswith(
            "batchAllocatable[CPU(Milli-Core)]:58000 = nodeCapacity:100000 - nodeSafetyMargin:35000"
        )
        assert harness.controller.explain("n2") is None

    run_in_harness(main)


def test_numbers_are_published_and_go_with_their_node() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        published = {reading.name: reading for reading in harness.controller.readings()}
        gauge = published["slo_controller_node_extended_resource_allocatable_internal"]
        assert (("n1", "kubernetes.io/batch-cpu", "integer"), 58.0) in gauge.values
        unwrap(await harness.client.delete(NODES, "n1"))
        await harness.settle()
        gauge = {reading.name: reading for reading in harness.controller.readings()}[gauge.name]
        assert gauge.values == ()

    run_in_harness(main)


def test_no_request_goes_beyond_the_declared_rights() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        await harness.topology({"cpu": "100", "memory": "120G"})
        await harness.settle(3600)
        verbs = {"GET": ("get", "list", "watch"), "PATCH": ("patch",), "POST": ("create",)}
        rights = (*NodeResourceController.rights, *SloControllerConfig.rights)
        for request in harness.wire.requests:
            parts = request.path.removeprefix("/apis/").removeprefix("/api/").split("/")
            group, rest = (parts[0], parts[2:]) if request.path.startswith("/apis/") else ("", parts[1:])
            if rest[0] == "namespaces":
                rest = rest[2:]
            resource = "/".join([rest[0], *rest[2:]])
            assert any(
                right.group == group and resource in right.resources and set(verbs[request.method]) & set(right.verbs)
                for right in rights
            ), request

    run_in_harness(main)


def test_a_sync_period_looks_at_nodes_without_any_event() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        await harness.pod("web")
        await harness.settle(70)
        assert await harness.lent() == "38k"

    run_in_harness(main, sync_period_s=60.0)


def test_zones_that_grow_lend_more_at_once() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        await harness.topology({"cpu": "50", "memory": "60G"}, {"cpu": "50", "memory": "60G"})
        await harness.settle()
        zones = await harness.zones()
        assert zones[0]["resources"][1]["allocatable"] == "29k"
        for entry in zones[0]["resources"]:
            if entry["name"] == "cpu":
                entry["allocatable"] = "70"
        unwrap(await harness.client.dynamic.patch(NODE_RESOURCE_TOPOLOGIES, "n1", {"zones": zones}, kind="merge"))
        await harness.settle()
        assert (await harness.zones())[0]["resources"][1]["allocatable"] == "42k"

    run_in_harness(main)


def test_small_changes_of_zones_wait_too() -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await begun(harness)
        await harness.topology({"cpu": "100", "memory": "120G"})
        await harness.settle()
        for wait_s, shown in ((2, "58k"), (301, "57k")):
            await harness.settle(wait_s)
            await harness.report(cpu=8)
            await harness.settle()
            assert (await harness.zones())[0]["resources"][1]["allocatable"] == shown

    run_in_harness(main)
