"""SchedulingGates and PrioritySort: who may enter the queue, and in which order it is left."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.scheduler.framework.cluster_event import UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.verdict import unresolvable
from koord.scheduler.plugins.queueing_and_binding import PrioritySort, SchedulingGates
from tests.scheduler.builders import make_info


@pytest.mark.parametrize(
    ("gates", "refusal"),
    [
        pytest.param([], None, id="no-gates"),
        pytest.param(["a"], unresolvable("waiting for scheduling gates: [a]"), id="one-gate"),
        pytest.param(["b", "a"], unresolvable("waiting for scheduling gates: [b a]"), id="two-gates-in-their-order"),
    ],
)
def test_gates_keep_a_pod_out(gates: list[str], refusal: object) -> None:
    pod = make_info(schedulingGates=[{"name": gate} for gate in gates])
    assert SchedulingGates().pre_enqueue(pod) == refusal


def test_only_the_pod_itself_loses_its_gates() -> None:
    gated, other = make_info(name="gated"), make_info(name="other")
    event = ClusterEvent("Pod", UPDATE, "gates")
    assert SchedulingGates().queueing_hint(gated, ObjectEvent(event, gated, gated))
    assert not SchedulingGates().queueing_hint(gated, ObjectEvent(event, other, other))


@given(st.lists(st.tuples(st.sampled_from((None, -5, 0, 7)), st.integers(0, 4)), min_size=2, max_size=6))
def test_order_is_priority_then_time(queued: list[tuple[int | None, int]]) -> None:
    def key(entry: tuple[int | None, int]) -> tuple[int, float]:
        return PrioritySort().sort_key(make_info(priority=entry[0]), entry[1])

    ordered = sorted(queued, key=key)
    for (first, sooner), (second, later) in pairwise(ordered):
        assert (first or 0) > (second or 0) or ((first or 0) == (second or 0) and sooner <= later)
