"""How LoadAwareScheduling ranks nodes. Nodes have 96 cores and 512Gi, the pod asks for 16 cores and 32Gi."""

from __future__ import annotations

from typing import Any

import pytest

from koord.scheduler.cache.node_table import ALL_ROWS
from koord.scheduler.framework.cycle_state import CycleState
from tests.scheduler.plugins.load_aware.load_cluster import (
    BATCH,
    NOW,
    PROD,
    LoadCluster,
    big_node,
    pod_on,
    report,
    score,
)

ASKS: dict[str, Any] = {"cpu": "16", "memory": "32Gi"}
P95_5M = {"aggregated": {"scoreAggregationType": "p95", "scoreAggregatedDuration": "5m"}}


@pytest.mark.parametrize(
    ("objects", "stated", "pod", "expected"),
    [
        pytest.param([report()], {}, ASKS, 90, id="empty-node"),
        pytest.param([report(cpu="32", memory="10Gi")], {}, ASKS, 72, id="some-of-it-used"),
        pytest.param(
            [report(windows={"5m": {"p95": ("32", "10Gi"), "avg": ("0", "0")}})], P95_5M, ASKS, 72, id="by-p95"
        ),
        pytest.param([report(cpu="50")], P95_5M, ASKS, 90, id="p95-that-was-not-reported"),
        pytest.param(
            [report(cpu="50", pods={"a": ("1", "1Gi")}), pod_on("a", "n0", **ASKS)],
            P95_5M,
            ASKS,
            81,
            id="where-estimates-stand-in-for-it",
        ),
        pytest.param(
            [report(cpu="32", memory="10Gi"), pod_on("a", "n0", scheduled=NOW - 10, **ASKS)],
            {},
            ASKS,
            63,
            id="a-pod-placed-before-the-report-that-does-not-show-it",
        ),
        pytest.param(
            [report(cpu="32", memory="10Gi"), pod_on("a", "n0", scheduled=NOW + 10, **ASKS)],
            {},
            ASKS,
            63,
            id="a-pod-placed-after-the-report",
        ),
        pytest.param(
            [report()],
            {},
            {"labels": BATCH, "more": {"kubernetes.io/batch-cpu": "16000", "kubernetes.io/batch-memory": "32Gi"}},
            90,
            id="a-batch-pod",
        ),
        pytest.param(
            [report(pods={"a": ("30", "100Gi")}), pod_on("a", "n0", labels=PROD)],
            {"scoreAccordingProdUsage": True},
            {"labels": PROD, "cpu": "16000", "memory": "32Gi"},
            38,
            id="by-prod-usage",
        ),
        pytest.param([report()], {"dominantResourceWeight": 10}, ASKS, 85, id="the-scarcest-alone"),
        pytest.param([report()], {}, {}, 99, id="a-pod-without-requests"),
        pytest.param([report(age=180)], {}, ASKS, 0, id="an-old-report"),
        pytest.param(
            [report(age=180)], {"filterExpiredNodeMetrics": False}, ASKS, 0, id="an-old-report-filtered-or-not"
        ),
        pytest.param([], {}, ASKS, 0, id="no-report"),
        pytest.param([report(measured=False)], {}, ASKS, 0, id="a-report-without-usage"),
        pytest.param([report(cpu="97", memory="600Gi")], {}, ASKS, 0, id="more-than-all-of-it"),
        pytest.param(
            [report()],
            {
                "dominantResourceWeight": 1,
                "resourceWeights": {"cpu": 1},
                "supportedResources": ["example.com/missing"],
            },
            ASKS,
            42,
            id="a-resource-that-the-node-lacks-is-the-scarcest",
        ),
        pytest.param(
            [report()],
            {"resourceWeights": {"cpu": 3, "memory": 1}},
            ASKS,
            87,
            id="weights",
        ),
    ],
)
def test_facts(objects: Any, stated: Any, pod: Any, expected: int) -> None:
    world = LoadCluster(big_node(), *objects)
    assert score(world.plugin(**stated), world, world.info(**pod)) == expected


def test_a_report_grows_old() -> None:
    world = LoadCluster(big_node(), report())
    plugin = world.plugin(filterExpiredNodeMetrics=False)
    pod = world.info(**ASKS)
    assert score(plugin, world, pod) == 90
    world.clock += 180
    assert score(plugin, world, pod) == 0


def test_amounts_too_large_for_floats_are_scored_exactly() -> None:
    """Beyond 90 TB of memory a hundredfold of it is no longer exact as a float."""
    nodes = [big_node(f"n{i}", memory=str((1 << 55) + i)) for i in range(8)]
    world = LoadCluster(*nodes, *(report(f"n{i}", memory=str((1 << 54) + 7 * i)) for i in range(8)))
    plugin = world.plugin(resourceWeights={"memory": 1})
    plugin.note_expired_rows()
    pod, cycle = world.info(), CycleState(world.state)
    columns = plugin.score_columns(cycle, pod, world.state.table, ALL_ROWS)
    assert [int(columns[world.node(f"n{i}").row]) for i in range(8)] == [
        plugin.score(cycle, pod, world.node(f"n{i}")) for i in range(8)
    ]
