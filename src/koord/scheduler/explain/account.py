"""Report where one pod is with the scheduler, as a headline for people and as data for programs. Pure: all is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from koord.scheduler.framework.decision import Chosen, Decision, Failed, Miss, Ranked, Search, Unschedulable
from koord.scheduler.queue.entry import Standing
from koord.scheduler.state.wire import Pod, is_terminal

State = Literal[
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


class Said(msgspec.Struct, frozen=True, rename="camel"):
    """Report one reason of one plugin, and of how many nodes."""

    plugin: str
    reason: str
    nodes: int
    examples: tuple[str, ...] = ()
    preemption_might_help: bool = True


class LastAttempt(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Report the last attempt at a pod."""
    number: int
    at: float  # seconds since 1970
    took_ms: float
    result: str
    message: str = ""
    node: str = ""
    feasible: int = 0  # nodes that passed every filter
    ranking: tuple[Ranked, ...] = ()  # the node chosen, and the next best if they were noted
    refusals: tuple[Said, ...] = ()
    nearest: Miss | None = None
    searches: tuple[Search, ...] = ()
    victims: tuple[str, ...] = ()


class Waiting(msgspec.Struct, frozen=True, rename="camel"):
    """Report that a pod waits at Permit."""

    node: str
    plugins: tuple[str, ...]


class Account(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Report one pod's state with the scheduler."""
    pod: str
    uid: str
    scheduler: str
    state: State
    headline: str
    node: str = ""
    nominated: str = ""
    attempts: int = 0
    queued_for_s: float | None = None
    backing_off_s: float | None = None
    ahead: int | None = None  # pods that come before it
    gates: tuple[str, ...] = ()
    waiting: Waiting | None = None
    last: LastAttempt | None = None
    wakes_on: tuple[str, ...] = ()  # what may bring it back


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Hold what is known of one pod at one moment. `now` and the times of `queue_status` are of the queue's clock."""

    pod: Pod
    ours: tuple[str, ...]  # the schedulers that run here
    now: float
    standing: Standing | None = None
    attempt: LastAttempt | None = None
    waiting: Waiting | None = None
    ahead: int | None = None
    wakes_on: Sequence[str] = ()


def account(facts: Facts) -> Account:
    """Report one pod."""
    state = _state(facts)
    pod, standing = facts.pod, facts.standing
    until = standing.backing_off_until if standing is not None else None
    return Account(
        pod=f"{pod.metadata.namespace}/{pod.metadata.name}",
        uid=pod.metadata.uid,
        scheduler=pod.spec.scheduler_name,
        state=state,
        headline=_headline(state, facts),
        node=pod.spec.node_name,
        nominated=standing.nominated_node if standing is not None else pod.status.nominated_node_name,
        attempts=standing.attempts if standing is not None else facts.attempt.number if facts.attempt else 0,
        queued_for_s=facts.now - standing.queued_at if standing is not None else None,
        backing_off_s=until - facts.now if until is not None else None,
        ahead=facts.ahead,
        gates=tuple(gate.name for gate in pod.spec.scheduling_gates),
        waiting=facts.waiting,
        last=facts.attempt,
        wakes_on=tuple(facts.wakes_on),
    )


def _state(facts: Facts) -> State:
    pod, standing = facts.pod, facts.standing
    if is_terminal(pod):
        return "ended"
    if pod.spec.node_name:
        return "bound"
    if pod.spec.scheduler_name not in facts.ours:
        return "not-ours"
    if pod.metadata.deletion_timestamp is not None:
        return "leaving"
    if facts.waiting is not None:
        return "waiting"
    if standing is None:
        return "unseen"
    if standing.part == "in-flight":
        return "binding"
    if standing.part == "gated":
        return "gated"
    if standing.part == "backoff":
        return "backing-off"
    return "queued" if standing.part == "active" else "unschedulable"


def _headline(state: State, facts: Facts) -> str:
    pod, standing, last = facts.pod, facts.standing, facts.attempt
    tried = f"after {_times(standing.attempts)}" if standing is not None and standing.attempts else "never tried so far"
    match state:
        case "ended":
            return f"It has ended ({pod.status.phase}) and holds nothing."
        case "bound":
            if last is None or not last.node:
                return f"It runs on {pod.spec.node_name}; this scheduler has no record of choosing it."
            return f"It runs on {pod.spec.node_name}, the best of {last.feasible} nodes that fit."
        case "not-ours":
            asked = pod.spec.scheduler_name or "nobody"
            return f"It asks for scheduler {asked}; this program serves {', '.join(facts.ours)}."
        case "leaving":
            return "It is being deleted, so it is not scheduled."
        case "gated":
            assert standing is not None
            return f"It is held back before the queue by {standing.gated_by}: {standing.gate_reason}"
        case "waiting":
            assert facts.waiting is not None
            return f"It has room on {facts.waiting.node} and waits for {', '.join(facts.waiting.plugins)} to allow it."
        case "binding":
            return (
                f"It is being tried or bound right now{f' on {last.node}' if last is not None and last.node else ''}."
            )
        case "queued":
            before = f", {facts.ahead} pods before it" if facts.ahead else ", next to be tried"
            return f"It waits in the queue ({tried}{before})."
        case "backing-off":
            assert standing is not None
            left = (standing.backing_off_until or facts.now) - facts.now
            return f"It backs off for another {max(left, 0):.1f} s ({tried}): {standing.last_failure}"
        case "unschedulable":
            assert standing is not None
            return f"No node takes it ({tried}): {standing.last_failure}"
        case "unseen":
            return "The scheduler has not seen it yet."


def _times(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


def of_attempt(number: int, at: float, took_s: float, result: str, message: str, decision: Decision) -> LastAttempt:
    """Report one attempt."""
    if isinstance(decision, Chosen):
        best = Ranked(decision.node, decision.total, decision.scores)
        return LastAttempt(
            number=number,
            at=at,
            took_ms=1000 * took_s,
            result=result,
            message=message,
            node=decision.node,
            feasible=decision.feasible,
            ranking=(best, *decision.runners_up),
        )
    if isinstance(decision, Failed):
        said = (Said(decision.plugin, decision.message, 0),)
        return LastAttempt(number=number, at=at, took_ms=1000 * took_s, result=result, message=message, refusals=said)
    plan = decision.preempt
    return LastAttempt(
        number=number,
        at=at,
        took_ms=1000 * took_s,
        result=result,
        message=message,
        refusals=_refusals(decision),
        nearest=decision.nearest,
        searches=decision.searches,
        victims=tuple(victim.key for victim in plan.victims) if plan is not None else (),
    )


def _refusals(decision: Unschedulable) -> tuple[Said, ...]:
    """Return the rejections, the most frequent first."""
    found = [
        Said(refusal.plugin, refusal.verdict.text, refusal.count, refusal.nodes, refusal.verdict.resolvable)
        for refusal in decision.refusals
    ]
    if decision.pre_filter is not None:
        plugin, verdict = decision.pre_filter
        found.append(Said(plugin, verdict.text, decision.node_count, (), verdict.resolvable))
    return tuple(sorted(found, key=lambda said: (-said.nodes, said.plugin, said.reason)))
