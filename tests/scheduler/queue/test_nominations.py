"""Nominations follow the status of pods, and what preemption said before the status shows it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koord.scheduler.queue.nominations import Nominations, is_nominated_by_others
from koord.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.builders import make_pod
from tests.scheduler.queue.fake_plugins import QueuePlugins, pod


def names(nominations: Nominations, node: str) -> list[str]:
    return [p.name for p in nominations.pods_on(node)]


def test_status_moves_the_promise() -> None:
    held = Nominations()
    held.update_from_status(None, pod("p", nominated="n1"))
    held.update_from_status(pod("p", nominated="n1"), pod("p", nominated="n2"))
    assert (names(held, "n1"), names(held, "n2")) == ([], ["p"])
    held.update_from_status(pod("p", nominated="n2"), pod("p"))
    assert names(held, "n2") == []
    assert len(held) == 0


def test_an_update_that_does_not_show_it_yet_keeps_the_promise() -> None:
    held = Nominations()
    held.nominate(pod("p"), "n1")
    seen = pod("p", labels={"a": "b"})
    held.update_from_status(pod("p"), seen)
    assert held.pods_on("n1") == (seen,)
    assert held.node_of("uid-p") == "n1"


def test_one_node_per_pod_in_the_order_of_promises() -> None:
    held = Nominations()
    for name, node in (("a", "n1"), ("b", "n1"), ("a", "n2"), ("c", "n1"), ("a", "n1")):
        held.nominate(pod(name), node)
    assert (names(held, "n1"), names(held, "n2")) == (["b", "c", "a"], [])
    held.nominate(pod("b"), "")
    assert names(held, "n1") == ["c", "a"]
    assert held.remove("uid-c")
    assert not held.remove("uid-c")


def test_only_pods_that_are_known_get_promises() -> None:
    queue = SchedulingQueue(QueuePlugins().profiles)
    queue.nominate("uid-p", "n1")
    assert queue.nominations.pods_on("n1") == ()
    queue.add(pod("p"), 0.0)
    queue.nominate("uid-p", "n1")
    assert [p.name for p in queue.nominations.pods_on("n1")] == ["p"]
    queue.delete("uid-p")
    assert queue.nominations.pods_on("n1") == ()


def test_a_flight_keeps_its_promise_and_binding_ends_it() -> None:
    queue = SchedulingQueue(QueuePlugins().profiles)
    queue.add(pod("p", nominated="n1"), 0.0)
    queue.pop(0.0)
    assert [p.name for p in queue.nominations.pods_on("n1")] == ["p"]
    queue.done("uid-p")
    assert queue.nominations.pods_on("n1") == ()


@pytest.mark.parametrize(
    ("shown", "assumed", "on"),
    [
        pytest.param({"nominated": "n1", "labels": {"a": "b"}}, False, {"n1": ["p"]}, id="kept"),
        pytest.param({"nominated": "n2"}, False, {"n2": ["p"]}, id="moved"),
        pytest.param({"nominated": ""}, False, {}, id="ended"),
        pytest.param({"nominated": "n1", "labels": {"a": "b"}}, True, {}, id="taken-back-while-it-was-assumed"),
        pytest.param({"nominated": "n2"}, True, {"n2": ["p"]}, id="given-again-while-it-was-assumed"),
    ],
)
def test_what_was_shown_during_an_attempt_holds_when_it_fails(
    shown: dict[str, Any], assumed: bool, on: dict[str, list[str]]
) -> None:
    queue = SchedulingQueue(QueuePlugins().profiles)
    queue.add(pod("p", nominated="n1"), 0.0)
    queued = queue.pop(0.0)
    assert queued is not None
    if assumed:
        queue.nominate("uid-p", "")
    queue.update(pod("p", **shown), 0.0)
    assert names(queue.nominations, "n1") == ([] if assumed else ["p"])
    queue.attempt_failed(queued, 0.0, rejected=frozenset({"Fit"}))
    assert {node: found for node in ("n1", "n2") if (found := names(queue.nominations, node))} == on
    assert all(p is queued.pod for node in on for p in queue.nominations.pods_on(node))


def test_scheduling_gates_hold_no_room() -> None:
    queue = SchedulingQueue(QueuePlugins().profiles)
    queue.add(pod("p", nominated="n1", gates=("g",)), 0.0)
    assert queue.nominations.pods_on("n1") == ()
    queue.update(pod("p", nominated="n1"), 0.0)
    assert [p.name for p in queue.nominations.pods_on("n1")] == ["p"]


# By other schedulers ---------------------------------------------------------------------------------------------


def test_those_of_others_hold_against_lesser_pods_alone() -> None:
    held = Nominations()
    held.nominate(pod("mine", priority=5), "n1")
    held.set_by_others(pod("theirs", priority=5, nominated="n1"))
    held.set_by_others(pod("elsewhere", priority=5, nominated="n2"))
    assert [p.name for p in held.ahead_of(pod("equal", priority=5), "n1")] == ["mine"]
    assert [p.name for p in held.ahead_of(pod("lesser", priority=4), "n1")] == ["mine", "theirs"]
    assert held.ahead_of(pod("greater", priority=6), "n1") == ()
    assert (list(held.nodes()), len(held)) == (["n1", "n2"], 3)


def test_those_of_others_are_not_ours_to_take_away() -> None:
    held = Nominations()
    held.set_by_others(pod("theirs", nominated="n1"))
    assert (held.pods_on("n1"), held.node_of("uid-theirs"), held.pod("uid-theirs")) == ((), "", None)
    assert not held.remove("uid-theirs")
    assert len(held) == 1


def test_those_of_others_follow_their_status() -> None:
    held = Nominations()
    for node in ("n1", "n2"):
        before = held.version
        held.set_by_others(pod("theirs", priority=5, nominated=node))
        assert held.version > before
    assert list(held.nodes()) == ["n2"]
    before = held.version
    held.remove_by_others("uid-theirs")
    assert held.version > before
    assert (list(held.nodes()), len(held), held.by_others("uid-theirs")) == ([], 0, None)
    held.remove_by_others("uid-theirs")


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        pytest.param({}, True, id="waits-elsewhere"),
        pytest.param({"schedulerName": "mine"}, False, id="of-this-scheduler"),
        pytest.param({"nominated": ""}, False, id="no-node"),
        pytest.param({"node": "n2"}, False, id="bound"),
    ],
)
def test_whose_nomination_is_by_others(words: dict[str, Any], counts: bool) -> None:
    given = make_pod("p", **{"nominated": "n1", "schedulerName": "theirs", **words})
    assert is_nominated_by_others(given, frozenset({"mine"})) is counts


def test_a_pod_that_ended_waits_for_nothing() -> None:
    given = make_pod("p", nominated="n1", schedulerName="theirs")
    ended = msgspec.structs.replace(given, status=msgspec.structs.replace(given.status, phase="Failed"))
    assert not is_nominated_by_others(ended, frozenset({"mine"}))
