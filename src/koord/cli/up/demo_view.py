"""This module holds what the co-location demonstration shows at one moment, and its summary at the end, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from koord.policy.eviction import EvictionRecord
from koord.sim.agents.cluster_load import ClusterLoadState, LoadObserver

DAY_S = 86_400.0
_MAX_RECENT_EVICTIONS = 4


class DemoJobCounts(msgspec.Struct, frozen=True, kw_only=True):
    submitted: int
    done: int
    failed: int
    running: int
    waiting: int


class DemoSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """DemoSummary: percents are of the cluster's CPU; `services` are those of the same hours, so nothing else
    differs.
    """

    hours: float
    nodes: int
    cores: int
    services_percent: float
    used_percent: float
    lent_percent: float
    jobs_done: int
    jobs_failed: int
    evictions: int
    evictions_by_rule: dict[str, int]
    short_core_seconds: float
    slowest_service: float  # latency against an idle machine, at the worst moment beside batch work
    slowest_service_alone: float  # the same before any batch work was there
    suppressed_share: float  # of node time in which batch wanted more than it was let have
    wall_s: float
    cpu_s: float


class DemoView(msgspec.Struct, frozen=True, kw_only=True):
    state: ClusterLoadState
    services: Sequence[float]  # percent of CPU by slot of the day, as are the next two
    batch: Sequence[float]
    lent: Sequence[float]
    jobs: DemoJobCounts
    evictions: tuple[EvictionRecord, ...]  # newest first
    evicted: int
    summary: DemoSummary
    started_s: float
    speed: float  # virtual seconds per second, as reached

    @property
    def day(self) -> int:
        return int((self.state.at_s - self.started_s) // DAY_S) + 1

    @property
    def time(self) -> str:
        minutes = int(self.state.at_s % DAY_S // 60)
        return f"{minutes // 60:02d}:{minutes % 60:02d}"


def build_view(
    observation: LoadObserver,
    jobs: DemoJobCounts,
    evictions: Sequence[EvictionRecord],
    *,
    started_s: float,
    wall_s: float,
    cpu_s: float,
) -> DemoView | None:
    """Build the view; None before the first step."""
    state = observation.state
    if state is None:
        return None
    during = observation.during if observation.during.seconds else observation.before
    evicted = [one for one in evictions if one.outcome == "evicted"]
    passed = state.at_s - started_s
    summary = DemoSummary(
        hours=round(passed / 3600, 2),
        nodes=len(state.nodes),
        cores=state.capacity_milli // 1000,
        services_percent=round(during.services_percent, 1),
        used_percent=round(during.used_percent, 1),
        lent_percent=round(100 * during.lent / during.capacity, 1) if during.capacity else 0.0,
        jobs_done=jobs.done,
        jobs_failed=jobs.failed,
        evictions=len(evicted),
        evictions_by_rule=dict(Counter(one.rule for one in evicted)),
        short_core_seconds=round((observation.before.short + observation.during.short) / 1000, 3),
        slowest_service=round(max(observation.before.slowest, observation.during.slowest), 2),
        slowest_service_alone=round(observation.before.slowest, 2),
        suppressed_share=round(during.suppressed_node_s / max(during.seconds * len(state.nodes), 1), 4),
        wall_s=round(wall_s, 1),
        cpu_s=round(cpu_s, 1),
    )
    return DemoView(
        state=state,
        services=observation.slots("services"),
        batch=observation.slots("batch"),
        lent=observation.slots("lent"),
        jobs=jobs,
        evictions=tuple(evicted[:_MAX_RECENT_EVICTIONS]),
        evicted=len(evicted),
        summary=summary,
        started_s=started_s,
        speed=passed / wall_s if wall_s > 0 else 0.0,
    )


def json_line(view: DemoView) -> dict[str, Any]:
    """Return one JSON line for programs: the cluster, and each node."""
    state = view.state
    return {
        "day": view.day,
        "time": view.time,
        "cpuPercent": round(state.percent("services_milli", "batch_milli", "system_milli"), 1),
        "servicesPercent": round(state.percent("services_milli", "system_milli"), 1),
        "batchPercent": round(state.percent("batch_milli"), 1),
        "lentPercent": round(state.percent("lent_milli"), 1),
        "suppressedNodes": state.suppressed,
        "shortMilli": round(sum(node.short_milli for node in state.nodes), 1),
        "evicted": view.evicted,
        "jobs": msgspec.to_builtins(view.jobs),
        "nodes": [
            {
                "name": node.name,
                "servicesMilli": round(node.services_milli + node.system_milli),
                "batchMilli": round(node.batch_milli),
                "lentMilli": node.lent_milli,
                "batchPods": node.batch_pods,
                "cpusForBatch": node.cpus_for_batch,
                "heldBackMilli": round(node.held_back_milli),
                "shortMilli": round(node.short_milli, 1),
                "why": node.why,
            }
            for node in state.nodes
        ],
    }
