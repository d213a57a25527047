"""The observer writes down what must never be, at the change that brings it about."""

from __future__ import annotations

from typing import Any

from koord.api.koordinator.protocol import L_POD_GROUP, L_QUOTA_NAME
from koord.telemetry.clock import ManualClock
from tests.simulation.observer import Observer

Json = dict[str, Any]


def pod(name: str, node: str = "", *, cpu: str = "1", labels: Json | None = None, phase: str = "Running") -> Json:
    return {
        "metadata": {"name": name, "uid": name, "labels": labels or {}},
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": phase, "conditions": [{"type": "PodScheduled", "status": str(bool(node))}]},
    }


def watching() -> Observer:
    made = Observer(ManualClock(), [])
    for name in ("n0", "n1"):
        made.on_node("ADDED", {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "2", "pods": "9"}}})
    return made


def told(observer: Observer) -> list[str]:
    return [line.partition(": ")[2] for line in observer.violations]


def test_a_node_that_is_given_twice() -> None:
    seen = watching()
    seen.on_pod("ADDED", pod("a", "n0"))
    seen.on_pod("ADDED", pod("b", "n0"))
    assert told(seen) == []
    seen.on_pod("ADDED", pod("c", "n0", cpu="1m"))
    assert told(seen) == ["node n0: 2001m of cpu are more than it has"]


def test_pods_that_ended_or_are_gone_hold_nothing() -> None:
    seen = watching()
    for name in ("a", "b"):
        seen.on_pod("ADDED", pod(name, "n0"))
    seen.on_pod("MODIFIED", pod("a", "n0", phase="Succeeded"))
    seen.on_pod("DELETED", pod("b", "n0"))
    seen.on_pod("ADDED", pod("c", "n0", cpu="2"))
    assert told(seen) == []


def test_a_quota_that_is_exceeded() -> None:
    seen, labels = watching(), {L_QUOTA_NAME: "q"}
    seen.on_quota("ADDED", {"metadata": {"name": "q"}, "spec": {"max": {"cpu": "1"}}})
    seen.on_pod("ADDED", pod("a", "n0", labels=labels))
    assert told(seen) == []
    seen.on_pod("ADDED", pod("b", "n1", labels=labels))
    assert told(seen) == ["quota q: 2 of cpu, 1 allowed"]


def test_a_pod_that_changes_its_node() -> None:
    seen = watching()
    seen.on_pod("ADDED", pod("a", "n0"))
    seen.on_pod("MODIFIED", pod("a", "n1"))
    assert told(seen) == ["pod a went from n0 to n1"]


def test_a_gang_whose_binding_the_server_refused_is_no_exception() -> None:
    seen = watching()
    labels = {L_POD_GROUP: "gang-1-2"}
    seen.on_pod("ADDED", pod("bound", "n0", labels=labels))
    waits = pod("waits", labels=labels)
    waits["status"]["conditions"][0] |= {
        "status": "False",
        "reason": "SchedulerError",
        "message": 'running Bind plugin "DefaultBinder": fault 503',
    }
    seen.on_pod("ADDED", waits)
    assert seen.wrong_at_rest() == ["gang gang-1-2 runs with too few members"]


def test_what_is_wrong_at_rest() -> None:
    seen = watching()
    labels = {L_POD_GROUP: "gang-1-2"}
    seen.on_pod("ADDED", pod("bound", "n0", labels=labels))
    seen.on_pod("ADDED", pod("waits", labels=labels))
    new = pod("new")
    new["status"]["conditions"] = []
    seen.on_pod("ADDED", new)
    late = pod("late", "n1")
    late["status"]["conditions"][0]["status"] = "False"
    seen.on_pod("ADDED", late)
    assert [line.partition(":")[0] for line in seen.wrong_at_rest()] == [
        "pod late is bound and has PodScheduled=False",
        "nobody has looked at new",
        "gang gang-1-2 runs with too few members",
    ]
