"""Decide some pods one after another on a snapshot; nothing outside of it is changed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.explain.report import LastAttemptReport, report_attempt
from koord.scheduler.explain.snapshot import ApiSnapshot, SnapshotHandle
from koord.scheduler.framework.attempt import failure_of_decision, failure_of_verdict
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.verdict import Fault, Reject

RUNNERS_UP = 4


class WhatIfOutcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Report what would become of one pod."""

    pod: str
    scheduler: str
    node: str = ""  # where it would go now
    after_eviction_on: str = ""  # or where, once the victims are gone
    gated_by: str = ""
    message: str = ""  # why nowhere, as its condition would tell
    attempt: LastAttemptReport | None = None


class WhatIf:
    """Decide each pod as the real scheduler would; its placement counts for the next."""

    def __init__(self, completed_config: CompletedConfig, snapshot: ApiSnapshot, now_s: float, seed: int = 0) -> None:
        self._state = snapshot.state()
        self._handle = SnapshotHandle(snapshot, self._state, now_s)
        self._engines = {
            p.scheduler_name: SchedulingEngine(p, self._state, seed)
            for p in completed_config.make_profiles(self._handle)
        }
        self._now_s = now_s

    def decide(self, pods: Iterable[Pod]) -> list[WhatIfOutcome]:
        return [self._one(self._state.pod_info(pod)) for pod in pods]

    def _one(self, pod: PodInfo) -> WhatIfOutcome:
        engine = self._engines.get(pod.scheduler)
        if engine is None:
            served = ", ".join(sorted(self._engines))
            message = f"it asks for scheduler {pod.scheduler or 'nobody'}; this configuration serves {served}"
            return WhatIfOutcome(pod=pod.key, scheduler=pod.scheduler, message=message)
        for plugin in engine.profile.plugins_at("pre_enqueue"):
            held = plugin.pre_enqueue(pod)
            if held is not None:
                return WhatIfOutcome(pod=pod.key, scheduler=pod.scheduler, gated_by=plugin.name, message=held.text)
        decision = engine.decide(pod, RUNNERS_UP)
        if isinstance(decision, Unschedulable):
            decision = engine.post_filter(pod, decision)
        report = report_attempt(1, self._now_s, 0.0, "simulated", "", decision)
        if isinstance(decision, ChosenNode):
            refused = self._promise(engine, pod, decision)
            if refused is not None:
                return WhatIfOutcome(pod=pod.key, scheduler=pod.scheduler, message=refused, attempt=report)
            return WhatIfOutcome(pod=pod.key, scheduler=pod.scheduler, node=decision.node, attempt=report)
        message = failure_of_decision(decision).message
        plan = decision.preempt if isinstance(decision, Unschedulable) else None
        if plan is None:
            return WhatIfOutcome(pod=pod.key, scheduler=pod.scheduler, message=message, attempt=report)
        for victim in plan.victims:
            self._state.drop_pod(victim.uid)
        self._state.assume(pod, plan.node)
        return WhatIfOutcome(
            pod=pod.key, scheduler=pod.scheduler, after_eviction_on=plan.node, message=message, attempt=report
        )

    def _promise(self, engine: SchedulingEngine, pod: PodInfo, decision: ChosenNode) -> str | None:
        refused = engine.nominate(pod, decision.node)
        if refused is not None:
            return failure_of_verdict(refused[0], "Reserve", refused[1]).message
        self._state.assume(pod, decision.node)
        node = self._state.table.index[decision.node]
        for plugin in engine.profile.plugins_at("reserve"):
            answer = plugin.reserve(engine.cycle, pod, node)
            if isinstance(answer, Reject | Fault):
                self._state.forget(pod.uid)
                return failure_of_verdict(plugin.name, "Reserve", answer).message
        return None


def kinds_read(completed_config: CompletedConfig) -> list[tuple[str, str]]:
    """Return the kinds, by apiVersion and kind, that a configuration's plugins list besides nodes and pods."""
    snapshot = ApiSnapshot(())
    handle = SnapshotHandle(snapshot, snapshot.state(), 0.0)
    completed_config.make_profiles(handle)
    return sorted(handle.requested_kinds)
