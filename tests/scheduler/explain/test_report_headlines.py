"""Headlines of states that pass too quickly to be met in a running scheduler."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from koord.api.model import convert
from koord.cli.commands.explain.pod import print_attempt
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.explain.report import LastAttemptReport, PodReportInputs, report_pod, say_once
from koord.scheduler.framework.decision import VictimSearch
from koord.scheduler.queue.queued_pod import QueuedPodStatus, QueuePart
from koord.scheduler.status_reporter import MESSAGE_BYTES, PodStatusUpdate, pod_status_patch, truncate_message
from koord.telemetry.clock import ManualClock, now

OURS = ("default-scheduler",)


def pod(**more: Any) -> Pod:
    meta = {"name": "p", "namespace": "default", "uid": "u", **more.pop("metadata", {})}
    spec = {"schedulerName": "default-scheduler", **more.pop("spec", {})}
    return convert({"metadata": meta, "spec": spec, **more}, Pod)


def standing(part: QueuePart, attempts: int = 0, **more: Any) -> QueuedPodStatus:
    return QueuedPodStatus(
        pod="default/p", uid="u", part=part, attempts=attempts, queued_at=0, since=0, moved_by="", **more
    )


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        pytest.param(
            PodReportInputs(pod=pod(), served_schedulers=OURS, now=9), "unseen", "has not seen it yet", id="unseen"
        ),
        pytest.param(
            PodReportInputs(pod=pod(), served_schedulers=OURS, now=9, queue_status=standing("active"), ahead=0),
            "queued",
            "never tried so far, next to be tried",
            id="never-attempted",
        ),
        pytest.param(
            PodReportInputs(pod=pod(), served_schedulers=OURS, now=9, queue_status=standing("active", 2), ahead=7),
            "queued",
            "after 2 attempts, 7 pods before it",
            id="queued-again",
        ),
        pytest.param(
            PodReportInputs(
                pod=pod(), served_schedulers=OURS, now=9, queue_status=standing("backoff", 1, backing_off_until=10.5)
            ),
            "backing-off",
            "another 1.5 s (after 1 attempt)",
            id="backing-off",
        ),
        pytest.param(
            PodReportInputs(pod=pod(), served_schedulers=OURS, now=9, queue_status=standing("in-flight", 1)),
            "binding",
            "being tried or bound",
            id="in-flight",
        ),
        pytest.param(
            PodReportInputs(
                pod=pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), served_schedulers=OURS, now=9
            ),
            "leaving",
            "being deleted",
            id="leaving",
        ),
        pytest.param(
            PodReportInputs(
                pod=pod(status={"phase": "Succeeded"}, spec={"nodeName": "n0"}), served_schedulers=OURS, now=9
            ),
            "ended",
            "has ended (Succeeded)",
            id="ended",
        ),
        pytest.param(
            PodReportInputs(pod=pod(spec={"nodeName": "n0"}), served_schedulers=OURS, now=9),
            "bound",
            "no record of choosing it",
            id="bound-by-others",
        ),
    ],
)
def test_state_and_words(facts: PodReportInputs, state: str, words: str) -> None:
    told = report_pod(facts)
    assert told.state == state
    assert words in told.headline


def test_what_two_plugins_say_of_preemption_is_told_once() -> None:
    nodes, no = "0/2 nodes are available: 2 Insufficient cpu.", "preemption: 0/2 nodes are available: 2 no victims."
    other = "preemption: not eligible due to preemptionPolicy=Never."
    assert say_once(nodes) == nodes
    assert say_once(f"{nodes} {no}, {no}") == f"{nodes} {no}"
    assert say_once(f"{nodes} {no}, {other}, {no}") == f"{nodes} {no}, {other}"


def test_two_searches_with_one_result_are_one_line() -> None:
    def search(plugin: str, candidates: int = 0) -> VictimSearch:
        return VictimSearch(plugin, 3, candidates, {"no victims": 3})

    last = LastAttemptReport(
        number=1,
        at=0,
        took_ms=1,
        result="unschedulable",
        message="",
        searches=(search("ElasticQuota"), search("Reservation", 1), search("DefaultPreemption")),
    )
    out = StringIO()
    print_attempt(Console(file=out, width=120), last, "Last attempt")
    lines = [line for line in out.getvalue().splitlines() if "looked" in line]
    assert lines == [
        "Victims    ElasticQuota and DefaultPreemption looked for some on 3 nodes, found them on 0: 3 no victims",
        "Victims    Reservation looked for some on 3 nodes, found them on 1: 3 no victims",
    ]


def test_a_condition_is_bounded_and_written_once() -> None:
    endless = "0/9 nodes are available: " + ", ".join(f"1 reason {n}" for n in range(5_000))
    report = PodStatusUpdate(namespace="default", name="p", uid="u", reason="Unschedulable", message=endless)
    at = now(ManualClock())
    patch = pod_status_patch(pod(), report, at)
    (condition,) = patch["conditions"]
    assert len(condition["message"].encode()) <= MESSAGE_BYTES
    assert condition["message"].endswith(" ...")
    again = pod(status={"conditions": [condition]})
    assert pod_status_patch(again, report, at) == {}


def test_a_bound_never_splits_a_letter() -> None:
    assert truncate_message("é" * MESSAGE_BYTES).rstrip(" .").endswith("é")
