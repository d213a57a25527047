"""Nominations follow the status of pods, and what preemption said before the status shows it."""

from __future__ import annotations

from typing import Any

import pytest

from koord.scheduler.queue.nominations import Nominations
from koord.scheduler.queue.scheduling_queue import SchedulingQueue
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
