"""NodeSLO and NodeMetric beside each node: made, corrected, removed; never written without need, never on a guess."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.custom_kinds import NODE_METRICS, NODE_SLOS
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, EVENTS_EVENTS, NODES
from koord.api.model import to_dict
from koord.api.patch.merge_patch import create_merge_patch, merge_patch
from koord.kube.controller.controller import Done
from koord.kube.transport.api_error import ApiError, unwrap
from koord.manager.configuration.watcher import SloControllerConfig
from koord.manager.controllers.per_node_object import NodeMetricController, NodeSLOController
from koord.manager.reconcile_loop import ManagerContext
from tests.manager.manager_harness import run_with_context
from tests.manager.slo_config import NAME, NAMESPACE, add_node, config_events, settle, with_configuration, write_config

ControllersUnderTest = tuple[ManagerContext, SloControllerConfig, NodeSLOController, NodeMetricController]

STRATEGY = "node.koordinator.sh/colocation-strategy"
BANDWIDTH = "node.koordinator.sh/network-bandwidth"


def play(story: Callable[[ControllersUnderTest], Awaitable[None]]) -> None:
    """Both controllers, made and not yet started: `begin` starts them."""

    async def run(context: ManagerContext, configuration: SloControllerConfig) -> None:
        slo, metric = NodeSLOController(context, configuration), NodeMetricController(context, configuration)
        try:
            await story((context, configuration, slo, metric))
        finally:
            await slo.stop()
            await metric.stop()

    run_with_context(with_configuration(run))


async def begin(controllers: ControllersUnderTest) -> None:
    context, configuration, slo, metric = controllers
    await configuration.start()
    await slo.start()
    await metric.start()
    await settle(context)


async def spec(context: ManagerContext, resource: Any, name: str) -> dict[str, Any] | None:
    found = await context.client.get(resource, name)
    if isinstance(found, ApiError) and found.not_found:
        return None
    return to_dict(unwrap(found).spec)


async def threshold(context: ManagerContext, name: str) -> dict[str, Any]:
    made = await spec(context, NODE_SLOS, name)
    assert made is not None
    part: dict[str, Any] = made["resourceUsedThresholdWithBE"]
    return part


async def interval(context: ManagerContext, name: str) -> int:
    made = await spec(context, NODE_METRICS, name)
    assert made is not None
    seconds: int = made["metricCollectPolicy"]["reportIntervalSeconds"]
    return seconds


async def versions(context: ManagerContext) -> list[str]:
    listed = [
        *unwrap(await context.client.list(NODE_SLOS)).items,
        *unwrap(await context.client.list(NODE_METRICS)).items,
    ]
    return [obj.metadata.resource_version for obj in listed]


def test_without_a_configmap_every_node_gets_the_defaults() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context = controllers[0]
        await add_node(context, "n1")
        await begin(controllers)
        assert (await threshold(context, "n1"))["enable"] is False
        assert await interval(context, "n1") == 60
        stored = unwrap(await context.client.dynamic.get(NODE_SLOS, "n1"))
        assert stored["spec"]["extensions"] == {}
        assert stored["spec"]["resourceQOSStrategy"] == {}

    play(story)


def test_settings_follow_the_configmap_the_labels_and_the_annotations() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context = controllers[0]
        await write_config(
            context,
            colocation_config={
                "enable": True,
                "metricReportIntervalSeconds": 30,
                "nodeConfigs": [
                    {"nodeSelector": {"matchLabels": {"g": "a"}}, "metricReportIntervalSeconds": 15},
                ],
            },
            resource_threshold_config={"clusterStrategy": {"enable": True}},
            system_config={"clusterStrategy": {"totalNetworkBandwidth": "600M"}},
        )
        await add_node(context, "plain")
        await add_node(context, "chosen", {"g": "a"})
        await add_node(context, "own", {"g": "a"}, {STRATEGY: '{"metricReportIntervalSeconds":7}', BANDWIDTH: "10M"})
        await begin(controllers)
        assert [await interval(context, name) for name in ("plain", "chosen", "own")] == [30, 15, 7]
        assert (await threshold(context, "plain"))["enable"] is True
        own = await spec(context, NODE_SLOS, "own")
        assert own is not None
        assert own["systemStrategy"] == {"totalNetworkBandwidth": "10M"}
        patch: dict[str, Any] = {"metadata": {"labels": {"g": "a"}, "annotations": {BANDWIDTH: "nonsense"}}}
        unwrap(await context.client.patch(NODES, "plain", patch, kind="merge"))
        await settle(context)
        assert await interval(context, "plain") == 15
        plain = await spec(context, NODE_SLOS, "plain")
        assert plain is not None
        assert "systemStrategy" not in plain, "a bandwidth that cannot be believed takes the strategy away"
        patch = {"metadata": {"annotations": {STRATEGY: '{"metricReportIntervalSeconds":9}', BANDWIDTH: None}}}
        unwrap(await context.client.patch(NODES, "plain", patch, kind="merge"))
        await settle(context)
        assert await interval(context, "plain") == 9, "an annotation alone is news"
        await write_config(context)
        await settle(context)
        assert [await interval(context, name) for name in ("plain", "chosen", "own")] == [60, 60, 60]
        assert (await threshold(context, "plain"))["enable"] is False

    play(story)


def test_objects_live_and_die_with_their_node_and_hand_edits_are_undone() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context = controllers[0]
        await write_config(context, colocation_config={"enable": True, "metricReportIntervalSeconds": 20})
        await add_node(context, "n1")
        await add_node(context, "n2")
        unwrap(await context.client.create(NODE_SLOS, {"metadata": {"name": "orphan"}}))
        unwrap(await context.client.create(NODE_METRICS, {"metadata": {"name": "n1"}}))
        await begin(controllers)
        assert await spec(context, NODE_SLOS, "orphan") is None
        assert await interval(context, "n1") == 20, "one that was there is filled in"
        edit: dict[str, Any] = {"spec": {"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": 1}}}
        unwrap(await context.client.patch(NODE_SLOS, "n1", edit, kind="merge"))
        edit = {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 1, "aggregateDurationSeconds": None}}}
        unwrap(await context.client.patch(NODE_METRICS, "n1", edit, kind="merge"))
        await settle(context)
        assert (await threshold(context, "n1"))["cpuSuppressThresholdPercent"] == 65
        assert await interval(context, "n1") == 20
        unwrap(await context.client.delete(NODE_SLOS, "n1"))
        unwrap(await context.client.delete(NODE_METRICS, "n1"))
        unwrap(await context.client.delete(NODES, "n2"))
        await settle(context)
        assert await interval(context, "n1") == 20
        assert await spec(context, NODE_SLOS, "n2") is None
        assert await spec(context, NODE_METRICS, "n2") is None

    play(story)


def test_extensions_of_others_stay() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context = controllers[0]
        await add_node(context, "n1")
        theirs = {"metadata": {"name": "n1"}, "spec": {"extensions": {"their": {"setting": 1}}}}
        unwrap(await context.client.create(NODE_SLOS, theirs))
        await begin(controllers)
        assert (await threshold(context, "n1"))["enable"] is False
        stored = unwrap(await context.client.dynamic.get(NODE_SLOS, "n1"))
        assert stored["spec"]["extensions"] == {"their": {"setting": 1}}

    play(story)


def test_nothing_is_written_twice() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context, _, slo, metric = controllers
        qos = {
            "clusterStrategy": {"beClass": {"networkQOS": {"enable": True}, "blkioQOS": {"blocks": [{"name": "a"}]}}}
        }
        await write_config(context, resource_qos_config=qos, host_application_config={"applications": [{"name": "x"}]})
        await add_node(context, "n1", {}, {BANDWIDTH: "1000M"})
        await begin(controllers)
        before = await versions(context)
        assert await slo.reconcile("n1") == Done()
        assert await metric.reconcile("n1") == Done()
        status = {"status": {"updateTime": "2026-01-01T00:00:00Z"}}
        unwrap(await context.client.patch(NODE_METRICS, "n1", status, kind="merge", subresource="status"))
        unwrap(await context.client.patch(NODES, "n1", {"metadata": {"annotations": {"heart": "beat"}}}, kind="merge"))
        taken = slo.loop.queue.counts.taken, metric.loop.queue.counts.taken
        await settle(context)
        assert (await versions(context))[0] == before[0]
        assert (
            slo.loop.queue.counts.taken,
            metric.loop.queue.counts.taken,
        ) == taken, "nobody even looked"

    play(story)


def test_a_replica_may_lead_resign_and_lead_again() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context, _, slo, metric = controllers
        await add_node(context, "n1")
        await begin(controllers)
        await slo.stop()
        await metric.stop()
        await add_node(context, "n2")
        await write_config(context, resource_threshold_config={"clusterStrategy": {"enable": True}})
        await settle(context)
        assert await spec(context, NODE_SLOS, "n2") is None
        assert (await threshold(context, "n1"))["enable"] is False
        await slo.start()
        await metric.start()
        await settle(context)
        assert [(await threshold(context, name))["enable"] for name in ("n1", "n2")] == [True, True]
        assert await interval(context, "n2") == 60

    play(story)


def test_nothing_is_written_before_the_cluster_is_known() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context, configuration, slo, metric = controllers
        await write_config(context, resource_threshold_config={"clusterStrategy": {"enable": True}})
        await add_node(context, "n1")
        unwrap(await context.client.create(NODE_SLOS, {"metadata": {"name": "n1"}}))
        assert not configuration.threshold.is_known
        assert await slo.reconcile("n1") == Done(), "asked while the caches are empty"
        assert await metric.reconcile("n1") == Done()
        assert await spec(context, NODE_SLOS, "n1") == {}
        assert await spec(context, NODE_METRICS, "n1") is None
        await begin(controllers)
        assert (await threshold(context, "n1"))["enable"] is True

    play(story)


def test_a_broken_document_leaves_its_part_and_the_others_still_change() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context = controllers[0]
        on = {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 40}}
        await write_config(context, resource_threshold_config=on)
        await add_node(context, "n1")
        await begin(controllers)
        await write_config(
            context, resource_threshold_config="{", cpu_burst_config={"clusterStrategy": {"policy": "auto"}}
        )
        await settle(context)
        made = await spec(context, NODE_SLOS, "n1")
        assert made is not None
        assert made["resourceUsedThresholdWithBE"]["cpuSuppressThresholdPercent"] == 40
        assert made["cpuBurstStrategy"]["policy"] == "auto"

    play(story)


def test_a_document_that_is_broken_at_the_start_changes_no_running_node() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context = controllers[0]
        await write_config(context, resource_threshold_config="{", colocation_config="{")
        running = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 40}}
        await add_node(context, "running")
        await add_node(context, "new")
        unwrap(await context.client.create(NODE_SLOS, {"metadata": {"name": "running"}, "spec": running}))
        collect = {"metricCollectPolicy": {"reportIntervalSeconds": 10}}
        unwrap(await context.client.create(NODE_METRICS, {"metadata": {"name": "running"}, "spec": collect}))
        await begin(controllers)
        assert await threshold(context, "running") == running["resourceUsedThresholdWithBE"]
        assert (await threshold(context, "new"))["cpuSuppressThresholdPercent"] == 65
        assert await interval(context, "running") == 10
        assert await spec(context, NODE_METRICS, "new") is None, (
            "as upstream: without a strategy there is no NodeMetric"
        )
        await write_config(context, colocation_config={"enable": True, "metricReportIntervalSeconds": 33})
        await settle(context)
        assert [await interval(context, name) for name in ("running", "new")] == [33, 33]

    play(story)


def test_an_invalid_strategy_keeps_what_nodes_have_and_new_nodes_get_the_last_good_one() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context = controllers[0]
        await write_config(context, colocation_config={"enable": True, "metricReportIntervalSeconds": 20})
        await add_node(context, "old")
        await begin(controllers)
        await write_config(context, colocation_config={"enable": True, "metricReportIntervalSeconds": 0})
        await add_node(context, "new")
        await settle(context)
        assert [await interval(context, name) for name in ("old", "new")] == [20, 20]

    play(story)


def test_a_value_that_the_schema_refuses_is_not_written_and_told_on_the_configmap() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context, _, slo, _ = controllers
        await write_config(context, resource_threshold_config={"clusterStrategy": {"enable": "yes"}})
        await add_node(context, "n1")
        await begin(controllers)
        bad = {"clusterStrategy": {"cpuSuppressThresholdPercent": 160, "cpuSuppressPolicy": "some"}}
        await write_config(context, resource_threshold_config=bad)
        await context.clock.sleep(600)
        assert (await threshold(context, "n1"))["cpuSuppressThresholdPercent"] == 65
        assert slo.counter.counts["failed", "updateNodeSLO"] == 0, "nothing is tried that must fail"
        assert (await config_events(context))[1:] == [
            (
                "SLOCfgInvalid",
                "resource-threshold-config: clusterStrategy.cpuSuppressThresholdPercent is 160, must be from 1 to 100; "
                "resource-threshold-config: clusterStrategy.cpuSuppressPolicy is \"some\", must be one of 'cpuset', "
                "'cfsQuota', 'idleCpuset'; nothing is changed until it is corrected",
            )
        ]
        await write_config(context, resource_threshold_config={"clusterStrategy": {"cpuSuppressThresholdPercent": 50}})
        await settle(context)
        assert (await threshold(context, "n1"))["cpuSuppressThresholdPercent"] == 50

    play(story)


def test_what_the_api_server_refuses_is_told_on_the_node_and_not_tried_in_a_loop() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context, _, _, metric = controllers
        await write_config(context, colocation_config={"enable": True})
        await add_node(context, "n1")
        await begin(controllers)
        policy = {STRATEGY: '{"metricMemoryCollectPolicy":"all","metricReportIntervalSeconds":7}'}
        unwrap(await context.client.patch(NODES, "n1", {"metadata": {"annotations": policy}}, kind="merge"))
        await context.clock.sleep(200)
        assert metric.counter.counts["failed", "updateNodeMetric"] == 1
        events = unwrap(await context.client.list(EVENTS_EVENTS)).items
        (told,) = [event.note for event in events if event.reason == "NodeMetricRefused"]
        assert "nodeMemoryCollectPolicy" in told
        mended = {STRATEGY: '{"metricReportIntervalSeconds":7}'}
        unwrap(await context.client.patch(NODES, "n1", {"metadata": {"annotations": mended}}, kind="merge"))
        await settle(context)
        assert await interval(context, "n1") == 7

    play(story)


def test_a_configmap_that_was_deleted_while_the_manager_was_down_is_the_defaults_until_it_comes_back() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context, configuration, first_slo, first_metric = controllers
        documents: dict[str, Any] = {
            "colocation_config": {"enable": True, "metricReportIntervalSeconds": 20},
            "resource_threshold_config": {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 50}},
        }
        await write_config(context, **documents)
        await add_node(context, "old")
        await begin(controllers)
        await first_slo.stop()
        await first_metric.stop()
        await configuration.stop()
        unwrap(await context.client.delete(CONFIG_MAPS, NAME, NAMESPACE))
        await add_node(context, "new")
        await settle(context)
        again = SloControllerConfig(context)
        slo, metric = NodeSLOController(context, again), NodeMetricController(context, again)
        try:
            await begin((context, again, slo, metric))
            assert [status.reason for status in again.watcher.statuses()] == ["ConfigMapNotFound"] * 8
            assert [await interval(context, name) for name in ("old", "new")] == [20, 60], "a node keeps its spec"
            assert [(await threshold(context, name))["enable"] for name in ("old", "new")] == [False, False]
            await write_config(context, **documents)
            await settle(context)
            assert [await interval(context, name) for name in ("old", "new")] == [20, 20]
            for name in ("old", "new"):
                assert (await threshold(context, name))["cpuSuppressThresholdPercent"] == 50
        finally:
            await slo.stop()
            await metric.stop()
            await again.stop()

    play(story)


def test_counts_are_served_under_upstreams_names() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context, _, slo, metric = controllers
        await add_node(context, "n1", {}, {BANDWIDTH: "nonsense"})
        await begin(controllers)
        readings = {r.name: dict(r.values) for r in (*slo.readings(), *metric.readings())}
        assert readings["slo_controller_nodeslo_reconcile_count"] == {("succeeded", "createNodeSLO"): 1.0}
        assert readings["slo_controller_nodemetric_reconcile_count"] == {("succeeded", "createNodeMetric"): 1.0}
        assert readings["slo_controller_nodeslo_spec_parse_count"][("failed", "getSystemConfigSpec")] >= 1.0

    play(story)


def test_the_time_of_the_last_report_is_served() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context, _, _, metric = controllers
        for name in ("n1", "n2"):
            await add_node(context, name, {}, {})
        await begin(controllers)
        report = {"status": {"updateTime": "1970-01-01T00:10:00Z"}}
        unwrap(await context.client.patch(NODE_METRICS, "n1", report, kind="merge", subresource="status"))
        await settle(context)
        readings = {one.name: dict(one.values) for one in metric.readings()}
        assert readings["koord_manager_nodemetric_update_time_seconds"] == {("n1",): 600.0}

    play(story)


def test_a_decision_names_its_sources() -> None:
    async def story(controllers: ControllersUnderTest) -> None:
        context, _, slo, _ = controllers
        entry = {"name": "gpu", "nodeSelector": {"matchLabels": {"g": "a"}}, "cpuSuppressThresholdPercent": 40}
        await write_config(context, resource_threshold_config={"nodeStrategies": [entry]})
        await add_node(context, "n1", {"g": "a"}, {BANDWIDTH: "1G"})
        await begin(controllers)
        sources = slo.explain(unwrap(await context.client.get(NODES, "n1"))).sources
        assert sources["resourceUsedThresholdWithBE"] == "gpu"
        assert sources["cpuBurstStrategy"] == "cluster"
        assert sources["systemStrategy.totalNetworkBandwidth"] == BANDWIDTH

    play(story)


_TREE = st.recursive(
    st.integers(0, 2) | st.booleans() | st.text(max_size=2) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
_MAP = st.dictionaries(st.sampled_from("abc"), _TREE, max_size=3)


@given(old=_MAP, new=_MAP)
def test_a_merge_difference_leads_from_one_to_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merge_patch(old, create_merge_patch(old, new)) == new
    assert create_merge_patch(new, new) == {}


@pytest.mark.parametrize("controller", [NodeSLOController, NodeMetricController])
def test_rights_cover_what_is_done(controller: Any) -> None:
    kind = controller.name + "s"
    granted = {(right.group, plural): set(right.verbs) for right in controller.rights for plural in right.resources}
    assert granted["slo.koordinator.sh", kind] == {"get", "list", "watch", "create", "patch", "delete"}
    assert granted["", "nodes"] == {"get", "list", "watch"}
