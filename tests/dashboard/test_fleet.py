"""Rows with versions: updates bring a page to the state of now, sums are those of the rows."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.dashboard.fleet import (
    DAY_S,
    NOT_TRIED,
    RECENT_KEPT,
    FleetTable,
    NodeRow,
    PendingPod,
    ResourceUse,
    label_texts,
    pending_reason,
)

MIDNIGHT = 20_000 * DAY_S


def row(name: str, capacity: int = 1000, batch_used: int = 0) -> NodeRow:
    return NodeRow(name=name, cpu=ResourceUse(capacity, batch_used=batch_used), pods=1, labels=("zone=a", f"n={name}"))


def page(table: FleetTable, known: dict[str, Any], since: int) -> tuple[dict[str, Any], int]:
    """Return what a page shows after an update, as the browser reads it."""
    update = msgspec.json.decode(msgspec.json.encode(table.update(table.epoch, since)))
    shown = {} if update["whole"] else dict(known)
    for name in update["removed"]:
        shown.pop(name, None)
    for name, cpu, *rest in update["nodes"]:
        shown[name] = (cpu, [update["labels"][number] for number in rest[-1]])
    return shown, update["version"]


CHANGES = st.lists(
    st.tuples(st.sampled_from(["put", "remove", "tick", "fetch"]), st.sampled_from("abcd"), st.integers(0, 5)),
    max_size=40,
)


@given(CHANGES)
def test_a_page_that_follows_updates_shows_what_a_new_page_shows(changes: list[tuple[str, str, int]]) -> None:
    table = FleetTable("epoch", 0.0)
    shown: dict[str, Any] = {}
    since, now_s = 0, 0.0
    for what, name, amount in changes:
        if what == "put":
            table.put_node(row(name, amount))
        elif what == "remove":
            table.remove_node(name)
        elif what == "tick":
            now_s += 1
            table.tick(now_s)
        else:
            shown, since = page(table, shown, since)
    table.tick(now_s + 1)
    shown, _ = page(table, shown, since)
    whole, _ = page(table, {}, 0)
    assert shown == whole
    assert table.sums("cpu").capacity == sum(cpu[0] for cpu, _ in whole.values())


def test_a_page_of_another_run_gets_everything() -> None:
    table = FleetTable("now", 0.0)
    table.put_node(row("a"))
    table.tick(1.0)
    assert table.update("before", table.version)["whole"]
    assert table.update("now", table.version + 1)["whole"]
    later = table.update("now", table.version)
    assert (later["whole"], later["nodes"]) == (False, [])


def test_nothing_changed_is_nothing_to_fetch() -> None:
    table = FleetTable("epoch", 0.0)
    table.put_node(row("a"))
    assert table.tick(1.0)
    table.put_node(row("a"))
    assert not table.tick(2.0)


def test_samples_are_five_seconds_apart_and_bounded() -> None:
    table = FleetTable("epoch", 0.0)
    table.ready = True
    for second in range(RECENT_KEPT * 5 + 100):
        table.tick(float(second))
    times = [sample.time_s for sample in table.update("", 0)["recent"]]
    assert len(times) == RECENT_KEPT
    assert {b - a for a, b in itertools.pairwise(times)} == {5.0}


def run_for(table: FleetTable, begin_s: float, end_s: float) -> None:
    table.ready = True
    for second in range(int(begin_s), int(end_s) + 1):
        table.tick(float(second))


def test_a_restart_keeps_the_past_and_tells_what_nobody_watched() -> None:
    noon = MIDNIGHT + DAY_S / 2
    first = FleetTable("first", noon)
    first.put_node(row("a", batch_used=2000))
    run_for(first, noon, noon + 60)
    second = FleetTable("second", noon + 100)
    second.restore(first.history())
    second.put_node(row("a", batch_used=2000))
    run_for(second, noon + 100, noon + 110)
    told = second.update("", 0)
    assert [one.time_s - noon for one in told["recent"]] == [*range(0, 61, 5), 100, 105, 110]
    assert [one.time_s - noon for one in told["day"]] == [0, 60]
    assert told["reclaimed"] == {"coreSeconds": 140.0, "since": noon, "missedSeconds": 40.0}


def test_what_is_too_old_or_of_the_future_is_left_out() -> None:
    first = FleetTable("first", MIDNIGHT - 7200)
    first.put_node(row("a", batch_used=2000))
    run_for(first, MIDNIGHT - 7200, MIDNIGHT - 7000)
    later = FleetTable("later", MIDNIGHT + 60)
    later.restore(first.history())
    told = later.update("", 0)
    assert (told["recent"], len(told["day"])) == ([], 4)
    assert told["reclaimed"] == {"coreSeconds": 0.0, "since": MIDNIGHT + 60, "missedSeconds": 0.0}
    earlier = FleetTable("earlier", MIDNIGHT - 7100)
    earlier.restore(first.history())
    assert {one.time_s for one in earlier.update("", 0)["recent"]} == set(range(MIDNIGHT - 7200, MIDNIGHT - 7099, 5))


def test_reclaimed_core_seconds_add_up_and_begin_again_at_midnight() -> None:
    table = FleetTable("epoch", MIDNIGHT - 10)
    table.put_node(row("a", batch_used=2000))
    table.tick(MIDNIGHT - 5)
    assert table.update("", 0)["reclaimed"] == {
        "coreSeconds": 10.0,
        "since": MIDNIGHT - 10,
        "missedSeconds": 0.0,
    }
    table.tick(MIDNIGHT + 1)
    table.tick(MIDNIGHT + 3)
    told = table.update("", 0)["reclaimed"]
    assert told["since"] == MIDNIGHT
    assert told["coreSeconds"] == pytest.approx(16.0)


def test_pending_pods_fall_into_groups_by_reason_the_largest_first() -> None:
    table = FleetTable("epoch", 0.0)
    for number, reason in enumerate(["few", "many", "many"]):
        table.put_pending(PendingPod(namespace="d", name=f"p{number}", reason=reason, created_s=number))
    groups = table.update("", 0)["pending"]
    assert [(group["reason"], group["count"], group["oldest"]) for group in groups] == [("many", 2, 1), ("few", 1, 0)]
    table.remove_pending("d", "p0")
    assert table.update("", 0)["pendingCount"] == 2


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        ("Unschedulable", "0/8 nodes are available: 8 Insufficient cpu.", "Insufficient cpu"),
        (
            "Unschedulable",
            "0/3 nodes are available: 1 Too many pods, 2 Insufficient cpu. preemption: 0/3 nodes are available.",
            "Insufficient cpu, Too many pods",
        ),
        ("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates", None),
        ("", "", NOT_TRIED),
        ("SchedulerError", "", "SchedulerError"),
    ],
)
def test_messages_lose_their_numbers_of_nodes(reason: str, message: str, expected: str | None) -> None:
    assert pending_reason(reason, message) == (expected if expected is not None else message)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("", "waits for the other members of gang g"),
        ("0/1 nodes are available: 1 Insufficient cpu.", "Insufficient cpu"),
    ],
)
def test_a_member_of_a_gang_of_which_nothing_is_told_waits_for_the_others(message: str, expected: str) -> None:
    assert pending_reason("", message, "g") == expected


def test_the_label_that_repeats_a_nodes_name_is_left_out() -> None:
    assert label_texts({"kubernetes.io/hostname": "a", "zone": "b"}) == ("zone=b",)
