"""What the recorder writes, what it folds together, and what it drops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, EVENTS_EVENTS
from koord.api.kubernetes.core_v1 import EventSource
from koord.api.model import ObjectReference
from koord.kube.client.retrying_caller import NEVER_RETRY
from koord.kube.client.typed_client import Client
from koord.kube.events import correlator
from koord.kube.events.correlator import truncate_utf8
from koord.kube.events.recorder import MAX_QUEUED, EventRecorder
from koord.kube.transport.interface import Unreachable
from koord.telemetry.clock import LoopClock, run_virtual
from tests.kube.scripted_server import ScriptedServer, api_response, failure_status


def pod(name: str = "p", version: str = "1") -> ObjectReference:
    return ObjectReference(
        api_version="v1", kind="Pod", namespace="ns", name=name, uid=f"uid-{name}", resource_version=version
    )


def run_scenario(
    scenario: Callable[[ScriptedServer, EventRecorder], Awaitable[None]], source: EventSource | None = None
) -> ScriptedServer:
    server = ScriptedServer()

    async def main(clock: LoopClock) -> None:
        client = Client(server, clock=clock, burst=0, retry=NEVER_RETRY)
        async with EventRecorder(
            client, clock, controller="koord-scheduler", instance="koord-scheduler-host", source=source
        ) as recorder:
            await scenario(server, recorder)
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main)
    return server


def events(server: ScriptedServer) -> list[dict[str, Any]]:
    return [obj for (collection, _, _), obj in server.objects.items() if collection == EVENTS_EVENTS.path()]


def test_one_event_as_kube_scheduler_writes_it() -> None:
    node = ObjectReference(api_version="v1", kind="Node", name="n1")

    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        recorder.record(pod(), "Warning", "FailedScheduling", "no room", action="Scheduling", related=node)
        await asyncio.sleep(1)

    (event,) = events(run_scenario(scenario))
    name = event["metadata"].pop("name")
    assert name.startswith("p.")
    assert int(name[2:], 16) == 1767225600 * 10**9
    for field in ("uid", "resourceVersion"):
        event["metadata"].pop(field)
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "ns"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "koord-scheduler",
        "reportingInstance": "koord-scheduler-host",
        "action": "Scheduling",
        "reason": "FailedScheduling",
        "type": "Warning",
        "note": "no room",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "ns",
            "name": "p",
            "uid": "uid-p",
            "resourceVersion": "1",
        },
        "related": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }


def test_annotations_travel_and_a_repetition_replaces_them() -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        for number in range(2):
            recorder.record(pod(), "Warning", "Failed", "no", annotations={"a": str(number)})
            await asyncio.sleep(1)
            (event,) = events(server)
            assert event["metadata"]["annotations"] == {"a": str(number)}

    (event,) = events(run_scenario(scenario))
    assert event["series"]["count"] == 2


def test_with_a_source_events_are_core_events_as_client_go_writes_them() -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        for _ in range(2):
            recorder.record(pod(), "Warning", "evictPodSuccess", "gone", annotations={"a": "b"})
            await asyncio.sleep(1)

    server = run_scenario(scenario, EventSource(component="koordlet-qosManager", host="n1"))
    assert events(server) == []
    (event,) = [obj for (collection, _, _), obj in server.objects.items() if collection == CORE_EVENTS.path()]
    for field in ("name", "uid", "resourceVersion"):
        event["metadata"].pop(field)
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "ns", "annotations": {"a": "b"}},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:01Z",
        "count": 2,
        "source": {"component": "koordlet-qosManager", "host": "n1"},
        "reportingComponent": "koordlet-qosManager",
        "reportingInstance": "koord-scheduler-host",
        "reason": "evictPodSuccess",
        "type": "Warning",
        "message": "gone",
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "ns",
            "name": "p",
            "uid": "uid-p",
            "resourceVersion": "1",
        },
    }


def test_repetitions_become_a_series_with_few_writes_and_the_right_final_count() -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        for number in range(100):
            recorder.record(pod(version=str(number)), "Warning", "FailedScheduling", "no room")
            await asyncio.sleep(10)
        (event,) = events(server)
        assert len(server.requests) == 2, "created, and patched once to say that it repeats"
        assert event["series"]["count"] == 2
        await asyncio.sleep(600)
        assert event is not events(server)[0]
        assert events(server)[0]["series"] == {"count": 100, "lastObservedTime": "2026-01-01T00:16:30.000000Z"}
        assert len(server.requests) == 3
        recorder.record(pod(), "Warning", "FailedScheduling", "no room")
        await asyncio.sleep(1)
        assert len(events(server)) == 2, "after silence it is a new story"

    run_scenario(scenario)


def test_a_long_series_is_refreshed_while_it_goes_on() -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        for _ in range(700):
            recorder.record(pod(), "Normal", "Waiting", "still")
            await asyncio.sleep(10)
        counts = [r.body["series"]["count"] for r in server.sent("PATCH")]
        assert counts[0] == 2
        assert counts == sorted(set(counts))
        assert 3 <= len(counts) <= 5, "7000 s hold three or four refreshes"

    run_scenario(scenario)


def test_another_note_is_shown_within_a_minute_and_not_more_often() -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        for number in range(61):
            recorder.record(pod(), "Warning", "FailedScheduling", f"reason {number}")
            await asyncio.sleep(1)
        assert [event["note"] for event in events(server)] == ["reason 0", "reason 60"]

    server = run_scenario(scenario)
    assert [event.get("series", {}).get("count", 1) for event in events(server)] == [60, 1]


def test_different_stories_are_different_events() -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        recorder.record(pod(), "Normal", "A", "x")
        recorder.record(pod(), "Warning", "A", "x")
        recorder.record(pod(), "Normal", "B", "x")
        recorder.record(pod("q"), "Normal", "A", "x")
        recorder.record(pod(), "Normal", "A", "x", action="other")
        recorder.record(pod(), "Normal", "A", "x", related=pod("q"))
        await asyncio.sleep(1)
        assert len(events(server)) == 6
        assert len({event["metadata"]["name"] for event in events(server)}) == 6

    run_scenario(scenario)


def test_an_object_that_makes_too_much_noise_is_limited_alone() -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        for number in range(40):
            recorder.record(pod(), "Normal", f"Reason{number}", "x")
        recorder.record(pod("quiet"), "Normal", "Reason", "x")
        await asyncio.sleep(1)
        assert len(events(server)) == correlator.EVENTS_PER_OBJECT_BURST + 1
        assert recorder.counts.spam == 15
        await asyncio.sleep(300)
        recorder.record(pod(), "Normal", "Later", "x")
        recorder.record(pod(), "Normal", "TooSoon", "x")
        await asyncio.sleep(1)
        assert events(server)[-1]["reason"] == "Later"
        assert recorder.counts.spam == 16

    run_scenario(scenario)


def test_a_full_queue_drops_counts_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        for number in range(MAX_QUEUED + 50):
            recorder.record(pod(f"p{number}"), "Normal", "Created", "x")
        assert recorder.pending == MAX_QUEUED
        assert recorder.counts.dropped == 50
        await asyncio.sleep(1)
        assert len(events(server)) == MAX_QUEUED

    with caplog.at_level(logging.WARNING):
        run_scenario(scenario)
    assert [r.getMessage() for r in caplog.records] == [
        "events come faster than they can be written; the first one dropped is Created about Pod ns/p1000"
    ]


def test_an_outage_is_waited_out_and_the_order_kept() -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        server.down = True
        recorder.record(pod("a"), "Normal", "A", "x")
        recorder.record(pod("b"), "Normal", "B", "x")
        recorder.record(pod("a"), "Normal", "A", "x")
        await asyncio.sleep(60)
        assert events(server) == []
        server.down = False
        await asyncio.sleep(20)
        assert [event["reason"] for event in events(server)] == ["A", "B"]
        assert events(server)[0]["series"]["count"] == 2, "what happened meanwhile is in the first write"

    run_scenario(scenario)


def test_an_outage_too_long_gives_up_an_event_and_counts_it() -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        server.down = True
        recorder.record(pod(), "Normal", "A", "x")
        await asyncio.sleep(300)
        assert recorder.counts.lost == 1
        assert recorder.pending == 0
        server.down = False
        recorder.record(pod(), "Normal", "A", "x")
        await asyncio.sleep(1)
        assert len(events(server)) == 1

    run_scenario(scenario)


def test_a_write_that_got_through_unseen_is_not_written_twice() -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        def apply_then_lose(request: Any) -> None:
            server.before = None
            server.handle(request)
            server.faults.append(Unreachable("reset"))

        server.before = apply_then_lose
        recorder.record(pod(), "Normal", "A", "x")
        await asyncio.sleep(30)
        recorder.record(pod(), "Normal", "A", "x")
        await asyncio.sleep(1)
        (event,) = events(server)
        assert event["series"]["count"] == 2

    run_scenario(scenario)


def test_a_series_whose_event_has_expired_on_the_server_is_created_anew() -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        recorder.record(pod(), "Normal", "A", "x")
        await asyncio.sleep(1)
        server.objects.clear()
        recorder.record(pod(), "Normal", "A", "x")
        await asyncio.sleep(1)
        (event,) = events(server)
        assert event["series"]["count"] == 2

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("code", "reason", "written"),
    [
        pytest.param(403, "Forbidden", 1, id="forbidden-is-final"),
        pytest.param(429, "TooManyRequests", 2, id="busy-is-tried-again"),
        pytest.param(503, "ServiceUnavailable", 2, id="unavailable-is-tried-again"),
    ],
)
def test_refusals(code: int, reason: str, written: int) -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        server.faults.append(api_response(code, failure_status(code, reason)))
        recorder.record(pod("a"), "Normal", "A", "x")
        recorder.record(pod("b"), "Normal", "B", "x")
        await asyncio.sleep(30)
        assert len(events(server)) == written
        assert recorder.counts.refused == 2 - written

    run_scenario(scenario)


def test_stopping_writes_the_counts_that_are_owed_and_does_not_wait_for_a_dead_server() -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        for _ in range(9):
            recorder.record(pod(), "Normal", "A", "x")
            await asyncio.sleep(1)

    (event,) = events(run_scenario(scenario))
    assert event["series"]["count"] == 9

    async def dead(server: ScriptedServer, recorder: EventRecorder) -> None:
        server.down = True
        recorder.record(pod(), "Normal", "A", "x")

    assert events(run_scenario(dead)) == []


def test_names_that_the_server_would_refuse_are_replaced() -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        recorder.record(pod("Not_A_Subdomain"), "Normal", "A", "x")
        recorder.record(ObjectReference(kind="Node", name="n" * 250), "Normal", "A", "x")
        await asyncio.sleep(1)
        for event in events(server):
            assert len(event["metadata"]["name"]) == 36
        assert events(server)[1]["metadata"]["namespace"] == "default"

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("type", "reason"),
    [
        pytest.param("Error", "A", id="unknown-type"),
        pytest.param("Normal", "", id="no-reason"),
        pytest.param("Normal", "R" * 129, id="long-reason"),
    ],
)
def test_what_the_server_would_refuse_is_the_callers_error(type: Any, reason: str) -> None:
    async def scenario(server: ScriptedServer, recorder: EventRecorder) -> None:
        with pytest.raises(ValueError, match="an event"):
            recorder.record(pod(), type, reason, "x")

    run_scenario(scenario)


@given(st.text(max_size=2000))
def test_a_bounded_note_fits_and_keeps_its_beginning(text: str) -> None:
    note = truncate_utf8(text)
    assert len(note.encode()) <= 1024
    assert note == text or (note.endswith(" ...") and text.startswith(note[:-4]) and len(note.encode()) > 1016)
