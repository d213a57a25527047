"""Decide some pods one after another on a snapshot; nothing outside of it is changed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koord.scheduler.assembly import Assembly
from koord.scheduler.explain.account import LastAttempt, of_attempt
from koord.scheduler.explain.snapshot import FixedHandle, Snapshot
from koord.scheduler.framework.decision import Chosen, Unschedulable
from koord.scheduler.framework.engine import Engine
from koord.scheduler.framework.verdict import Fault, Reject
from koord.scheduler.shell.outcome import of_decision, of_refusal
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.wire import Pod

RUNNERS_UP = 4


class Outcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Report what would become of one pod."""
    pod: str
    scheduler: str
    node: str = ""  # where it would go now
    after_eviction_on: str = ""  # or where, once the victims are gone
    gated_by: str = ""
    message: str = ""  # why nowhere, as its condition would tell
    attempt: LastAttempt | None = None


class WhatIf:
    """Decide each pod as the real scheduler would; its placement counts for the next."""

    def __init__(self, assembly: Assembly, snapshot: Snapshot, now_s: float, seed: int = 0) -> None:
        self._state = snapshot.state()
        self._handle = FixedHandle(snapshot, self._state, now_s)
        self._engines = {p.scheduler_name: Engine(p, self._state, seed) for p in assembly.profiles(self._handle)}
        self._now_s = now_s

    def decide(self, pods: Iterable[Pod]) -> list[Outcome]:
        return [self._one(self._state.info(pod)) for pod in pods]

    def _one(self, pod: PodInfo) -> Outcome:
        engine = self._engines.get(pod.scheduler)
        if engine is None:
            served = ", ".join(sorted(self._engines))
            message = f"it asks for scheduler {pod.scheduler or 'nobody'}; this configuration serves {served}"
            return Outcome(pod=pod.key, scheduler=pod.scheduler, message=message)
        for plugin in engine.profile.at("pre_enqueue"):
            held = plugin.pre_enqueue(pod)
            if held is not None:
                return Outcome(pod=pod.key, scheduler=pod.scheduler, gated_by=plugin.name, message=held.text)
        decision = engine.decide(pod, RUNNERS_UP)
        if isinstance(decision, Unschedulable):
            decision = engine.post_filter(pod, decision)
        told = of_attempt(1, self._now_s, 0.0, "simulated", "", decision)
        if isinstance(decision, Chosen):
            refused = self._promise(engine, pod, decision)
            if refused is not None:
                return Outcome(pod=pod.key, scheduler=pod.scheduler, message=refused, attempt=told)
            return Outcome(pod=pod.key, scheduler=pod.scheduler, node=decision.node, attempt=told)
        message = of_decision(decision).message
        plan = decision.preempt if isinstance(decision, Unschedulable) else None
        if plan is None:
            return Outcome(pod=pod.key, scheduler=pod.scheduler, message=message, attempt=told)
        for victim in plan.victims:
            self._state.drop_pod(victim.uid)
        self._state.assume(pod, plan.node)
        return Outcome(pod=pod.key, scheduler=pod.scheduler, after_eviction_on=plan.node, message=message, attempt=told)

    def _promise(self, engine: Engine, pod: PodInfo, decision: Chosen) -> str | None:
        refused = engine.nominate(pod, decision.node)
        if refused is not None:
            return of_refusal(refused[0], "Reserve", refused[1]).message
        self._state.assume(pod, decision.node)
        node = self._state.table.index[decision.node]
        for plugin in engine.profile.at("reserve"):
            answer = plugin.reserve(engine.cycle, pod, node)
            if isinstance(answer, Reject | Fault):
                self._state.forget(pod.uid)
                return of_refusal(plugin.name, "Reserve", answer).message
        return None


def reads(assembly: Assembly) -> list[tuple[str, str]]:
    """Return the kinds, by apiVersion and kind, that a configuration's plugins list besides nodes and pods."""
    snapshot = Snapshot(())
    handle = FixedHandle(snapshot, snapshot.state(), 0.0)
    assembly.profiles(handle)
    return sorted(handle.asked)
