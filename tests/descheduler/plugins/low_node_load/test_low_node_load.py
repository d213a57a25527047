"""LowNodeLoad: thresholds, classes of nodes, certainty, and who is moved."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.config.descheduler import plugin_args as config
from koord.api.config.descheduler.plugin_args import LowNodeLoadArgs
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.descheduler.framework.plugin import DeschedulerPlugin, DeschedulingProfile, EvictionProposal, RoundLimits
from koord.descheduler.framework.round import RoundOutcome, run_round
from koord.descheduler.plugins.low_node_load.balance import coverage_score, weighted_utilization
from koord.descheduler.plugins.low_node_load.node_load import (
    ThresholdPercentages,
    average_usage_percent,
    complete_thresholds,
    threshold_amounts,
    thresholds_around,
)
from koord.descheduler.plugins.low_node_load.plugin import (
    AnomalyDetector,
    AnomalyDetectors,
    DetectorCondition,
    LowNodeLoad,
)
from tests.descheduler.cluster_builders import NOW_S, make_node, make_pod, make_snapshot

AT_ONCE = {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1}
PROD, BATCH = 9000, 5000
MI = 1 << 20


class Yes(DeschedulerPlugin):
    name: ClassVar[str] = "Yes"


def sized(name: str, cpu: str = "10", memory: str = "32Gi", **given: Any) -> Node:
    room = {"cpu": cpu, "memory": memory, "pods": str(given.pop("pods", 110))}
    return convert(
        {
            "metadata": {"name": name, "labels": given.pop("labels", {}), "annotations": given.pop("annotations", {})},
            "spec": given,
            "status": {"allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
        },
        Node,
    )


def using(name: str, system: dict[str, str], age_s: float = 0, **pods: dict[str, str]) -> NodeMetric:
    """`pods` by name, with dashes as underscores."""
    return convert(
        {
            "metadata": {"name": name},
            "status": {
                "updateTime": datetime.fromtimestamp(NOW_S - age_s, UTC).isoformat(),
                "nodeMetric": {"systemUsage": {"resources": system}},
                "podsMetric": [
                    {"namespace": "default", "name": pod.replace("_", "-"), "podUsage": {"resources": usage}}
                    for pod, usage in pods.items()
                ],
            },
        },
        NodeMetric,
    )


def plugin(**args: Any) -> LowNodeLoad:
    given = {"anomalyCondition": AT_ONCE, **args}
    made = config.defaulted(convert(given, LowNodeLoadArgs))
    assert config.validate(made) == []
    return LowNodeLoad(made)


def balanced(
    low_node_load: LowNodeLoad, nodes: list[Node], pods: list[Pod], metrics: list[NodeMetric], now_s: float = NOW_S
) -> RoundOutcome:
    profile = DeschedulingProfile(name="p", evict=Yes(), filter=(Yes(),), balance=(low_node_load,))
    return run_round([profile], make_snapshot(nodes, pods, metrics=metrics, now_s=now_s), RoundLimits())


def moves(outcome: RoundOutcome) -> list[tuple[str, str]]:
    return [(e.pod.metadata.name, e.target) for e in outcome.effects if isinstance(e, EvictionProposal)]


THRESHOLDS = {"lowThresholds": {"cpu": 30, "memory": 80}, "highThresholds": {"cpu": 50, "memory": 90}}


def test_the_reason_tells_of_every_resource_that_is_too_much() -> None:
    outcome = balanced(
        plugin(lowThresholds={"cpu": 30, "memory": 30}, highThresholds={"cpu": 50, "memory": 50}),
        [sized("hot", "3", "32Gi"), sized("cold", "64", "256Gi")],
        [make_pod("a", "hot")],
        [using("hot", {"cpu": "1", "memory": "20Gi"}, a={"cpu": "1", "memory": "5Gi"}), using("cold", {})],
    )
    assert [effect.reason for effect in outcome.effects] == [
        "node is overutilized, node cpu usage(66.67%)>threshold(50.00%), node memory usage(78.12%)>threshold(50.00%)"
    ]
    (effect,) = outcome.effects
    assert isinstance(effect, EvictionProposal)
    record = effect.record()
    assert (record.actor, record.rule, record.reason) == ("koord-descheduler", "LowNodeLoad", effect.reason)
    assert (record.measured, record.threshold) == (
        "the node uses cpu 66.67%, memory 78.12%",
        "cpu 50.00%, memory 50.00%",
    )
    assert (record.rank, record.why_this_pod) == (
        "1 of 1 removable pods",
        "it uses cpu 1000, memory 5368709120",
    )
    assert (record.key, record.node, record.outcome) == ("default/a", "hot", "requested")


def test_it_stops_when_the_node_is_no_longer_too_full() -> None:
    outcome = balanced(
        plugin(**THRESHOLDS),
        [sized("hot"), sized("cold", "64")],
        [make_pod(name, "hot") for name in ("a", "b", "c")],
        [
            using("hot", {"cpu": "4"}, a={"cpu": "900m"}, b={"cpu": "800m"}, c={"cpu": "700m"}),
            using("cold", {"cpu": "1"}),
        ],
    )
    # 6.4 of 10 cores are used, 5 are allowed: 0.9 and then 0.8 are the fewest that do.
    assert moves(outcome) == [("a", "cold"), ("b", "cold")]


@pytest.mark.parametrize("leaving", [(), ("a",), ("a", "b")])
def test_a_victim_that_takes_its_time_makes_no_others(leaving: tuple[str, ...]) -> None:
    """6.4 of 10 cores are used and 5 allowed; what is on its way out counts as gone, also if it hangs for long."""
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    pods = [make_pod(name, "hot", metadata=going if name in leaving else {}) for name in ("a", "b", "c")]
    used: dict[str, Any] = {"a": {"cpu": "900m"}, "b": {"cpu": "800m"}, "c": {"cpu": "700m"}}
    outcome = balanced(
        plugin(**THRESHOLDS),
        [sized("hot"), sized("cold", "64")],
        pods,
        [using("hot", {"cpu": "4"}, **used), using("cold", {"cpu": "1"})],
    )
    assert [name for name, _ in moves(outcome) if name not in leaving] == {0: ["a", "b"], 1: ["c"], 2: []}[len(leaving)]


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        pytest.param([], "it has no NodeMetric", id="none"),
        pytest.param([using("cold", {}, age_s=180)], "its NodeMetric is 180 s old", id="expired-exactly"),
        pytest.param([convert({"metadata": {"name": "cold"}}, NodeMetric)], "never filled", id="empty"),
        pytest.param([using("cold", {"cpu": "much"})], "cannot be read", id="unreadable"),
    ],
)
def test_a_node_without_a_fresh_report_takes_nobody(metrics: list[NodeMetric], why: str) -> None:
    low_node_load = plugin(**THRESHOLDS)
    hot = using("hot", {"cpu": "8"}, a={"cpu": "1"})
    outcome = balanced(low_node_load, [sized("hot"), sized("cold")], [make_pod("a", "hot")], [hot, *metrics])
    assert moves(outcome) == []
    assert [why in stale.why for stale in low_node_load.unusable_metrics] == [True]


def test_targets_are_booked_as_pods_are_placed() -> None:
    """Each low node has room for one of the three before it is too full itself."""
    outcome = balanced(
        plugin(**THRESHOLDS),
        [sized("hot", "20"), sized("cold1", "4"), sized("cold2", "4")],
        [make_pod(name, "hot") for name in ("a", "b", "c")],
        [
            using("hot", {"cpu": "16"}, a={"cpu": "1"}, b={"cpu": "1"}, c={"cpu": "1"}),
            using("cold1", {"cpu": "500m"}),
            using("cold2", {"cpu": "500m"}),
        ],
    )
    assert moves(outcome) == [("a", "cold1"), ("b", "cold2")]


def test_a_pod_that_fits_no_target_or_is_not_measured_stays() -> None:
    nodes = [sized("hot"), sized("cold", "64", labels={"disk": "hdd"})]
    pods = [make_pod("picky", "hot", spec={"nodeSelector": {"disk": "ssd"}}), make_pod("unknown", "hot")]
    metrics = [using("hot", {"cpu": "7"}, picky={"cpu": "1"}), using("cold", {})]
    assert moves(balanced(plugin(**THRESHOLDS), nodes, pods, metrics)) == []
    loose = plugin(nodeFit=False, **THRESHOLDS)
    assert [name for name, _ in moves(balanced(loose, nodes, pods, metrics))] == ["picky", "unknown"]


def test_a_cordoned_node_takes_nobody_and_can_still_be_relieved() -> None:
    metrics = [using("hot", {"cpu": "8"}, a={"cpu": "1"}), using("cold", {})]
    pods = [make_pod("a", "hot")]
    low_node_load = plugin(**THRESHOLDS)
    assert moves(balanced(low_node_load, [sized("hot"), sized("cold", unschedulable=True)], pods, metrics)) == []
    nodes = [sized("hot", unschedulable=True), sized("cold")]
    assert moves(balanced(low_node_load, nodes, pods, metrics)) == [("a", "cold")]


def test_prod_pods_alone_are_moved_when_only_prod_is_too_much() -> None:
    low_node_load = plugin(**THRESHOLDS, prodLowThresholds={"cpu": 10}, prodHighThresholds={"cpu": 30})
    pods = [
        make_pod("prod", "hot", spec={"priority": PROD}),
        make_pod("batch", "hot", spec={"priority": BATCH}),
    ]
    metrics = [using("hot", {}, prod={"cpu": "3500m"}, batch={"cpu": "1"}), using("cold", {})]
    outcome = balanced(low_node_load, [sized("hot"), sized("cold", "64")], pods, metrics)
    assert moves(outcome) == [("prod", "cold")]
    assert "prod cpu usage(35.00%)>threshold(30.00%)" in outcome.effects[0].reason


def test_a_node_that_is_over_on_both_is_relieved_once() -> None:
    low_node_load = plugin(**THRESHOLDS, prodLowThresholds={"cpu": 10}, prodHighThresholds={"cpu": 30})
    pods = [make_pod("prod", "hot", spec={"priority": PROD}), make_pod("batch", "hot", spec={"priority": BATCH})]
    metrics = [using("hot", {"cpu": "1"}, prod={"cpu": "4"}, batch={"cpu": "1"}), using("cold", {})]
    outcome = balanced(low_node_load, [sized("hot"), sized("cold", "64")], pods, metrics)
    assert moves(outcome) == [("batch", "cold")]


def test_nothing_moves_when_all_are_low_or_too_few_are() -> None:
    nodes = [sized("hot"), sized("cold1", "64"), sized("cold2", "64")]
    pods = [make_pod("a", "hot")]
    calm = [using(name, {}) for name in ("hot", "cold1", "cold2")]
    assert moves(balanced(plugin(**THRESHOLDS), nodes, pods, calm)) == []
    metrics = [using("hot", {"cpu": "8"}, a={"cpu": "1"}), using("cold1", {}), using("cold2", {})]
    assert moves(balanced(plugin(numberOfNodes=2, **THRESHOLDS), nodes, pods, metrics)) == []
    assert moves(balanced(plugin(numberOfNodes=1, **THRESHOLDS), nodes, pods, metrics)) == [("a", "cold1")]


def test_deviation_is_around_the_average() -> None:
    low_node_load = plugin(
        useDeviationThresholds=True, lowThresholds={"cpu": 10}, highThresholds={"cpu": 10}, nodeFit=True
    )
    nodes = [sized("n1"), sized("n2"), sized("n3")]
    pods = [make_pod("a", "n1"), make_pod("b", "n2")]
    # 60, 40 and 20 percent: the average is 40, so only n1 is above 50 and only n3 below 30.
    metrics = [using("n1", {"cpu": "5"}, a={"cpu": "1"}), using("n2", {"cpu": "3"}, b={"cpu": "1"})]
    outcome = balanced(low_node_load, nodes, pods, [*metrics, using("n3", {"cpu": "2"})])
    assert moves(outcome) == [("a", "n3")]


def test_pools_have_their_own_thresholds_and_a_hot_node_belongs_to_the_first() -> None:
    pool = {"matchLabels": {"pool": "x"}}
    low_node_load = plugin(
        nodePools=[
            {"name": "strict", "nodeSelector": pool, **THRESHOLDS},
            {"name": "lax", "nodeSelector": pool, "lowThresholds": {"cpu": 10}, "highThresholds": {"cpu": 20}},
        ]
    )
    nodes = [sized("hot", labels={"pool": "x"}), sized("cold", "64", labels={"pool": "x"}), sized("other")]
    pods = [make_pod("a", "hot"), make_pod("b", "hot"), make_pod("c", "other")]
    metrics = [
        using("hot", {"cpu": "4"}, a={"cpu": "1500m"}, b={"cpu": "1"}),
        using("cold", {}),
        using("other", {"cpu": "9"}, c={"cpu": "1"}),
    ]
    # The lax pool would go on to 20 %; "other" is in no pool, and the pool of the top level has no thresholds.
    assert moves(balanced(low_node_load, nodes, pods, metrics)) == [("a", "cold")]


def test_raw_allocatable_is_what_percentages_are_of() -> None:
    amplified = sized("hot", "20", annotations={"node.koordinator.sh/raw-allocatable": '{"cpu":"10"}'})
    metrics = [using("hot", {"cpu": "5"}, a={"cpu": "1"}), using("cold", {})]
    outcome = balanced(plugin(**THRESHOLDS), [amplified, sized("cold")], [make_pod("a", "hot")], metrics)
    assert moves(outcome) == [("a", "cold")]
    broken = sized("hot", "20", annotations={"node.koordinator.sh/raw-allocatable": "{"})
    assert moves(balanced(plugin(**THRESHOLDS), [broken, sized("cold")], [make_pod("a", "hot")], metrics)) == []


def test_paused_does_nothing_and_a_dry_run_of_the_plugin_says_so() -> None:
    nodes, pods = [sized("hot"), sized("cold")], [make_pod("a", "hot")]
    metrics = [using("hot", {"cpu": "7"}, a={"cpu": "1"}), using("cold", {})]
    assert balanced(plugin(paused=True, **THRESHOLDS), nodes, pods, metrics).effects == ()
    assert [e.dry_run for e in balanced(plugin(dryRun=True, **THRESHOLDS), nodes, pods, metrics).effects] == [True]


# Certainty -------------------------------------------------------------------------------------------------------


def rounds(low_node_load: LowNodeLoad, used: list[str], every_s: float = 10) -> list[int]:
    """How many pods each round moves, with so much system usage on the hot node."""
    found = []
    for i, cpu in enumerate(used):
        now_s = NOW_S + i * every_s
        metrics = [
            using("hot", {"cpu": cpu}, age_s=-i * every_s, a={"cpu": "1"}),
            using("cold", {}, age_s=-i * every_s),
        ]
        outcome = balanced(low_node_load, [sized("hot"), sized("cold")], [make_pod("a", "hot")], metrics, now_s)
        found.append(len(moves(outcome)))
    return found


def test_five_abnormalities_need_a_sixth_round() -> None:
    low_node_load = plugin(**THRESHOLDS, anomalyCondition={"timeout": "1m", "consecutiveAbnormalities": 5})
    assert rounds(low_node_load, ["7"] * 8) == [0, 0, 0, 0, 0, 1, 1, 1]


def test_an_interruption_starts_the_count_again() -> None:
    condition = {"consecutiveAbnormalities": 2, "consecutiveNormalities": 1}
    low_node_load = plugin(**THRESHOLDS, anomalyCondition=condition)
    assert rounds(low_node_load, ["7", "7", "3", "7", "7", "7"]) == [0, 0, 0, 0, 0, 1]


def test_the_window_ends_and_counting_starts_again() -> None:
    condition = {"timeout": "15s", "consecutiveAbnormalities": 2, "consecutiveNormalities": 1}
    low_node_load = plugin(**THRESHOLDS, anomalyCondition=condition)
    assert rounds(low_node_load, ["7"] * 7) == [0, 0, 1, 1, 0, 0, 1]


def test_a_detector_by_its_own() -> None:
    detector = AnomalyDetector(DetectorCondition(abnormal=2, normal=1, timeout_s=3))
    assert [detector.mark(0, normal=False) for _ in range(3)] == [False, False, True]
    detector.reset()
    assert not detector.mark(0, normal=False)
    detector = AnomalyDetector(DetectorCondition(abnormal=1, normal=2, timeout_s=100))
    marks = [False, False, True, True, False, True, True, True]
    assert [detector.mark(0, normal=m) for m in marks] == [False, True, True, True, True, True, True, False]
    detector = AnomalyDetector(DetectorCondition(abnormal=1, normal=9, timeout_s=3))
    assert [detector.mark(0, normal=False) for _ in range(2)] == [False, True]
    assert detector.is_anomalous(3)
    assert not detector.is_anomalous(3.1)


def test_detectors_are_forgotten_after_a_while() -> None:
    detectors, condition = AnomalyDetectors(keep_s=10), DetectorCondition(abnormal=2, normal=1)
    assert [detectors.mark_abnormal("n", condition, at) for at in (0, 9, 18)] == [False, False, True]
    detectors = AnomalyDetectors(keep_s=10)
    assert [detectors.mark_abnormal("n", condition, at) for at in (0, 9, 20, 29)] == [False, False, False, False]


# Numbers ---------------------------------------------------------------------------------------------------------


def test_the_closest_cover_goes_first() -> None:
    over, weights = {"cpu": 4000, "memory": 4 << 30}, {"cpu": 1, "memory": 2}
    pods = {"t1": (2, 5), "t2": (3, 4), "t3": (4, 3), "t4": (5, 2)}
    scores = {
        name: coverage_score({"cpu": cpu * 1000, "memory": memory << 30}, over, weights)
        for name, (cpu, memory) in pods.items()
    }
    assert [round(scores[name], 4) for name in pods] == [1.3667, 1.5833, 1.1667, 0.9333]
    assert coverage_score({"cpu": 1}, over, {}) == 0.0
    assert coverage_score(None, over, weights) == 0.0


def test_fullness_is_weighted_thousandths() -> None:
    assert weighted_utilization({"cpu": 500, "memory": 3}, {"cpu": 1000, "memory": 4}, {"cpu": 1, "memory": 1}) == 625
    assert weighted_utilization({"cpu": 5000}, {"cpu": 1000}, {"cpu": 1}) == 1000
    assert weighted_utilization({"cpu": 5, "other": 1}, {"other": 1}, {"cpu": 1}) == 0


def test_thresholds_without_their_partner() -> None:
    found = complete_thresholds({"cpu": 30}, {"cpu": 50, "memory": 60}, ("cpu", "memory"), deviation=False)
    assert found == ThresholdPercentages(low={"cpu": 30, "memory": 100}, high={"cpu": 50, "memory": 100})
    assert complete_thresholds({"cpu": 30}, {}, ("cpu",), deviation=False).high == {"cpu": 0}
    neutral = thresholds_around({"cpu": 40}, complete_thresholds({}, {}, ("cpu",), deviation=True))
    assert neutral == ThresholdPercentages(low={"cpu": 100}, high={"cpu": 100})


@given(
    st.floats(0, 100),
    st.floats(0, 100),
    st.integers(0, 10**13),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=5),
)
def test_bounds_stay_within_the_node(low: float, high: float, size: int, used: list[int]) -> None:
    spread = complete_thresholds({"cpu": low}, {"cpu": high}, ("cpu",), deviation=True)
    middle = average_usage_percent([{"cpu": amount} for amount in used], [{"cpu": 10**6}] * len(used))
    found = threshold_amounts(thresholds_around(middle, spread), {"cpu": size})
    assert 0 <= found.low["cpu"] <= found.high["cpu"] <= size


@given(st.data())
def test_no_target_ends_above_its_threshold_and_no_move_is_needless(data: Any) -> None:
    """Whatever the loads: the sum of what is moved to a node keeps it under, and each move had a node too full."""
    count = data.draw(st.integers(2, 5), label="nodes")
    nodes = [make_node(f"n{i}") for i in range(count)]
    pods, metrics, used = [], [], {}
    for i in range(count):
        own = data.draw(st.lists(st.integers(50, 2500), max_size=6), label=f"pods of n{i}")
        for j, milli in enumerate(own):
            pods.append(make_pod(f"p{i}-{j}", f"n{i}"))
            used[f"p{i}-{j}"] = milli
        usage = {f"p{i}_{j}": {"cpu": f"{milli}m"} for j, milli in enumerate(own)}
        metrics.append(using(f"n{i}", {"cpu": "100m"}, 0, **usage))
    outcome = balanced(plugin(lowThresholds={"cpu": 30}, highThresholds={"cpu": 50}), nodes, pods, metrics)
    total = {f"n{i}": 100 + sum(m for name, m in used.items() if name.startswith(f"p{i}-")) for i in range(count)}
    for effect in outcome.effects:
        assert isinstance(effect, EvictionProposal)
        milli = used[effect.pod.metadata.name]
        assert total[effect.node] > 4000
        total[effect.node] -= milli
        total[effect.target] += milli
        assert total[effect.target] <= 4000
