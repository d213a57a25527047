"""Columns that plugins derive from nodes always equal a fresh look at every node, however they came about."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import ALL_ROWS, RowChangeLog
from tests.scheduler.builders import ZONE, make_node, make_pod, make_state
from tests.scheduler.plugin_equivalence import ClusterHistory, histories


def zone_of(node: NodeInfo) -> Any:
    return node.labels.get(ZONE)


def labels(node: NodeInfo) -> int:
    return len(node.labels)


def pods(node: NodeInfo) -> int:
    return len(node.pods)


def happen(state: ClusterState, step: Any) -> None:
    if step.node is not None:
        state.set_node(step.node)
    elif step.pod is not None:
        state.set_pod(step.pod)
    elif step.action == "drop-node":
        state.drop_node(step.name)
    elif step.action == "drop-pod":
        state.drop_pod(step.name)


def check(state: ClusterState) -> None:
    table = state.table
    zones = table.label_column(ZONE)
    own = table.column("pods", np.int64, pods)
    of_node = table.node_column("labels", np.int64, labels)
    for row, info in enumerate(table.nodes):
        known = info is not None and info.node is not None
        assert zones.values[zones.codes[row]] == (zone_of(info) if known and info else None)
        assert own[row] == (pods(info) if known and info else 0)
        assert of_node[row] == (labels(info) if known and info else 0)
    assert state.node_count == sum(info is not None and info.node is not None for info in table.nodes)


@settings(max_examples=40, deadline=None)
@given(history=histories(), looks=st.sets(st.integers(0, 16)))
def test_columns_are_what_nodes_say(history: ClusterHistory, looks: set[int]) -> None:
    """Whether someone looked between the steps makes no difference."""
    state = ClusterState()
    for number, step in enumerate(history.steps):
        happen(state, step)
        if number in looks:
            check(state)
    check(state)


def test_columns_grow_with_the_table() -> None:
    state = make_state([make_node("first", labels={ZONE: "a"})])
    check(state)
    for i in range(300):
        state.set_node(make_node(f"n{i}", labels={ZONE: f"z{i % 3}"}))
        if i % 50 == 0:
            check(state)
    check(state)


def test_placements_do_not_make_columns_of_nodes_anew() -> None:
    asked: list[str] = []

    def compute(node: NodeInfo) -> int:
        asked.append(node.name)
        return 1

    state = make_state([make_node("n0"), make_node("n1")])
    state.table.node_column("own", np.int64, compute)
    state.set_pod(make_pod(node="n0"))
    state.table.node_column("own", np.int64, compute)
    state.set_node(make_node("n1", labels={"a": "b"}))
    state.table.node_column("own", np.int64, compute)
    assert sorted(asked) == ["n0", "n1", "n1"]


def test_words_that_no_node_has_any_more_are_dropped() -> None:
    state = make_state([make_node("n0")])
    for i in range(2000):
        state.set_node(make_node("n0", labels={"build": str(i)}))
        builds = state.table.label_column("build")
    row = state.table.index["n0"].row
    assert builds.values[builds.codes[row]] == "1999"
    assert len(builds.values) < 300


@pytest.mark.parametrize("count", [3, 200])
def test_each_word_is_asked_about_once(count: int) -> None:
    state = make_state(make_node(f"n{i}", labels={"k": str(i % count)}) for i in range(200))
    asked: list[str] = []

    def worth(word: str) -> int:
        asked.append(word)
        return int(word) + 1

    column = state.table.label_column("k")
    found = column.map_values(ALL_ROWS, worth)
    assert sorted(asked) == sorted({str(i % count) for i in range(200)})
    for info in state.nodes():
        assert found[info.row] == int(info.labels["k"]) + 1
    assert not found[[row for row, info in enumerate(state.table.nodes) if info is None]].any()
    asked.clear()
    rows = np.asarray([state.table.index["n7"].row, state.table.index["n9"].row], np.intp)
    assert list(column.map_values(rows, worth)) == [7 % count + 1, 9 % count + 1]
    assert len(asked) == 2


def test_the_log_of_changes_forgets_and_says_so() -> None:
    changes = RowChangeLog()
    start = changes.position
    changes.append(1)
    changes.append(2)
    changes.append(1)
    assert changes.since(start) == [1, 2]
    assert changes.since(changes.position) == []
    for i in range(1 << 17):
        changes.append(i % 5)
    assert changes.since(start) is None
    recent = changes.position - 3
    assert changes.since(recent) is not None
