"""Selector counts equal counting every pod after any placements, however long ago they were asked for."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.cache.selector_counts import (
    MAX_SELECTOR_COUNTS,
    PodQuery,
    SelectorClause,
    SelectorCount,
    SelectorCounts,
)
from koord.values.selector import EVERYTHING, NOTHING, Selector
from tests.scheduler.builders import NODE_NAMES, make_node, make_pod
from tests.scheduler.plugins.affinity_clusters import affinity_pods

WEB = Selector.from_label_selector({"app": "web"})
QUESTIONS = tuple(
    PodQuery(clauses, exclude_deleting=lasting)
    for lasting in (False, True)
    for clauses in (
        (SelectorClause(frozenset(("default",)), WEB),),
        (SelectorClause(None, WEB),),
        (SelectorClause(None, Selector.from_label_selector({}, [("tier", "In", ("x", "y"))])),),
        (
            SelectorClause(
                frozenset(("default", "other")), Selector.from_label_selector({}, [("tier", "DoesNotExist", ())])
            ),
        ),
        (SelectorClause(None, EVERYTHING),),
        (SelectorClause(None, NOTHING),),
        (
            SelectorClause(None, WEB),
            SelectorClause(frozenset(("other",)), Selector.from_label_selector({}, [("rev", "Exists", ())])),
        ),
    )
)


def counted(state: ClusterState, question: PodQuery) -> dict[int, int]:
    """Count the matching pods one by one."""
    found: dict[int, int] = {}
    for pod in state.pods():
        if question.matches(pod.label_group) and not (question.exclude_deleting and pod.deleting):
            row = state.table.index[pod.node_name].row
            found[row] = found.get(row, 0) + 1
    return found


def shown(tally: SelectorCount) -> dict[int, int]:
    return {row: int(count) for row, count in enumerate(tally.counts) if count}


class Reader:
    """Sum up a count from its log alone."""

    def __init__(self, tally: SelectorCount) -> None:
        self.tally = tally
        self.position = tally.position
        self.counts = shown(tally)

    def read(self) -> dict[int, int]:
        log = self.tally.since(self.position)
        assert log is not None
        self.position = self.tally.position
        for entry in log:
            row, sign = (entry, 1) if entry >= 0 else (~entry, -1)
            self.counts[row] = self.counts.get(row, 0) + sign
        return {row: count for row, count in self.counts.items() if count}


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("place", "place", "drop", "ask", "node", "gone")),
            st.integers(0, 8),
            affinity_pods("x", node="n0"),
        ),
        max_size=25,
    )
)
def test_incremental_counts_equal_counting_all_pods(steps: list[tuple[str, int, Pod]]) -> None:
    state = ClusterState()
    tallies = state.derived(SelectorCounts)
    readers: list[Reader] = [Reader(tallies.count_of(QUESTIONS[0]))]
    for action, number, pod in steps:
        name = NODE_NAMES[number % 4]
        if action == "place":
            words = {"labels": dict(pod.metadata.labels), "namespace": pod.metadata.namespace}
            placed = make_pod(f"p{number}", uid=f"u{number}", node=name, **words)  # type: ignore[arg-type]
            state.set_pod(placed if pod.metadata.deletion_timestamp is None else _ending(placed, pod))
        elif action == "drop":
            state.drop_pod(f"u{number}")
        elif action == "ask":
            readers.append(Reader(tallies.count_of(QUESTIONS[number])))
        elif action == "node":
            state.set_node(make_node(name))
        else:
            state.drop_node(name)
        for reader in readers:
            truth = counted(state, reader.tally.query)
            assert shown(reader.tally) == truth
            assert reader.read() == truth
    for question in QUESTIONS:
        assert shown(tallies.count_of(question)) == counted(state, question)


def _ending(placed: Pod, pod: Pod) -> Pod:
    meta = msgspec.structs.replace(placed.metadata, deletion_timestamp=pod.metadata.deletion_timestamp)
    return msgspec.structs.replace(placed, metadata=meta)


def test_only_so_many_are_kept_and_the_rest_say_so() -> None:
    state = ClusterState()
    state.set_pod(make_pod("p0", node="n0", labels={"app": "web"}))
    tallies = state.derived(SelectorCounts)
    first = tallies.count_of(QUESTIONS[0])
    for number in range(MAX_SELECTOR_COUNTS):
        tallies.count_of(PodQuery((SelectorClause(None, Selector.from_label_selector({"n": str(number)})),)))
    assert len(tallies) == MAX_SELECTOR_COUNTS
    assert not first.live
    state.set_pod(make_pod("p1", node="n0", labels={"app": "web"}))
    again = tallies.count_of(QUESTIONS[0])
    assert again.live
    assert again is not first
    assert again.counts.sum() == 2


def test_a_reader_that_sleeps_too_long_is_told() -> None:
    state = ClusterState()
    tally = state.derived(SelectorCounts).count_of(QUESTIONS[0])
    for number in range(3000):
        state.set_pod(make_pod("p0", node=f"n{number % 2}", labels={"app": "web"}))
    assert tally.since(0) is None
    assert tally.since(tally.position) == []


def test_what_is_gone_leaves_nothing_behind() -> None:
    state = ClusterState()
    tallies = state.derived(SelectorCounts)
    tallies.count_of(QUESTIONS[0])
    for number in range(5):
        state.set_pod(make_pod(f"p{number}", node="n0", labels={"app": "web", "n": str(number)}))
        if number == 2:
            tallies.count_of(QUESTIONS[1])
    for number in range(5):
        state.drop_pod(f"uid-default-p{number}")
    assert len(state.label_groups) == 0
    assert not tallies._placed
    assert not tallies._unindexed
    assert not tallies._placed_in
    assert not tallies._placed_by_label_pair
