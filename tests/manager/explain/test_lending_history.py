"""The last changes of a node, and what moved them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from koord.manager.colocation.decision import ColocationNodeView, decide_colocation
from koord.manager.colocation.node_patch import decide_node_patch
from koord.manager.explain.lending_history import NodeLendingHistory
from tests.manager.colocation.colocation_builders import NOW, colocation, metric, node, pod, sample, settings

BATCH_CPU = "kubernetes.io/batch-cpu"
LS = pod("a", "LS", {"cpu": "20", "memory": "20G"})


def note(
    history: NodeLendingHistory, minute: int, used: str, lent: dict[str, str] | None = None, **fields: Any
) -> dict[str, str]:
    """One look at the node, and what it lends after it."""
    before = lent or {}
    of = node(allocatable={"cpu": "100", "memory": "120G", **before})
    view = ColocationNodeView(now=NOW, node=of, metric=metric(sample("a", used, "10G")), pods=(LS,))
    decision = decide_colocation(view, settings(colocation(**fields)))
    write = decide_node_patch(of, decision, None)
    history.record(NOW + timedelta(minutes=minute), of, decision, write.allocatable, write.reasons)
    changed = {name: amount for name, amount in write.allocatable.items() if amount is not None}
    return {
        name: amount for name, amount in {**before, **changed}.items() if write.allocatable.get(name, "") is not None
    }


def test_the_newest_comes_first_with_the_terms_that_moved() -> None:
    history = NodeLendingHistory()
    lent = note(history, 0, "10")
    note(history, 1, "19", lent)
    newest, first = history.changes_of("n1")
    assert (first.before[BATCH_CPU], first.after[BATCH_CPU], first.moved) == (None, 43_000, ())
    assert (newest.before[BATCH_CPU], newest.after[BATCH_CPU]) == (43_000, 34_000)
    moved = [one for one in newest.moved if one.resource == BATCH_CPU]
    assert [(one.term, one.before, one.after) for one in moved] == [("used by prod and mid pods", 10_000, 19_000)]


def test_other_settings_show_as_another_margin() -> None:
    history = NodeLendingHistory()
    lent = note(history, 0, "10")
    note(history, 1, "10", lent, cpu_reclaim_threshold_percent=50)
    moved = {one.term: one.after - one.before for one in history.changes_of("n1")[0].moved if one.resource == BATCH_CPU}
    assert moved == {"safety margin": 10_000}


def test_why_nothing_is_lent_is_kept() -> None:
    history = NodeLendingHistory()
    lent = note(history, 0, "10")
    note(history, 1, "10", lent, enable=False)
    newest = history.changes_of("n1")[0]
    assert newest.after[BATCH_CPU] is None
    assert "co-location is off" in newest.withheld


def test_only_the_last_are_kept_and_the_oldest_can_still_be_compared() -> None:
    history = NodeLendingHistory(kept=3)
    lent: dict[str, str] = {}
    for minute in range(8):
        lent = note(history, minute, str(10 + minute), lent)
    changes = history.changes_of("n1")
    assert [change.at.minute for change in changes] == [7, 6, 5]
    assert all(change.moved for change in changes)


def test_a_node_that_is_gone_is_forgotten() -> None:
    history = NodeLendingHistory()
    note(history, 0, "10")
    assert list(history) == ["n1"]
    history.forget("n1")
    assert (list(history), history.changes_of("n1")) == ([], [])
