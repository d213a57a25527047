"""Report where one pod is with the scheduler, as a headline for people and as data for programs. Pure: all is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from koord.scheduler.cache.pod_model import Pod, is_terminal
from koord.scheduler.framework.decision import (
    AttemptError,
    ChosenNode,
    Decision,
    NearestNode,
    ScoredNode,
    Unschedulable,
    VictimSearch,
)
from koord.scheduler.queue.queued_pod import QueuedPodStatus

PodState = Literal[
    "ended",
    "bound",
    "not-ours",
    "leaving",
    "gated",
    "waiting",
    "binding",
    "queued",
    "backing-off",
    "unschedulable",
    "unseen",
]


class RejectionReport(msgspec.Struct, frozen=True, rename="camel"):
    """Report one reason of one plugin, and of how many nodes."""

    plugin: str
    reason: str
    nodes: int
    examples: tuple[str, ...] = ()
    preemption_might_help: bool = True


class LastAttemptReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Report the last attempt at a pod."""

    number: int
    at: float  # seconds since 1970
    took_ms: float
    result: str
    message: str = ""
    node: str = ""
    feasible: int = 0  # nodes that passed every filter
    ranking: tuple[ScoredNode, ...] = ()  # the node chosen, and the next best if they were noted
    refusals: tuple[RejectionReport, ...] = ()
    nearest: NearestNode | None = None
    searches: tuple[VictimSearch, ...] = ()
    victims: tuple[str, ...] = ()


class PermitWait(msgspec.Struct, frozen=True, rename="camel"):
    """Report that a pod waits at Permit: for whom, for what if a plugin says so, how long, and how long at most."""

    node: str
    plugins: tuple[str, ...]
    waits_for: str = ""
    for_s: float = 0.0
    left_s: float = 0.0


class PodReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Report one pod's state with the scheduler."""

    pod: str
    uid: str
    scheduler: str
    state: PodState
    headline: str
    node: str = ""
    nominated: str = ""
    attempts: int = 0
    queued_for_s: float | None = None
    backing_off_s: float | None = None
    ahead: int | None = None  # pods that come before it
    gates: tuple[str, ...] = ()
    waiting: PermitWait | None = None
    last: LastAttemptReport | None = None
    wakes_on: tuple[str, ...] = ()  # what may bring it back


class PodReportInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Hold what is known of one pod at one moment. `now` and the times of `queue_status` are of the queue's clock."""

    pod: Pod
    served_schedulers: tuple[str, ...]  # the schedulers that run here
    now: float
    queue_status: QueuedPodStatus | None = None
    attempt: LastAttemptReport | None = None
    waiting: PermitWait | None = None
    ahead: int | None = None
    wakes_on: Sequence[str] = ()


def report_pod(inputs: PodReportInputs) -> PodReport:
    """Report one pod."""
    state = _state(inputs)
    pod, queue_status = inputs.pod, inputs.queue_status
    until = queue_status.backing_off_until if queue_status is not None else None
    return PodReport(
        pod=f"{pod.metadata.namespace}/{pod.metadata.name}",
        uid=pod.metadata.uid,
        scheduler=pod.spec.scheduler_name,
        state=state,
        headline=_headline(state, inputs),
        node=pod.spec.node_name,
        nominated=queue_status.nominated_node if queue_status is not None else pod.status.nominated_node_name,
        attempts=queue_status.attempts if queue_status is not None else inputs.attempt.number if inputs.attempt else 0,
        queued_for_s=inputs.now - queue_status.queued_at if queue_status is not None else None,
        backing_off_s=until - inputs.now if until is not None else None,
        ahead=inputs.ahead,
        gates=tuple(gate.name for gate in pod.spec.scheduling_gates),
        waiting=inputs.waiting,
        last=inputs.attempt,
        wakes_on=tuple(inputs.wakes_on),
    )


def _state(inputs: PodReportInputs) -> PodState:
    pod, queue_status = inputs.pod, inputs.queue_status
    if is_terminal(pod):
        return "ended"
    if pod.spec.node_name:
        return "bound"
    if pod.spec.scheduler_name not in inputs.served_schedulers:
        return "not-ours"
    if pod.metadata.deletion_timestamp is not None:
        return "leaving"
    if inputs.waiting is not None:
        return "waiting"
    if queue_status is None:
        return "unseen"
    if queue_status.part == "in-flight":
        return "binding"
    if queue_status.part == "gated":
        return "gated"
    if queue_status.part == "backoff":
        return "backing-off"
    return "queued" if queue_status.part == "active" else "unschedulable"


def _headline(state: PodState, inputs: PodReportInputs) -> str:
    pod, queue_status, last = inputs.pod, inputs.queue_status, inputs.attempt
    tried = (
        f"after {_times(queue_status.attempts)}"
        if queue_status is not None and queue_status.attempts
        else "never tried so far"
    )
    match state:
        case "ended":
            return f"It has ended ({pod.status.phase}) and holds nothing."
        case "bound":
            if last is None or not last.node:
                return f"It runs on {pod.spec.node_name}; this scheduler has no record of choosing it."
            return f"It runs on {pod.spec.node_name}, the best of {last.feasible} nodes that fit."
        case "not-ours":
            asked = pod.spec.scheduler_name or "nobody"
            return f"It asks for scheduler {asked}; this program serves {', '.join(inputs.served_schedulers)}."
        case "leaving":
            return "It is being deleted, so it is not scheduled."
        case "gated":
            assert queue_status is not None
            return f"It is held back before the queue by {queue_status.gated_by}: {queue_status.gate_reason}"
        case "waiting":
            assert inputs.waiting is not None
            return _waiting_headline(inputs.waiting)
        case "binding":
            return (
                f"It is being tried or bound right now{f' on {last.node}' if last is not None and last.node else ''}."
            )
        case "queued":
            before = f", {inputs.ahead} pods before it" if inputs.ahead else ", next to be tried"
            return f"It waits in the queue ({tried}{before})."
        case "backing-off":
            assert queue_status is not None
            left = (queue_status.backing_off_until or inputs.now) - inputs.now
            return f"It backs off for another {max(left, 0):.1f} s ({tried}): {say_once(queue_status.last_failure)}"
        case "unschedulable":
            assert queue_status is not None
            return f"No node takes it ({tried}): {say_once(queue_status.last_failure)}"
        case "unseen":
            return "The scheduler has not seen it yet."


def _waiting_headline(wait: PermitWait) -> str:
    waits_for = wait.waits_for or f"{', '.join(wait.plugins)} to allow it"
    return (
        f"It has room on {wait.node} and waits for {waits_for}: for {wait.for_s:.0f} s so far, "
        f"and for another {max(wait.left_s, 0):.0f} s at most."
    )


_PREEMPTION = "preemption: "  # how the reasons of plugins that looked for victims begin


def say_once(message: str) -> str:
    """Return an attempt's message for people: what several plugins found out about preemption stands there once.

    Events repeat it for each plugin, as Kubernetes' do.
    """
    nodes, found, reasons = message.partition(f" {_PREEMPTION}")
    if not found:
        return message
    return f"{nodes} {_PREEMPTION}" + f", {_PREEMPTION}".join(dict.fromkeys(reasons.split(f", {_PREEMPTION}")))


def _times(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


def report_attempt(
    number: int, at: float, took_s: float, result: str, message: str, decision: Decision
) -> LastAttemptReport:
    """Report one attempt."""
    report = LastAttemptReport(number=number, at=at, took_ms=1000 * took_s, result=result, message=message)
    if isinstance(decision, ChosenNode):
        best = ScoredNode(decision.node, decision.total, decision.scores)
        return msgspec.structs.replace(
            report, node=decision.node, feasible=decision.feasible, ranking=(best, *decision.runners_up)
        )
    if isinstance(decision, AttemptError):
        return msgspec.structs.replace(report, refusals=(RejectionReport(decision.plugin, decision.message, 0),))
    plan = decision.preempt
    return msgspec.structs.replace(
        report,
        refusals=_rejections(decision),
        nearest=decision.nearest,
        searches=decision.searches,
        victims=tuple(victim.key for victim in plan.victims) if plan is not None else (),
    )


def _rejections(decision: Unschedulable) -> tuple[RejectionReport, ...]:
    """Return the rejections, the most frequent first."""
    found = [
        RejectionReport(refusal.plugin, refusal.verdict.text, refusal.count, refusal.nodes, refusal.verdict.resolvable)
        for refusal in decision.rejections
    ]
    if decision.pre_filter is not None:
        plugin, verdict = decision.pre_filter
        found.append(RejectionReport(plugin, verdict.text, decision.node_count, (), verdict.resolvable))
    return tuple(sorted(found, key=lambda report: (-report.nodes, report.plugin, report.reason)))
