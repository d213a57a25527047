"""The agent's port answers audit events as Koordinator's clients expect: pages, tokens and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koord.host.audit_log import NODE, AuditEvent, AuditLog
from koord.koordlet.http_endpoints import audit_events_reply
from koord.telemetry.clock import ManualClock
from koord.telemetry.http_routing import HttpCall, HttpReply


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    log = AuditLog(str(tmp_path), ManualClock(), page_limit=10)
    for number in range(5):
        log.append(AuditEvent(type=NODE, reason="Test", message=f"event {number}"))
    return log


def get(log: AuditLog, accept: str = "", **query: str) -> HttpReply:
    headers = {"Accept": accept} if accept else {}
    return audit_events_reply(
        log, HttpCall(method="GET", path="/events", query={k: (v,) for k, v in query.items()}, headers=headers)
    )


def test_text_has_a_line_for_each_event_newest_first(log: AuditLog) -> None:
    reply = get(log, size="2")
    messages = [json.loads(line)["message"] for line in reply.body.splitlines()]
    assert messages == ["event 4", "event 3"]
    rest = get(log, pageToken=reply.headers["Next-Page-Token"])
    assert [json.loads(line)["message"] for line in rest.body.splitlines()] == ["event 2", "event 1", "event 0"]
    assert rest.headers == {}


def test_json_has_a_token_and_events(log: AuditLog) -> None:
    reply = get(log, "application/json", size="4")
    assert reply.content_type == "application/json; charset=utf-8"
    body = json.loads(reply.body)
    assert len(body["Events"]) == 4
    last = json.loads(get(log, "application/json", pageToken=body["NextPageToken"]).body)
    assert (last["NextPageToken"], len(last["Events"])) == ("", 1)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        pytest.param({"size": "-1"}, 400, id="a-negative-size-is-refused"),
        pytest.param({"size": "11"}, 400, id="too-many-are-refused"),
        pytest.param({"pageToken": "gone"}, 409, id="an-unknown-token-is-a-conflict"),
        pytest.param({"size": "0"}, 200, id="none-is-an-answer"),
    ],
)
def test_odd_questions(log: AuditLog, query: dict[str, str], status: int) -> None:
    assert get(log, **query).status == status


def test_a_size_that_is_no_number_is_the_default(tmp_path: Path) -> None:
    log = AuditLog(str(tmp_path), ManualClock())
    log.append(AuditEvent(type=NODE, reason="Test", message="one"))
    assert get(log, size="many").status == 200
