"""The log of attempts is bounded by bytes, whatever was decided, and keeps the newest."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.attempt import AttemptLog, AttemptRecord
from koord.scheduler.framework.decision import (
    AttemptError,
    ChosenNode,
    Decision,
    NearestNode,
    NodeRejections,
    PreemptionPlan,
    ScoredNode,
    Unschedulable,
    VictimSearch,
)
from koord.scheduler.framework.verdict import reject
from tests.scheduler.builders import make_info

LIMIT = 1 << 20


def scores(i: int) -> dict[str, int]:
    return {f"Plugin{k}": 1000 + i + k for k in range(14)}


def chosen(i: int) -> Decision:
    return ChosenNode(f"node-{i}", 1000, 5000 + i, scores(i))


def chosen_with_runners_up(i: int) -> Decision:
    others = tuple(ScoredNode(f"node-{i}-{k}", 4000 + i + k, scores(k)) for k in range(3))
    return ChosenNode(f"node-{i}", 1000, 5000 + i, scores(i), others)


def unschedulable(i: int) -> Decision:
    rejections = tuple(
        NodeRejections(
            f"Plugin{k}", reject(f"{i} reasons of {k}" * 3), 10, tuple(f"node-{i}-{k}-{n}" for n in range(10))
        )
        for k in range(6)
    )
    nearest = NearestNode(f"node-{i}", (f"reason {i}",), {"cpu": i, "memory": 1 << 40}, (f"detail {i}",))
    search = VictimSearch("DefaultPreemption", 10, 0, {f"why {i} {k}": k for k in range(5)}, nearest)
    return Unschedulable(1000, rejections, post_filter=f"no victims {i}" * 5, nearest=nearest, searches=(search,))


def unschedulable_by_one_endless_reason(i: int) -> Decision:
    return Unschedulable(1000, (), pre_filter=("Plugin", reject(f"{i}" + "x" * 8000)))


def preempting(i: int) -> Decision:
    annotations = {"example.com/blob": f"{i}" + "y" * 4000}
    victims = tuple(make_info(name=f"v-{i}-{k}", annotations=annotations) for k in range(4))
    return Unschedulable(1000, (), preempt=PreemptionPlan("DefaultPreemption", "n0", victims))


def failed(i: int) -> Decision:
    return AttemptError("Plugin", f"{i} broke" * 100)


@pytest.mark.parametrize(
    "decide",
    [chosen, chosen_with_runners_up, unschedulable, unschedulable_by_one_endless_reason, preempting, failed],
)
def test_bytes_are_bounded(decide: Any) -> None:
    log = AttemptLog(LIMIT)
    count = 4000
    for i in range(count):
        record = AttemptRecord(
            pod=f"default/pod-{i}",
            uid=f"00000000-0000-0000-0000-{i:012}",
            scheduler="koord-scheduler",
            number=1,
            at=1e9 + i,
            took_s=0.001 * i,
            decision=decide(i),
            result="binding",
        )
        log.put(record)
        log.set_result(record.uid, "unschedulable", f"message of {i} " * 10)
    taken = size_of(log, set())
    assert LIMIT / 4 < taken < 1.2 * LIMIT
    assert log.get(f"00000000-0000-0000-0000-{count - 1:012}") is not None
    assert log.get("00000000-0000-0000-0000-000000000000") is None


def size_of(value: Any, seen: set[int]) -> int:
    """Return the bytes of everything that is reached from a value and not shared with the interpreter."""
    if id(value) in seen or isinstance(value, type):
        return 0
    seen.add(id(value))
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        size += sum(size_of(k, seen) + size_of(v, seen) for k, v in value.items())
    elif isinstance(value, tuple | list | set | frozenset):
        size += sum(size_of(one, seen) for one in value)
    elif isinstance(value, msgspec.Struct):
        size += sum(size_of(getattr(value, name), seen) for name in value.__struct_fields__)
    elif isinstance(value, PodInfo):  # its shape and labels are shared with other pods
        own = [getattr(value, name, None) for name in PodInfo.__slots__ if name not in ("shape", "label_group")]
        size += sum(size_of(one, seen) for one in own)
    elif hasattr(value, "__dict__"):
        size += size_of(vars(value), seen)
    return size
