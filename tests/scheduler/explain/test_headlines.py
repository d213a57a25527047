"""Headlines of states that pass too quickly to be met in a running scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.model import convert
from koord.scheduler.explain.account import Facts, account
from koord.scheduler.queue.entry import Part, Standing
from koord.scheduler.shell.report import MESSAGE_BYTES, Report, bounded, status_patch
from koord.scheduler.state.wire import Pod
from koord.telemetry.clock import ManualClock, now

OURS = ("default-scheduler",)


def pod(**more: Any) -> Pod:
    meta = {"name": "p", "namespace": "default", "uid": "u", **more.pop("metadata", {})}
    spec = {"schedulerName": "default-scheduler", **more.pop("spec", {})}
    return convert({"metadata": meta, "spec": spec, **more}, Pod)


def standing(part: Part, attempts: int = 0, **more: Any) -> Standing:
    return Standing(pod="default/p", uid="u", part=part, attempts=attempts, queued_at=0, since=0, moved_by="", **more)


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        pytest.param(Facts(pod=pod(), ours=OURS, now=9), "unseen", "has not seen it yet", id="unseen"),
        pytest.param(
            Facts(pod=pod(), ours=OURS, now=9, standing=standing("active"), ahead=0),
            "queued",
            "never tried so far, next to be tried",
            id="never-attempted",
        ),
        pytest.param(
            Facts(pod=pod(), ours=OURS, now=9, standing=standing("active", 2), ahead=7),
            "queued",
            "after 2 attempts, 7 pods before it",
            id="queued-again",
        ),
        pytest.param(
            Facts(pod=pod(), ours=OURS, now=9, standing=standing("backoff", 1, backing_off_until=10.5)),
            "backing-off",
            "another 1.5 s (after 1 attempt)",
            id="backing-off",
        ),
        pytest.param(
            Facts(pod=pod(), ours=OURS, now=9, standing=standing("in-flight", 1)),
            "binding",
            "being tried or bound",
            id="in-flight",
        ),
        pytest.param(
            Facts(pod=pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), ours=OURS, now=9),
            "leaving",
            "being deleted",
            id="leaving",
        ),
        pytest.param(
            Facts(pod=pod(status={"phase": "Succeeded"}, spec={"nodeName": "n0"}), ours=OURS, now=9),
            "ended",
            "has ended (Succeeded)",
            id="ended",
        ),
        pytest.param(
            Facts(pod=pod(spec={"nodeName": "n0"}), ours=OURS, now=9),
            "bound",
            "no record of choosing it",
            id="bound-by-others",
        ),
    ],
)
def test_state_and_words(facts: Facts, state: str, words: str) -> None:
    told = account(facts)
    assert told.state == state
    assert words in told.headline


def test_a_condition_is_bounded_and_written_once() -> None:
    endless = "0/9 nodes are available: " + ", ".join(f"1 reason {n}" for n in range(5_000))
    report = Report(namespace="default", name="p", uid="u", reason="Unschedulable", message=endless)
    at = now(ManualClock())
    patch = status_patch(pod(), report, at)
    (condition,) = patch["conditions"]
    assert len(condition["message"].encode()) <= MESSAGE_BYTES
    assert condition["message"].endswith(" ...")
    again = pod(status={"conditions": [condition]})
    assert status_patch(again, report, at) == {}


def test_a_bound_never_splits_a_letter() -> None:
    assert bounded("é" * MESSAGE_BYTES).rstrip(" .").endswith("é")
