"""After any history of events each node's load is exactly what the live objects say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from koord.scheduler.plugins.node_resources.fit import NodeResourcesFit
from tests.scheduler.builders import make_pod
from tests.scheduler.plugin_equivalence import check_columns_match_definition, counts_of, profile_of, view_of
from tests.scheduler.plugins.load_aware.load_cluster import (
    BATCH,
    MID,
    NOW,
    PROD,
    LoadCluster,
    big_node,
    pod_on,
    report,
    stamp,
)
from tests.scheduler.plugins.one_node_plugins import made

NAMES = ("n0", "n1", "n2")
ASKS: dict[str, Any] = {"cpu": "10", "memory": "10Gi"}  # estimated at 8500m and 7Gi


def held(plugin: LoadAwareScheduling, node: str = "n0") -> tuple[str, str, str, str]:
    """cpu: used by prod, node delta, prod delta, sum of estimates."""
    found = plugin.summary(node)
    return tuple(found[part]["cpu"] for part in ("prodUsage", "nodeDelta", "prodDelta", "nodeEstimated"))


@pytest.mark.parametrize(
    ("pod", "used", "stated", "expected"),
    [
        pytest.param(pod_on("a", "n0", **ASKS), report(), {}, ("0", "8500m", "8500m", "8500m"), id="not-reported"),
        pytest.param(
            pod_on("a", "n0", **ASKS),
            report(pods={"a": ("2", "1Gi")}),
            {},
            ("2", "0", "0", "8500m"),
            id="long-reported",
        ),
        pytest.param(
            pod_on("a", "n0", scheduled=NOW - 59, **ASKS),
            report(pods={"a": ("2", "1Gi")}),
            {},
            ("2", "6500m", "6500m", "8500m"),
            id="the-report-may-not-cover-its-whole-life",
        ),
        pytest.param(
            pod_on("a", "n0", scheduled=NOW - 60, **ASKS),
            report(pods={"a": ("2", "1Gi")}),
            {},
            ("2", "0", "0", "8500m"),
            id="it-does-after-one-interval",
        ),
        pytest.param(
            pod_on("a", "n0", scheduled=NOW - 60, **ASKS),
            report(pods={"a": ("2", "1Gi")}, interval=61),
            {},
            ("2", "6500m", "6500m", "8500m"),
            id="of-the-length-that-the-collector-was-told",
        ),
        pytest.param(
            pod_on("a", "n0", scheduled=NOW - 59, **ASKS),
            report(pods={"a": ("9", "1Gi")}),
            {},
            ("9", "0", "0", "8500m"),
            id="more-used-than-estimated",
        ),
        pytest.param(
            pod_on("a", "n0", **ASKS),
            report(pods={"a": ("2", "1Gi", "koord-batch")}),
            {},
            ("0", "0", "8500m", "8500m"),
            id="reported-as-another-class",
        ),
        pytest.param(
            pod_on("a", "n0", labels=BATCH, more={"kubernetes.io/batch-cpu": "10000"}),
            report(pods={"a": ("2", "1Gi")}),
            {},
            ("0", "0", "0", "8500m"),
            id="a-batch-pod-reported-as-prod",
        ),
        pytest.param(
            pod_on("a", "n0", labels=BATCH, more={"kubernetes.io/batch-cpu": "10000"}),
            report(),
            {},
            ("0", "8500m", "0", "8500m"),
            id="a-batch-pod",
        ),
        pytest.param(
            pod_on("a", "n0", labels=MID), report(), {}, ("0", "0", "0", "0"), id="a-mid-pod-without-requests"
        ),
        pytest.param(
            pod_on("a", "n0", **ASKS),
            report(pods={"a": ("", "")}),
            {},
            ("0", "8500m", "8500m", "8500m"),
            id="reported-without-usage",
        ),
        pytest.param(
            pod_on("a", "n0", **ASKS),
            report(pods={"a": ("2", "1Gi")}),
            {"estimatedSecondsAfterPodScheduled": 601},
            ("2", "6500m", "6500m", "8500m"),
            id="estimated-for-longer-after-scheduling",
        ),
        pytest.param(
            pod_on("a", "n0", **ASKS),
            report(pods={"a": ("2", "1Gi")}),
            {"estimatedSecondsAfterPodScheduled": 600},
            ("2", "0", "0", "8500m"),
            id="until-that-is-over",
        ),
        pytest.param(
            pod_on("a", "n0", initialized=NOW - 100, **ASKS),
            report(pods={"a": ("2", "1Gi")}),
            {"estimatedSecondsAfterPodScheduled": 601, "estimatedSecondsAfterInitialized": 90},
            ("2", "0", "0", "8500m"),
            id="after-initialization-overrides-after-scheduling",
        ),
        pytest.param(
            pod_on("a", "n0", initialized=NOW - 100, **ASKS),
            report(pods={"a": ("2", "1Gi")}),
            {"estimatedSecondsAfterInitialized": 101},
            ("2", "6500m", "6500m", "8500m"),
            id="estimated-for-longer-after-initialization",
        ),
        pytest.param(
            pod_on(
                "a",
                "n0",
                annotations={"scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled": "601"},
                **ASKS,
            ),
            report(pods={"a": ("2", "1Gi")}),
            {"allowCustomizeEstimation": True},
            ("2", "6500m", "6500m", "8500m"),
            id="a-pod's-own-time",
        ),
        pytest.param(
            pod_on(
                "a",
                "n0",
                annotations={"scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled": "601"},
                **ASKS,
            ),
            report(pods={"a": ("2", "1Gi")}),
            {},
            ("2", "0", "0", "8500m"),
            id="which-counts-only-if-allowed",
        ),
        pytest.param(
            pod_on(
                "a",
                "n0",
                annotations={"scheduling.koordinator.sh/load-estimated-scaling-factors": '{"cpu":100}'},
                **ASKS,
            ),
            report(),
            {"allowCustomizeEstimation": True},
            ("0", "10", "10", "10"),
            id="a-pod's-own-factors",
        ),
        pytest.param(
            pod_on("a", "n0", **ASKS),
            report(pods={"a": ("2", "1Gi")}, timed=False),
            {},
            ("2", "6500m", "6500m", "8500m"),
            id="a-report-that-names-no-time",
        ),
    ],
)
def test_what_a_pod_adds(pod: Any, used: Any, stated: Any, expected: tuple[str, ...]) -> None:
    before = LoadCluster(big_node(), used, pod)
    assert held(before.plugin(**stated)) == expected
    after = LoadCluster(big_node())
    plugin = after.plugin(**stated)
    after.put(pod, used)
    assert held(plugin) == expected
    after.state.drop_pod("uid-default-a")
    assert held(plugin) == ("0", "0", "0", "0")


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(make_pod("a", **ASKS), id="pending"),
        pytest.param(pod_on("a", "n0", phase="Succeeded", **ASKS), id="ended"),
        pytest.param(
            pod_on("a", "n0", annotations={"scheduling.koordinator.sh/reserve-pod": "true"}, **ASKS), id="reserve-pod"
        ),
    ],
)
def test_pods_that_use_nothing_are_not_held(pod: Any) -> None:
    world = LoadCluster(big_node(), report())
    plugin = world.plugin()
    world.put(pod)
    assert plugin.summary("n0")["pods"] == []


def test_a_pod_that_moves_leaves_nothing_behind() -> None:
    world = LoadCluster(big_node("n0"), big_node("n1"), report("n0"), report("n1"))
    plugin = world.plugin()
    world.put(pod_on("a", "n0", **ASKS))
    world.put(pod_on("a", "n1", **ASKS))
    assert (held(plugin, "n0"), held(plugin, "n1")) == (("0", "0", "0", "0"), ("0", "8500m", "8500m", "8500m"))


def test_conditions_refresh_what_is_held_and_other_metadata_does_not() -> None:
    world = LoadCluster(big_node(), report(pods={"a": ("2", "1Gi")}))
    plugin = world.plugin()
    info = world.info(name="a", **ASKS)
    world.state.assume(info, "n0")
    assert held(plugin) == ("2", "6500m", "6500m", "8500m")  # placed now
    position = world.state.table.position
    placed = pod_on("a", "n0", scheduled=NOW + 1, **ASKS)
    world.put(placed)  # a second later by the server's clock: nothing to judge anew
    assert world.state.table.position == position
    assert plugin.summary("n0")["pods"][0]["timestamp"] == stamp(NOW + 1).replace("+00:00", "Z")
    meta = msgspec.structs.replace(placed.metadata, resource_version="9")
    world.put(msgspec.structs.replace(placed, metadata=meta))
    assert world.state.table.position == position
    world.put(pod_on("a", "n0", scheduled=NOW - 600, **ASKS))
    assert held(plugin) == ("2", "0", "0", "8500m")
    assert world.state.table.position > position  # the row is to be judged again


def test_reserve_and_unreserve() -> None:
    world = LoadCluster(big_node(), report())
    plugin = world.plugin()
    world.state.assume(world.info(name="a", **ASKS), "n0")
    assert held(plugin) == ("0", "8500m", "8500m", "8500m")
    world.state.forget("uid-default-a")
    assert held(plugin) == ("0", "0", "0", "0")


def test_summary() -> None:
    world = LoadCluster(big_node(), report(pods={"b": ("2", "1Gi")}))
    world.put(pod_on("b", "n0", scheduled=NOW - 600, **ASKS), pod_on("a", "n0", scheduled=NOW - 5, **ASKS))
    found = world.plugin().summary("n0")
    assert [(each["timestamp"], each["pod"]["metadata"]["name"]) for each in found.pop("pods")] == [
        ("2026-01-01T11:50:00Z", "b"),
        ("2026-01-01T11:59:55Z", "a"),
    ]
    assert found == {
        "prodUsage": {"cpu": "2", "memory": "1Gi"},
        "nodeDelta": {"cpu": "8500m", "memory": "7Gi"},
        "prodDelta": {"cpu": "8500m", "memory": "7Gi"},
        "nodeEstimated": {"cpu": "17", "memory": "14Gi"},
        "nodeDeltaPods": ["default/a"],
        "prodDeltaPods": ["default/a"],
        "nodeEstimatedPods": ["default/a", "default/b"],
    }


def test_the_summary_of_a_node_of_which_nothing_is_known_is_empty() -> None:
    world = LoadCluster(big_node())
    plugin = world.plugin()
    assert plugin.summary("n0") == {}
    world.put(report())
    world.reports.drop("n0")
    assert plugin.summary("n0") == {}


# Any history -----------------------------------------------------------------------------------------------------

_LABELS = st.sampled_from(({}, PROD, BATCH, MID))
_CORES = st.sampled_from(("0", "1", "20", "60", "70", "95"))
_KINDS: dict[str, Any] = {
    "plain": {},
    "prod": {"prodUsageThresholds": {"cpu": 50}, "scoreAccordingProdUsage": True, "prodUsageIncludeSys": True},
    "aggregated": {
        "aggregated": {
            "usageThresholds": {"cpu": 60, "memory": 80},
            "usageAggregationType": "p95",
            "usageAggregatedDuration": "5m",
            "scoreAggregationType": "avg",
        },
        "dominantResourceWeight": 2,
    },
    "lenient": {"enableScheduleWhenNodeMetricsExpired": True, "nodeMetricExpirationSeconds": 60},
    "custom": {
        "allowCustomizeEstimation": True,
        "estimatedSecondsAfterPodScheduled": 120,
        "filterExpiredNodeMetrics": False,
    },
}


@st.composite
def _report(draw: st.DrawFn, name: str, now: float) -> Any:
    pods = {pod: (draw(_CORES), "1Gi", draw(st.sampled_from(("koord-prod", "koord-batch")))) for pod in draw(_SOME)}
    usage = st.tuples(_CORES, st.sampled_from(("0", "300Gi", "500Gi")))
    windows = {
        window: {"p95": draw(usage), "avg": draw(usage)} for window in draw(st.sets(st.sampled_from(("5m", "1h"))))
    }
    return report(
        name,
        *draw(usage),
        age=draw(st.sampled_from((0, 30, 170, 400))),
        pods=pods,
        windows=windows,
        system=("3", "1Gi"),
        interval=draw(st.sampled_from((None, 10))),
        timed=draw(st.integers(0, 9)) > 0,
        measured=draw(st.integers(0, 9)) > 0,
        now=now,
    )


_PODS = tuple(f"p{i}" for i in range(5))
_SOME = st.sets(st.sampled_from(_PODS), max_size=3)


@st.composite
def _pod(draw: st.DrawFn, name: str, node: str, now: float) -> Any:
    own = st.fixed_dictionaries(
        {},
        optional={
            "scheduling.koordinator.sh/load-estimated-scaling-factors": st.sampled_from(('{"cpu":20}', "{")),
            "scheduling.koordinator.sh/load-estimated-seconds-after-initialized": st.sampled_from(("300", "x")),
        },
    )
    return pod_on(
        name,
        node,
        scheduled=now - draw(st.sampled_from((0, 40, 90, 1000))),
        initialized=draw(st.sampled_from((None, now - 30))),
        labels=draw(_LABELS),
        cpu=draw(_CORES),
        memory=draw(st.sampled_from(("", "10Gi"))),
        annotations=draw(own),
        phase=draw(st.sampled_from(("Running", "Running", "Failed"))),
    )


@st.composite
def _node(draw: st.DrawFn, name: str) -> Any:
    thresholds = draw(
        st.sampled_from((None, None, {"usageThresholds": {"cpu": 30}}, {"prodUsageThresholds": {"memory": 5}}))
    )
    return big_node(name, thresholds, cpu=draw(st.sampled_from(("96", "64", "0"))))


def _plugins(world: LoadCluster, stated: Any) -> list[Plugin]:
    fit = made("NodeResourcesFit", world.state)
    assert isinstance(fit, NodeResourcesFit)
    return [fit, world.plugin(**stated)]


def _rebuilt(world: LoadCluster) -> LoadCluster:
    """The same cluster, learnt at once and in another order."""
    other = LoadCluster(now=world.clock)
    for metric in world.reports.list():
        other.put(metric)
    for node in sorted(world.state.nodes(), key=lambda each: each.name, reverse=True):
        assert node.node is not None
        other.put(node.node)
    for pod in world.state.pods():
        other.state.assume(pod, pod.node_name)
    return other


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(_KINDS)))
def test_any_history_equals_a_rebuild_from_the_live_objects(data: st.DataObject, kind: str) -> None:
    stated = _KINDS[kind]
    world = LoadCluster()
    plugins = _plugins(world, stated)
    engine = SchedulingEngine(profile_of(plugins), world.state)
    judged = [make_pod(f"judged{i}", cpu="10", labels=data.draw(_LABELS)) for i in range(2)]
    for _ in range(data.draw(st.integers(3, 12))):
        _happen(data, world, engine, judged[0])
        other = _rebuilt(world)
        anew = _plugins(other, stated)
        fresh = SchedulingEngine(profile_of(anew), other.state)
        for pod in judged:
            assert view_of(engine, world.state, pod) == view_of(fresh, other.state, pod)
            assert counts_of(engine, world.state, pod) == counts_of(fresh, other.state, pod)
        kept, rebuilt = plugins[1], anew[1]
        assert isinstance(kept, LoadAwareScheduling)
        assert isinstance(rebuilt, LoadAwareScheduling)
        for name in NAMES:
            assert kept.summary(name) == rebuilt.summary(name)


def _happen(data: st.DataObject, world: LoadCluster, engine: SchedulingEngine, pod: Any) -> None:
    name = data.draw(st.sampled_from(NAMES))
    actions = ("report", "report", "unreport", "node", "drop-node", "pod", "pod", "drop-pod", "decide", "wait")
    action = data.draw(st.sampled_from(actions))
    if action == "report":
        world.put(data.draw(_report(name, world.clock)))
    elif action == "unreport":
        if world.reports.get("", name) is not None:
            world.reports.drop(name)
    elif action == "node":
        world.put(data.draw(_node(name)))
    elif action == "drop-node":
        world.state.drop_node(name)
    elif action == "pod":
        world.put(data.draw(_pod(data.draw(st.sampled_from(_PODS)), name, world.clock)))
    elif action == "drop-pod":
        world.state.drop_pod(f"uid-default-{data.draw(st.sampled_from(_PODS))}")
    elif action == "decide":
        decided = world.state.pod_info(
            make_pod(f"decided{world.state.table.position}", cpu="10", labels=pod.metadata.labels)
        )
        chosen = engine.decide(decided).decision
        node = getattr(chosen, "node", None)
        if node is not None:
            bound = pod_on(decided.name, node, scheduled=world.clock, cpu="10", labels=pod.metadata.labels)
            world.state.assume(decided, node)
            world.put(bound)
    else:
        world.clock += data.draw(st.sampled_from((1.0, 29.0, 100.0, 500.0)))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(_KINDS)))
def test_both_forms_say_the_same(data: st.DataObject, kind: str) -> None:
    world = LoadCluster(*(data.draw(_node(name)) for name in NAMES))
    for name in data.draw(st.sets(st.sampled_from(NAMES))):
        world.put(data.draw(_report(name, NOW)))
    for pod in data.draw(_SOME):
        world.put(data.draw(_pod(pod, data.draw(st.sampled_from(NAMES)), NOW)))
    plugin = world.plugin(**_KINDS[kind])
    plugin.note_expired_rows()
    incoming = world.info(name="new", cpu=data.draw(_CORES), labels=data.draw(_LABELS))
    check_columns_match_definition(plugin, world.state, incoming, data.draw(st.lists(st.integers(0, 5), max_size=3)))


def test_reports_of_an_idle_scheduler_do_not_pile_up() -> None:
    world = LoadCluster(big_node())
    plugin = world.plugin()
    plugin.note_expired_rows()
    for i in range(1000):
        world.put(report(now=NOW + i))
    assert len(plugin._load_cache._expiries) < 100


def test_a_report_touches_one_row_and_a_decision_none() -> None:
    world = LoadCluster(*(big_node(name) for name in NAMES))
    plugin = world.plugin()
    before = world.state.table.position
    world.put(report("n1"))
    assert world.state.table.changed_since(before) == [world.node("n1").row]
    after = world.state.table.position
    plugin.note_expired_rows()
    world.clock += 100
    plugin.note_expired_rows()
    assert world.state.table.position == after
    world.clock += 100
    plugin.note_expired_rows()
    assert world.state.table.changed_since(after) == [world.node("n1").row]


def test_a_report_before_its_node() -> None:
    world = LoadCluster()
    plugin = world.plugin()
    world.put(report(cpu="90"))
    world.put(big_node())
    state: ClusterState = world.state
    engine = SchedulingEngine(profile_of([plugin]), state)
    assert counts_of(engine, state, make_pod()) != {}
