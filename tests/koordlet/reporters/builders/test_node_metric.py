"""The status of the NodeMetric: exactly what was measured, and nothing that was not."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.protocol import BE, LS
from koord.api.koordinator.slo import (
    MEMORY_WITH_HOT_PAGE_CACHE,
    MEMORY_WITH_PAGE_CACHE,
    AggregatePolicy,
    HostApplicationSpec,
    MetricCollectPolicy,
    NodeMetricSpec,
)
from koord.api.model import to_dict
from koord.koordlet.reporters.builders.node_metric import (
    GpuIdentity,
    NodeMetricView,
    ReportPolicy,
    ReportWithheld,
    build_node_metric,
    report_policy,
)
from koord.koordlet.reporters.builders.reclaimable import PeakPrediction, ResourceAmount
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesKey, SeriesStore
from tests.koordlet.strategies.builders import pod

GI = 2**30
NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def store(series: dict[SeriesKey, list[float]], *, until: float = NOW, step: float = 1.0) -> SeriesStore:
    kept = SeriesStore(metric_kind.retention_s(), interval_s=step)
    for key, values in series.items():
        for place, value in enumerate(values):
            kept.add(key, until - (len(values) - 1 - place) * step, value)
    return kept


def steady(**changes: Any) -> NodeMetricView:
    seen = NodeMetricView(
        series=store(
            {
                (metric_kind.NODE_CPU,): [4.1] * 10,
                (metric_kind.NODE_MEMORY,): [8.0 * GI] * 10,
                (metric_kind.NODE_MEMORY_WITH_PAGE_CACHE,): [9.0 * GI] * 10,
                (metric_kind.NODE_MEMORY_WITH_HOT_PAGES,): [8.5 * GI] * 10,
                (metric_kind.SYSTEM_CPU,): [0.3] * 10,
                (metric_kind.SYSTEM_MEMORY,): [1.0 * GI] * 10,
                (metric_kind.POD_CPU, "a"): [0.5] * 10,
                (metric_kind.POD_MEMORY, "a"): [0.25 * GI] * 10,
                (metric_kind.POD_CPU, "half"): [0.5] * 10,
                (metric_kind.APPLICATION_CPU, "nginx"): [1.0] * 10,
                (metric_kind.APPLICATION_MEMORY, "nginx"): [1.0 * GI] * 10,
                (metric_kind.NUMA_CPU, "0"): [2.0] * 10,
                (metric_kind.NUMA_MEMORY, "0"): [4.0 * GI] * 10,
                (metric_kind.NUMA_CPU, "1"): [2.0] * 10,
            }
        ),
        now_s=NOW,
        policy=ReportPolicy(durations_s=(300.0,)),
        pods=(pod("a", LS, priority=9500), pod("half", LS), pod("unmeasured", BE)),
        applications=(
            HostApplicationSpec(name="nginx", priority="koord-prod", qos="LS"),
            HostApplicationSpec(name="absent", priority="koord-batch", qos="BE"),
        ),
        numa_nodes=(1, 0),
        prediction=PeakPrediction(reclaimable=ResourceAmount(1_450, 966_367_642), peak=ResourceAmount(2_050, GI)),
    )
    return msgspec.structs.replace(seen, **changes)


def built(seen: NodeMetricView) -> dict[str, Any]:
    status = build_node_metric(seen)
    assert not isinstance(status, ReportWithheld)
    return to_dict(status)


def test_the_whole_status() -> None:
    assert built(steady()) == {
        "updateTime": "2026-01-01T00:00:00Z",
        "nodeMetric": {
            "nodeUsage": {"resources": {"cpu": "4100m", "memory": "8Gi"}},
            "aggregatedNodeUsages": [
                {"usage": {"avg": {}, "p50": {}, "p90": {}, "p95": {}, "p99": {}}, "duration": "5m0s"}
            ],
            "systemUsage": {"resources": {"cpu": "300m", "memory": "1Gi"}},
            "aggregatedSystemUsages": [
                {"usage": {"avg": {}, "p50": {}, "p90": {}, "p95": {}, "p99": {}}, "duration": "5m0s"}
            ],
            "numaUsages": [
                {
                    "numaNodeID": 0,
                    "nodeUsage": {"resources": {"cpu": "2", "memory": "4Gi"}},
                    "systemUsage": {},
                }
            ],
        },
        "podsMetric": [
            {
                "namespace": "default",
                "name": "a",
                "priority": "koord-prod",
                "qos": "LS",
                "podUsage": {"resources": {"cpu": "500m", "memory": "256Mi"}},
            }
        ],
        "hostApplicationMetric": [
            {
                "name": "nginx",
                "usage": {"resources": {"cpu": "1", "memory": "1Gi"}},
                "priority": "koord-prod",
                "qos": "LS",
            }
        ],
        "prodReclaimableMetric": {"resource": {"resources": {"cpu": "1450m", "memory": "966367642"}}},
        "prodPeakMetric": {"resource": {"resources": {"cpu": "2050m", "memory": "1Gi"}}},
    }


def test_percentiles_appear_once_half_of_their_window_is_covered() -> None:
    ramp = [float(n) for n in range(301)]
    series = store({(metric_kind.NODE_CPU,): ramp, (metric_kind.NODE_MEMORY,): [n * 1024.0 for n in ramp]})
    seen = NodeMetricView(series=series, now_s=NOW, policy=ReportPolicy(durations_s=(300.0, 600.0, 1800.0)))
    windows = built(seen)["nodeMetric"]["aggregatedNodeUsages"]
    assert [one["duration"] for one in windows] == ["5m0s", "10m0s", "30m0s"]
    assert {name: one["resources"]["cpu"] for name, one in windows[0]["usage"].items()} == {
        "avg": "150",
        "p50": "149",
        "p90": "269",
        "p95": "284",
        "p99": "296",
    }
    assert windows[1]["usage"]["p99"]["resources"] == {"cpu": "296", "memory": "296Ki"}
    assert windows[2]["usage"]["avg"] == {}


@pytest.mark.parametrize(("seconds", "told"), [(149, False), (150, True)])
def test_half_a_window_is_enough(seconds: int, told: bool) -> None:
    values = [1.0] * (seconds + 1)
    series = store({(metric_kind.NODE_CPU,): values, (metric_kind.NODE_MEMORY,): values})
    found = built(NodeMetricView(series=series, now_s=NOW, policy=ReportPolicy(durations_s=(300.0,))))
    assert bool(found["nodeMetric"]["aggregatedNodeUsages"][0]["usage"]["p90"]) is told


@pytest.mark.parametrize(
    ("policy", "hot", "memory"),
    [
        pytest.param("usageWithoutPageCache", True, "8Gi", id="plain"),
        pytest.param(MEMORY_WITH_PAGE_CACHE, False, "9Gi", id="with-page-cache"),
        pytest.param(MEMORY_WITH_HOT_PAGE_CACHE, True, "8704Mi", id="hot"),
        pytest.param(MEMORY_WITH_HOT_PAGE_CACHE, False, "8Gi", id="hot-pages-unknown"),
    ],
)
def test_which_memory_counts(policy: str, hot: bool, memory: str) -> None:
    found = built(steady(policy=ReportPolicy(memory=policy), hot_pages=hot))
    assert found["nodeMetric"]["nodeUsage"]["resources"]["memory"] == memory
    assert found["nodeMetric"]["systemUsage"]["resources"]["memory"] == "1Gi"


def test_a_node_that_stopped_measuring_says_nothing() -> None:
    found = build_node_metric(steady(now_s=NOW + 31))
    assert isinstance(found, ReportWithheld)
    assert "30s" in found.why
    assert isinstance(build_node_metric(NodeMetricView(series=SeriesStore({}), now_s=NOW)), ReportWithheld)


def test_a_pod_that_is_gone_quiet_is_left_out() -> None:
    seen = steady()
    for second in range(1, 40):
        seen.series.add((metric_kind.NODE_CPU,), NOW + second, 1.0)
        seen.series.add((metric_kind.NODE_MEMORY,), NOW + second, 1.0)
    found = built(msgspec.structs.replace(seen, now_s=NOW + 39))
    assert "podsMetric" not in found
    assert found["nodeMetric"]["systemUsage"] == {}


def test_what_cannot_be_predicted_is_an_empty_object() -> None:
    found = built(steady(prediction=None))
    assert found["prodReclaimableMetric"] == {"resource": {}}
    assert "prodPeakMetric" not in found


def test_cards_of_the_node_and_of_pods() -> None:
    seen = steady(
        gpus=(GpuIdentity(uuid="g0", minor=0, total_bytes=16 * GI), GpuIdentity(uuid="g1", minor=1, total_bytes=0)),
    )
    for key, value in {
        (metric_kind.NODE_GPU_CORE, "0", "g0"): 62.9,
        (metric_kind.NODE_GPU_MEMORY, "0", "g0"): 4.0 * GI,
        (metric_kind.POD_GPU_CORE, "a", "0", "g0"): 10.0,
        (metric_kind.POD_GPU_MEMORY, "a", "0", "g0"): 1.0 * GI,
    }.items():
        seen.series.add(key, NOW, value)
    found = built(seen)
    assert found["nodeMetric"]["nodeUsage"]["devices"] == [
        {
            "type": "gpu",
            "id": "g0",
            "minor": 0,
            "health": False,
            "resources": {
                "koordinator.sh/gpu-core": "62",
                "koordinator.sh/gpu-memory": "4Gi",
                "koordinator.sh/gpu-memory-ratio": "25",
            },
        }
    ]
    assert found["podsMetric"][0]["podUsage"]["devices"][0]["resources"]["koordinator.sh/gpu-core"] == "10"


def test_pods_are_in_the_order_of_their_names() -> None:
    names = ("b", "a", "c")
    series: dict[SeriesKey, list[float]] = {(metric_kind.NODE_CPU,): [1.0], (metric_kind.NODE_MEMORY,): [1.0]}
    series |= {(what, name): [1.0] for name in names for what in (metric_kind.POD_CPU, metric_kind.POD_MEMORY)}
    seen = NodeMetricView(series=store(series), now_s=NOW, pods=tuple(pod(name) for name in names))
    assert [one["name"] for one in built(seen)["podsMetric"]] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(None, ReportPolicy(), id="nothing-said"),
        pytest.param(MetricCollectPolicy(report_interval_seconds=666), ReportPolicy(report_s=666), id="interval"),
        pytest.param(
            MetricCollectPolicy(report_interval_seconds=1, aggregate_duration_seconds=1),
            ReportPolicy(report_s=30, aggregate_s=60),
            id="not-too-often",
        ),
        pytest.param(
            MetricCollectPolicy(node_aggregate_policy=AggregatePolicy(durations=("1m0s", "bad", "-5m", "0s"))),
            ReportPolicy(durations_s=(60.0,)),
            id="durations-that-are-some",
        ),
        pytest.param(
            MetricCollectPolicy(node_memory_collect_policy=MEMORY_WITH_PAGE_CACHE),
            ReportPolicy(memory=MEMORY_WITH_PAGE_CACHE),
            id="memory",
        ),
    ],
)
def test_policy(spec: MetricCollectPolicy | None, expected: ReportPolicy) -> None:
    assert report_policy(NodeMetricSpec(metric_collect_policy=spec)) == expected


def test_series_must_reach_as_far_as_the_longest_window() -> None:
    assert ReportPolicy(aggregate_s=600, durations_s=()).longest_s == 600
    assert ReportPolicy().longest_s == 1800


@settings(max_examples=60)
@given(
    values=st.lists(
        st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([math.nan, -1.0, 1e308])),
        min_size=1,
        max_size=30,
    ),
    steps=st.lists(st.floats(-100, 100), min_size=30, max_size=30),
)
def test_garbage_never_leaves(values: list[float], steps: list[float]) -> None:
    series, now = SeriesStore(metric_kind.retention_s()), NOW
    for value, step in zip(values, steps, strict=False):
        now += step
        series.add((metric_kind.NODE_CPU,), now, value)
        series.add((metric_kind.NODE_MEMORY,), now, value)
    status = build_node_metric(NodeMetricView(series=series, now_s=now))
    if not isinstance(status, ReportWithheld):
        assert status.node_metric is not None
        for amount in status.node_metric.node_usage.resources.values():
            assert not str(amount).startswith("-")
            assert "nan" not in str(amount).lower()
