"""Which nodes LoadAwareScheduling refuses, and in which words. Nodes have 96 cores and 512Gi unless said."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koord.api.kubernetes.meta import OwnerReference
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.plugins.load_aware.evaluation import COOL, HOT, STALE, STALE_ALLOWED, UNLIMITED, UNMEASURED
from tests.scheduler.builders import make_pod
from tests.scheduler.plugins.load_aware.load_cluster import (
    BATCH,
    MID,
    NOW,
    PROD,
    LoadCluster,
    big_node,
    pod_on,
    refusal,
    report,
)

CPU = "node(s) cpu usage exceed threshold"
MEMORY = "node(s) memory usage exceed threshold"
CPU_AGGREGATED = "node(s) cpu aggregated usage exceed threshold"
EXPIRED = "node(s) nodeMetric expired"

SMALL: dict[str, Any] = {"cpu": "0", "memory": "0"}  # estimated at 250m and 200Mi
P95 = {"5m": {"p95": ("70", "10Gi"), "avg": ("30", "10Gi")}}
AGGREGATED = {
    "usageThresholds": {"cpu": 60},
    "usageAggregationType": "p95",
    "usageAggregatedDuration": "5m",
}


@pytest.mark.parametrize(
    ("used", "stated", "thresholds", "words"),
    [
        pytest.param(report(cpu="60", memory="256Gi"), {}, None, None, id="below-both-ceilings"),
        pytest.param(report(cpu="70"), {}, None, CPU, id="cpu-above-65-percent"),
        pytest.param(report(cpu="60", memory="500Gi"), {}, None, MEMORY, id="memory-above-95-percent"),
        pytest.param(report(cpu="70", memory="500Gi"), {}, None, CPU, id="cpu-is-named-before-memory"),
        pytest.param(report("elsewhere", cpu="90"), {}, None, None, id="no-report"),
        pytest.param(report(cpu="90", measured=False), {}, None, None, id="a-report-without-usage"),
        pytest.param(
            report(cpu="30", windows=P95), {"aggregated": AGGREGATED}, None, CPU_AGGREGATED, id="p95-by-arguments"
        ),
        pytest.param(
            report(cpu="30", windows=P95), {}, {"aggregatedUsage": AGGREGATED}, CPU_AGGREGATED, id="p95-by-annotation"
        ),
        pytest.param(
            report(cpu="90", windows={"5m": {"p95": ("30", "1Gi")}}),
            {"aggregated": AGGREGATED},
            None,
            None,
            id="an-aggregated-ceiling-replaces-the-plain-one",
        ),
        pytest.param(
            report(cpu="90", windows=P95),
            {"aggregated": {**AGGREGATED, "usageAggregationType": ""}},
            None,
            CPU,
            id="an-aggregated-ceiling-without-a-type-is-none",
        ),
        pytest.param(
            report(cpu="10", windows={"5m": {"p95": ("20", "0")}, "30m": {"p95": ("70", "0")}}),
            {"aggregated": {"usageThresholds": {"cpu": 60}, "usageAggregationType": "p95"}},
            None,
            CPU_AGGREGATED,
            id="without-a-duration-the-longest-window-counts",
        ),
        pytest.param(
            report(cpu="70"),
            {"aggregated": {"usageThresholds": {"cpu": 60}, "usageAggregationType": "p95"}},
            None,
            CPU_AGGREGATED,
            id="without-a-duration-or-windows-the-plain-usage-stands-in",
        ),
        pytest.param(
            report(cpu="70"), {"aggregated": AGGREGATED}, None, None, id="a-missing-window-leaves-the-sum-of-estimates"
        ),
        pytest.param(
            report(memory="316Gi"), {}, {"usageThresholds": {"memory": 60}}, MEMORY, id="a-node's-own-ceiling"
        ),
        pytest.param(
            report(cpu="90", memory="100Gi"),
            {},
            {"usageThresholds": {"memory": 60}},
            None,
            id="which-replaces-all-of-it",
        ),
        pytest.param(report(memory="500Gi"), {"usageThresholds": {"memory": 0}}, None, None, id="zero-is-no-ceiling"),
        pytest.param(report(cpu="90"), {"usageThresholds": {"cpu": 0, "memory": 0}}, None, None, id="filter-off"),
        pytest.param(report(cpu="90"), {}, {"usageThresholds": {"gpu": 10}}, None, id="a-ceiling-for-nothing-measured"),
        pytest.param(
            report(cpu="70"), {"filterExpiredNodeMetrics": True}, {"usageThresholds": {}}, CPU, id="an-empty-annotation"
        ),
    ],
)
def test_ceilings(used: Any, stated: Any, thresholds: Any, words: str | None) -> None:
    world = LoadCluster(big_node(thresholds=thresholds), used)
    assert refusal(world.plugin(**stated), world, world.info(**SMALL)) == words


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        pytest.param("62390m", None, id="65.49-percent-rounds-down"),
        pytest.param("62630m", CPU, id="65.5-percent-rounds-up"),
        pytest.param("62150m", None, id="equality-passes"),
    ],
)
def test_percent_is_rounded_to_the_nearest(usage: str, words: str | None) -> None:
    world = LoadCluster(big_node(), report(cpu=usage))
    pod = world.info(**SMALL)  # 250m
    assert refusal(world.plugin(), world, pod) == words


def test_malformed_thresholds_are_as_good_as_none() -> None:
    node = big_node(annotations={"scheduling.koordinator.sh/usage-thresholds": "{"})
    world = LoadCluster(node, report(cpu="70"))
    assert refusal(world.plugin(), world, world.info()) == CPU


def test_a_window_that_is_no_duration_spoils_the_annotation() -> None:
    node = big_node(thresholds={"aggregatedUsage": AGGREGATED | {"usageAggregatedDuration": "soon"}})
    world = LoadCluster(node, report(cpu="70"))
    assert refusal(world.plugin(), world, world.info()) == CPU


def test_pods_of_daemon_sets_pass() -> None:
    world = LoadCluster(big_node(), report(cpu="70"))
    pod = make_pod()
    owned = world.state.pod_info(_owned(pod, "DaemonSet"))
    assert refusal(world.plugin(), world, owned) is None
    assert refusal(world.plugin(), world, world.state.pod_info(_owned(pod, "ReplicaSet"))) == CPU


def _owned(pod: Any, kind: str) -> Any:
    owner = OwnerReference(api_version="apps/v1", kind=kind, name="o", uid="u")
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(owner,)))


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        pytest.param({"prodUsageThresholds": {"cpu": 50}}, CPU, id="prod-ceiling"),
        pytest.param({}, None, id="no-prod-ceiling"),
        pytest.param({"prodUsageThresholds": {"cpu": 0}}, None, id="prod-ceiling-of-zero"),
    ],
)
def test_prod_pods_are_measured_against_what_prod_uses(stated: Any, words: str | None) -> None:
    world = LoadCluster(
        big_node(),
        report(cpu="63", pods={"a": ("30", "0"), "b": ("33", "0")}),
        pod_on("a", "n0", labels=PROD),
        pod_on("b", "n0", labels=PROD),
    )
    plugin = world.plugin(usageThresholds={"cpu": 100, "memory": 100}, **stated)
    assert refusal(plugin, world, world.info(labels=PROD)) == words


def test_prod_pods_by_their_estimate_and_others_by_the_node() -> None:
    world = LoadCluster(
        big_node(more={"kubernetes.io/mid-cpu": "30000"}),
        report(cpu="53", pods={"a": ("53", "0")}),
        pod_on("a", "n0", labels=PROD),
    )
    plugin = world.plugin(usageThresholds={"cpu": 65}, prodUsageThresholds={"cpu": 60})
    assert refusal(plugin, world, world.info(labels=PROD, cpu="20")) == CPU  # 53 + 17 of 96 is 73 %
    mid = world.info(labels=MID, more={"kubernetes.io/mid-cpu": "12000"})
    assert refusal(plugin, world, mid) == CPU  # 53 + 10.2 of 96 is 66 %
    assert refusal(plugin, world, world.info(labels=MID, more={"kubernetes.io/mid-cpu": "9000"})) is None


def test_pods_that_are_placed_but_not_reported_count_by_their_estimate() -> None:
    world = LoadCluster(
        big_node(),
        report(memory="100Gi", pods={"prod-1": ("1", "100Gi")}),
        pod_on("prod-1", "n0", labels=PROD),
        pod_on("prod-2", "n0", labels=PROD, memory="200Gi"),
    )
    plugin = world.plugin(usageThresholds={"cpu": 100, "memory": 100}, prodUsageThresholds={"memory": 70})
    assert refusal(plugin, world, world.info(labels=PROD, memory="200Gi")) == MEMORY  # 100 + 140 + 140 of 512 is 74 %
    assert refusal(plugin, world, world.info(labels=BATCH, memory="200Gi")) is None


def test_system_usage_counts_as_prod_when_told_so() -> None:
    world = LoadCluster(big_node(), report(cpu="50", system=("60", "0")))
    assert refusal(world.plugin(prodUsageThresholds={"cpu": 60}), world, world.info(labels=PROD)) is None
    included = world.plugin(prodUsageThresholds={"cpu": 60}, prodUsageIncludeSys=True)
    assert refusal(included, world, world.info(labels=PROD)) == CPU


@pytest.mark.parametrize(
    ("stated", "cpu", "words"),
    [
        pytest.param({}, "1", EXPIRED, id="refused-by-default"),
        pytest.param({"enableScheduleWhenNodeMetricsExpired": True}, "90", None, id="passes-when-allowed"),
        pytest.param({"filterExpiredNodeMetrics": False}, "90", CPU, id="old-numbers-still-count-without-the-check"),
        pytest.param({"filterExpiredNodeMetrics": False}, "1", None, id="and-may-be-fine"),
        pytest.param({"nodeMetricExpirationSeconds": 181}, "1", None, id="not-old-enough"),
        pytest.param({"usageThresholds": {"cpu": 0}}, "90", None, id="without-ceilings-age-does-not-matter"),
    ],
)
def test_old_reports(stated: Any, cpu: str, words: str | None) -> None:
    world = LoadCluster(big_node(), report(cpu=cpu, age=180))
    assert refusal(world.plugin(**stated), world, world.info(**SMALL)) == words


def test_a_report_that_names_no_time_was_always_too_old() -> None:
    world = LoadCluster(big_node(), report(cpu="1", timed=False))
    assert refusal(world.plugin(), world, world.info()) == EXPIRED


def test_a_report_grows_old_and_is_renewed() -> None:
    world = LoadCluster(big_node(), report(cpu="1"))
    plugin = world.plugin()
    pod = world.info()
    seen = []
    for passed in (179.0, 1.0, 20.0):
        world.clock += passed
        seen.append(refusal(plugin, world, pod))
    world.put(report(cpu="1", now=world.clock))
    assert [*seen, refusal(plugin, world, pod)] == [None, EXPIRED, EXPIRED, None]


def test_capacity_is_what_the_machine_has_before_amplification() -> None:
    raw = {"node.koordinator.sh/raw-allocatable": '{"cpu":"48"}'}
    world = LoadCluster(big_node(annotations=raw), report(cpu="40"))
    assert refusal(world.plugin(), world, world.info()) == CPU


@pytest.mark.parametrize(
    ("used", "stated", "kind"),
    [
        pytest.param(report("other"), {}, UNMEASURED, id="no-report"),
        pytest.param(report(measured=False), {}, UNMEASURED, id="report-without-usage"),
        pytest.param(report(cpu="1", age=500), {}, STALE, id="stale"),
        pytest.param(
            report(cpu="1", age=500), {"enableScheduleWhenNodeMetricsExpired": True}, STALE_ALLOWED, id="stale-allowed"
        ),
        pytest.param(report(cpu="90"), {"usageThresholds": {"cpu": 0}}, UNLIMITED, id="no-ceilings"),
        pytest.param(report(cpu="70"), {}, HOT, id="hot"),
        pytest.param(report(cpu="10"), {}, COOL, id="cool"),
    ],
)
def test_explanations_tell_hot_from_stale_from_unmeasured(used: Any, stated: Any, kind: str) -> None:
    world = LoadCluster(big_node(), used)
    plugin = world.plugin(**stated)
    pod = world.info(**SMALL)
    found = plugin.explain(pod, world.node())
    assert found.kind == kind
    assert (kind in (HOT, STALE)) == (plugin.filter(CycleState(world.state), pod, world.node()) is not None)


def test_an_explanation_has_the_numbers() -> None:
    world = LoadCluster(big_node(), report(cpu="70", age=30))
    found = world.plugin().explain(world.info(cpu="2"), world.node())
    assert (found.resource, found.ceiling, found.age_s) == ("cpu", 65, 30)
    assert round(found.percent, 1) == 74.7
    assert world.clock == NOW
