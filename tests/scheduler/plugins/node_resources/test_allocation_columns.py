"""Truncated float quotients equal integer division, and cached utilization columns stay right."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_table import ALL_ROWS
from koord.scheduler.plugins.node_resources.allocation_columns import (
    EXACT_FLOAT_LIMIT,
    AllocationColumns,
    ScoredResource,
)
from tests.scheduler.builders import make_node, make_pod

AMOUNTS = st.one_of(
    st.integers(0, 200), st.integers(0, EXACT_FLOAT_LIMIT), st.integers(EXACT_FLOAT_LIMIT - 200, EXACT_FLOAT_LIMIT)
)


@given(capacity=AMOUNTS.filter(bool), used=AMOUNTS, asked=AMOUNTS)
@example(capacity=EXACT_FLOAT_LIMIT, used=1, asked=0)
@example(capacity=EXACT_FLOAT_LIMIT, used=EXACT_FLOAT_LIMIT // 100, asked=0)
@example(capacity=EXACT_FLOAT_LIMIT - 1, used=EXACT_FLOAT_LIMIT - 2, asked=1)
def test_cutting_floats_is_dividing_whole_numbers(capacity: int, used: int, asked: int) -> None:
    """As columns do it: from what is left, a hundredfold."""
    left = np.maximum(np.float64((capacity - used) * 100) - asked * 100, 0)
    exact = max(capacity - used - asked, 0) * 100
    assert int(np.floor(left / np.float64(capacity))) == exact // capacity
    assert int(np.ceil(left / np.float64(capacity))) == -(-exact // capacity)


def expected(state: ClusterState, counted: list[ScoredResource], *, fills_up: bool) -> dict[str, int]:
    found = {}
    for node in state.nodes():
        total = weights = 0
        for share in counted:
            there, used = share.allocatable_and_used(node)
            if there:
                part = min(used, there) if fills_up else max(there - used, 0)
                total += part * 100 // there * share.weight
                weights += share.weight
        found[node.name] = total // weights if weights else 0
    return found


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("node", "huge", "bare", "gone", "pod", "silent", "leave")),
        st.integers(0, 5),
        st.integers(1, 9),
    ),
    max_size=12,
)


@given(steps=STEPS, asked=st.integers(0, 3000), weight=st.integers(1, 3), rows=st.lists(st.integers(0, 5), unique=True))
def test_means_are_those_of_each_node_whatever_happens(
    steps: list[tuple[str, int, int]], asked: int, weight: int, rows: list[int]
) -> None:
    state = ClusterState()
    fullness = state.table.derived(AllocationColumns)
    for number in range(6):
        state.set_node(make_node(f"n{number}", cpu="8", memory="16Gi"))
    for turn, (what, number, size) in enumerate((("start", 0, 0), *steps)):
        name = f"n{number}"
        match what:
            case "node":
                state.set_node(make_node(name, cpu=str(size), memory=f"{size}Gi"))
            case "huge":
                state.set_node(make_node(name, cpu=str(size), memory=str(1 << 55)))
            case "bare":
                state.set_node(make_node(name, cpu=str(size), memory="0"))
            case "gone":
                state.drop_node(name)
            case "pod":
                state.set_pod(make_pod(f"p{turn}", node=name, cpu=f"{size}00m", memory=f"{size}00Mi"))
            case "silent":
                state.set_pod(make_pod(f"p{turn}", node=name))
            case "leave":
                for pod in list(state.pods())[:size]:
                    state.drop_pod(pod.uid)
        for fills_up in (False, True):
            for nonzero in (True, False, True):
                counted = [
                    ScoredResource("cpu", asked, weight, nonzero),
                    ScoredResource("memory", asked << 20, 1, nonzero),
                ]
                told = expected(state, counted, fills_up=fills_up)
                column = fullness.weighted_mean_percent(counted, ALL_ROWS, fills_up=fills_up)
                assert {node.name: column[node.row] for node in state.nodes()} == told
                column[:] = -1  # a reader may change what it was given
                some = [node for row in rows if (node := state.table.nodes[row]) is not None and node.node is not None]
                part = fullness.weighted_mean_percent(
                    counted, np.asarray([n.row for n in some], np.intp), fills_up=fills_up
                )
                assert dict(zip((n.name for n in some), part, strict=True)) == {n.name: told[n.name] for n in some}
