"""Containers of another orchestrator as victims: by which rules, in which order, and what is counted for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from koord.api.koordinator.protocol import BE
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY
from koord.api.koordinator.slo import ResourceThresholdStrategy
from koord.host.cgroup.knob import CPU_QUOTA, CPUSET
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.inputs.yarn_containers import container_meta
from koord.koordlet.strategies import cpu_suppress
from koord.koordlet.strategies.cpu_evict import BeCpuUsage, CpuEvictView, decide_cpu_evict
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.memory_evict import MemoryEvictView, decide_memory_evict
from koord.koordlet.strategies.victim_selection import (
    BE_CPU_EVICT,
    BE_MEMORY_EVICT,
    CPU_ALLOCATABLE_EVICT,
    MEMORY_ALLOCATABLE_EVICT,
    MEMORY_EVICT,
)
from koord.wire.yarn_copilot import NodeManagerContainer, container_info
from tests.koordlet.strategies.builders import pod, victims, writes
from tests.koordlet.strategies.runner_fixture import RunnerFixture, suppress_by

G = 10**9
GROUP = "kubepods/besteffort/hadoop-yarn"
MASTER, TASK, OTHER = (f"container_1_0001_01_{number:06d}" for number in (1, 2, 3))


def yarn(name: str, vcores: int = 1) -> PodMeta:
    return container_meta(container_info(NodeManagerContainer(id=name, vcores=vcores, memory_mb=1024), GROUP))


def memory_view(**changes: Any) -> MemoryEvictView:
    seen = MemoryEvictView(
        enabled=True,
        features=frozenset({BE_MEMORY_EVICT}),
        since_last_s=10.0,
        strategy=ResourceThresholdStrategy(memory_evict_threshold_percent=82),
        capacity_bytes=120 * G,
        node_used_bytes=115 * G,
        pods=(pod("batch", BE, priority=5000), yarn(MASTER), yarn(TASK), yarn(OTHER)),
        used_bytes={"batch": 10 * G, MASTER: 30 * G, TASK: 20 * G, OTHER: 5 * G},
    )
    return msgspec.structs.replace(seen, **changes)


@pytest.mark.parametrize(
    ("needed", "expected"),
    [(15, [TASK]), (25, [TASK, "batch"]), (34, [TASK, "batch", OTHER]), (50, [TASK, "batch", OTHER, MASTER])],
)
def test_for_memory_the_largest_goes_first_pod_or_not_and_masters_last(needed: int, expected: list[str]) -> None:
    strategy = ResourceThresholdStrategy(
        memory_evict_threshold_percent=95, memory_evict_lower_percent=95 - needed * 100 // 120
    )
    assert victims(decide_memory_evict(memory_view(strategy=strategy))) == expected


def test_the_record_says_whose_container_it_is() -> None:
    (request,) = decide_memory_evict(memory_view()).effects
    assert isinstance(request, EvictionRequest)
    assert (request.third_party, request.namespace, request.name) == ("hadoop-yarn", "yarn", TASK)
    assert request.message == f"trigger by koordlet feature BEMemoryEvict, kill hadoop-yarn container: {TASK}"
    assert "BE, priority 5000" in request.record.why_this_pod


def test_rules_by_priority_take_containers_as_they_take_pods_that_consent() -> None:
    strategy = ResourceThresholdStrategy(memory_evict_threshold_percent=82, evict_enabled_priority_threshold=5999)
    seen = memory_view(features=frozenset({MEMORY_EVICT}), strategy=strategy)
    assert victims(decide_memory_evict(seen)) == [TASK]


def test_requests_beyond_the_allocatable_are_those_of_pods() -> None:
    """YARN gives back what is over by itself, within its own timeout, and the allocatable is what it leaves."""
    strategy = ResourceThresholdStrategy(
        memory_allocatable_evict_threshold_percent=100,
        memory_allocatable_evict_lower_percent=90,
        allocatable_evict_priority_threshold=5999,
    )
    labels = {"koordinator.sh/eviction-enabled": "true"}
    mine = pod("batch", BE, priority=5000, labels=labels, requests={BATCH_MEMORY: 2 * G})
    seen = memory_view(
        features=frozenset({MEMORY_ALLOCATABLE_EVICT}),
        strategy=strategy,
        pods=(mine, yarn(TASK)),
        allocatable={BATCH_MEMORY: 2 * G},
    )
    assert victims(decide_memory_evict(seen)) == []
    assert victims(decide_memory_evict(msgspec.structs.replace(seen, allocatable={BATCH_MEMORY: G}))) == ["batch"]


def cpu_view(**changes: Any) -> CpuEvictView:
    strategy = ResourceThresholdStrategy(
        cpu_evict_be_satisfaction_lower_percent=40,
        cpu_evict_be_satisfaction_upper_percent=60,
        cpu_evict_time_window_seconds=1,
    )
    usage = BeCpuUsage(used=3_000, request=10_000, limit=3_000, count=100)
    seen = CpuEvictView(
        enabled=True,
        features=frozenset({BE_CPU_EVICT}),
        since_last_s=100.0,
        strategy=strategy,
        capacity_milli=16_000,
        be_average=usage,
        be_last=usage,
        pods=(pod("batch", BE, priority=5000, requests={BATCH_CPU: 4_000}), yarn(MASTER, 2), yarn(TASK, 4)),
        used_milli={"batch": 100, MASTER: 1_900, TASK: 1_000},
    )
    return msgspec.structs.replace(seen, **changes)


def test_when_best_effort_work_starves_who_uses_most_of_its_request_goes_first() -> None:
    assert victims(decide_cpu_evict(cpu_view())) == [TASK]


def test_satisfaction_by_allocatable_counts_what_yarn_holds_of_the_node() -> None:
    strategy = msgspec.structs.replace(cpu_view().strategy, cpu_evict_policy="evictByAllocatable")
    starving = cpu_view(strategy=strategy, allocatable={BATCH_CPU: 3_000})
    assert victims(decide_cpu_evict(starving)) == [TASK]
    whole = msgspec.structs.replace(starving, origin_allocatable={BATCH_CPU: 9_000})
    assert victims(decide_cpu_evict(whole)) == []
    rule = msgspec.structs.replace(whole, features=frozenset({CPU_ALLOCATABLE_EVICT}))
    assert victims(decide_cpu_evict(rule)) == []


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("policy", ["cfsQuota", "cpuset"])
def test_suppression_covers_the_groups_of_containers(tmp_path: Path, version: int, policy: str) -> None:
    fixture = RunnerFixture(tmp_path, version)
    for group in (GROUP, f"{GROUP}/{TASK}"):
        fixture.world.machine.make(group)
    fixture.measure(3_900, {"ls": 2_500, "be": 1_000})
    (ran,) = [one for one in fixture.tick(suppress_by(policy)) if one.strategy == cpu_suppress.OWNER]
    if policy == "cfsQuota":
        ((group, _),) = writes(ran.plan, CPU_QUOTA)
        assert GROUP.startswith(f"{group}/")  # the quota of all best-effort work holds for what is below
    else:
        held = dict(writes(ran.plan, CPUSET))
        assert held[GROUP] == held[f"{GROUP}/{TASK}"] == held["kubepods/besteffort"]
        assert fixture.world.machine.text(CPUSET, f"{GROUP}/{TASK}") == held[GROUP]
