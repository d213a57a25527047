"""What must be equal of a plugin: its columnar form and its definition, what is kept and what is worked out anew.

check_forms(plugin, state, pod, rows)      the two forms agree, on some rows and on every one
check_kept(make, history)                  after any history an engine that lived through it says of every node what
                                           a new engine says over a state rebuilt from the live objects
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from koord.api.kubernetes.node import Node
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import ALL_ROWS, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import AttemptError, Unschedulable
from koord.scheduler.framework.engine import ClassEvaluation, SchedulingEngine
from koord.scheduler.framework.extension_points import POINT_METHODS, overrides
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.scoring import FeasibleNodes
from koord.scheduler.framework.verdict import Fault, Reject, Skip
from tests.scheduler.builders import NODE_NAMES, node_objects, pod_objects

MakePlugins = Callable[[ClusterState], Sequence[Plugin]]


def profile_of(
    plugins: Sequence[Plugin], weights: Mapping[str, int] | None = None, *, filters_without_nominated: bool = True
) -> SchedulerProfile:
    """Make a profile with every plugin at every point that it takes part in, in the given order."""
    points = {method: [p for p in plugins if overrides(p, method)] for method in POINT_METHODS}
    return SchedulerProfile("test", points, weights, filters_without_nominated=filters_without_nominated)


# One plugin, two forms -------------------------------------------------------------------------------------------


def check_columns_match_definition(plugin: Plugin, state: ClusterState, pod: PodInfo, rows: Sequence[int]) -> None:
    """Check that a plugin's columnar form equals its per-node definition.

    `rows` picks from the live rows by position, modulo their number; the whole table is checked as well.
    """
    cycle = CycleState(state)
    live = state.table.live_rows()
    picked = live[[row % len(live) for row in rows]] if rows else live[:0]
    answer = plugin.pre_filter(cycle, pod)
    if not isinstance(answer, Skip | Reject | Fault) and overrides(plugin, Plugin.filter_columns):
        _check_filter(plugin, cycle, pod, ALL_ROWS)
        _check_filter(plugin, cycle, pod, picked)
    if not overrides(plugin, Plugin.score_columns):
        return
    if isinstance(plugin.pre_score(cycle, pod, FeasibleNodes(state.table, live)), Skip | Fault):
        return
    _check_score(plugin, cycle, pod, ALL_ROWS)
    _check_score(plugin, cycle, pod, picked)


def _check_filter(plugin: Plugin, cycle: CycleState, pod: PodInfo, rows: Rows) -> None:
    table = cycle.state.table
    codes = plugin.filter_columns(cycle, pod, table, rows)
    assert codes.dtype == np.int32
    for row, code in _by_row(table.size, rows, codes):
        node = table.nodes[row]
        if node is not None and node.node is not None:
            told = plugin.explain_code(cycle, pod, code) if code else None
            assert told == plugin.filter(cycle, pod, node), f"{plugin.name} of {node.name}"


def _check_score(plugin: Plugin, cycle: CycleState, pod: PodInfo, rows: Rows) -> None:
    table = cycle.state.table
    scores = plugin.score_columns(cycle, pod, table, rows)
    assert scores.dtype == np.int64
    for row, score in _by_row(table.size, rows, scores):
        node = table.nodes[row]
        if node is not None and node.node is not None:
            assert score == plugin.score(cycle, pod, node), f"{plugin.name} of {node.name}"
            assert score == plugin.row_scorer(cycle, pod)(node), f"{plugin.name} of {node.name}"


def _by_row(size: int, rows: Rows, found: Any) -> list[tuple[int, int]]:
    places = range(size) if isinstance(rows, slice) else [int(row) for row in rows]
    assert len(found) == len(places)
    return [(row, int(value)) for row, value in zip(places, found, strict=True)]


# Kept and made anew ----------------------------------------------------------------------------------------------


class ClusterStep(msgspec.Struct, frozen=True):
    """Describe one change: a node or a pod comes, changes or goes; or a pod is decided and takes its node."""

    action: str
    name: str = ""
    node: Node | None = None
    pod: Pod | None = None


class ClusterHistory(msgspec.Struct, frozen=True):
    steps: tuple[ClusterStep, ...]
    judged: tuple[Pod, ...]  # asked about after every step


@st.composite
def histories(
    draw: st.DrawFn,
    pods: Callable[..., st.SearchStrategy[Pod]] = pod_objects,
    nodes: Callable[..., st.SearchStrategy[Node]] = node_objects,
    most_steps: int = 8,
) -> ClusterHistory:
    steps = [ClusterStep("set-node", node=draw(nodes(name))) for name in draw(st.sets(st.sampled_from(NODE_NAMES)))]
    for i in range(draw(st.integers(1, most_steps))):
        action = draw(st.sampled_from(("set-node", "drop-node", "set-pod", "drop-pod", "decide", "decide")))
        name = draw(st.sampled_from(NODE_NAMES))
        if action == "set-node":
            steps.append(ClusterStep(action, node=draw(nodes(name))))
        elif action == "set-pod":
            steps.append(ClusterStep(action, pod=draw(pods(f"bound{i % 4}", node=name))))
        elif action == "drop-pod":
            steps.append(ClusterStep(action, name=f"uid-default-bound{i % 4}"))
        else:
            steps.append(ClusterStep(action, name=name))
    judged = tuple(draw(pods(f"judged{i}")) for i in range(2))
    return ClusterHistory(tuple(steps), judged)


def check_cached_matches_fresh(
    make: MakePlugins, history: ClusterHistory, weights: Mapping[str, int] | None = None
) -> None:
    """Check that cached results equal fresh ones; raise AssertionError naming the first step after which they
    differ.
    """
    state = ClusterState()
    engine = SchedulingEngine(profile_of(make(state), weights), state)
    for number, step in enumerate(history.steps):
        _apply_step(state, engine, step, history.judged[0], number)
        for pod in history.judged:
            rebuilt = _rebuilt(state)
            fresh = SchedulingEngine(profile_of(make(rebuilt), weights), rebuilt)
            kept, anew = view_of(engine, state, pod), view_of(fresh, rebuilt, pod)
            assert kept == anew, f"after step {number}: {step.action}"
            counted = counts_of(engine, state, pod)
            assert counted == counts_of(fresh, rebuilt, pod), f"after step {number}: {step.action}"


def _apply_step(state: ClusterState, engine: SchedulingEngine, step: ClusterStep, pod: Pod, number: int) -> None:
    if step.node is not None:
        state.set_node(step.node)
    elif step.pod is not None:
        state.set_pod(step.pod)
    elif step.action == "drop-node":
        state.drop_node(step.name)
    elif step.action == "drop-pod":
        state.drop_pod(step.name)
    else:  # the class that is judged all along takes a node, as it does most of the time
        meta = msgspec.structs.replace(pod.metadata, name=f"decided{number}", uid=f"uid-decided{number}")
        twin = state.pod_info(msgspec.structs.replace(pod, metadata=meta))
        chosen = engine.decide(twin).decision
        if not isinstance(chosen, Unschedulable | AttemptError):
            state.assume(twin, chosen.node)


def _rebuilt(state: ClusterState) -> ClusterState:
    """Rebuild the same cluster at once: nodes by name, so that rows differ from those that history gave them."""
    other = ClusterState()
    for node in sorted(state.nodes(), key=lambda info: info.name):
        assert node.node is not None
        other.set_node(node.node)
    for pod in state.pods():
        other.assume(pod, pod.node_name)
    return other


def view_of(engine: SchedulingEngine, state: ClusterState, pod: Pod) -> Any:
    """Return what an engine says of every node: the reasons of a rejection, or the score by plugin."""
    attempt = engine.decide(state.pod_info(pod))
    found = attempt.evaluation
    if found is None:
        return attempt.decision
    return {node.name: _said(found, node) for node in state.nodes()}


def counts_of(engine: SchedulingEngine, state: ClusterState, pod: Pod) -> Any:
    """Return which nodes an engine counts when it tells users why no node fits."""
    attempt = engine.decide(state.pod_info(pod))
    found = attempt.evaluation
    if found is None:
        return attempt.decision
    return {said: sorted(names) for said, names in found.filter_results.rejections().items()}


def _said(evaluation: ClassEvaluation, node: NodeInfo) -> Any:
    if evaluation.score_results.fault is not None:
        return evaluation.score_results.fault
    refused = evaluation.filter_results.verdict(node.row)
    if refused is not None:
        return refused
    return int(evaluation.score_results.total[node.row]), evaluation.score_results.breakdown(node.row)
