"""Decide some pods one after another on a snapshot; nothing outside of it is changed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.explain.report import LastAttemptReport, report_attempt
from koord.scheduler.explain.snapshot import ApiSnapshot, SnapshotHandle
from koord.scheduler.framework.attempt import SchedulingAttempt, failure_of_decision, failure_of_rejection
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.runtime import run_nominate_reservation, run_pre_enqueue, run_reserve, run_unreserve

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
        gate = run_pre_enqueue(engine.profile, pod)
        if gate is not None:
            return WhatIfOutcome(pod=pod.key, scheduler=pod.scheduler, gated_by=gate[0], message=gate[1].text)
        attempt = engine.decide(pod, RUNNERS_UP)
        decision = attempt.decision
        if isinstance(decision, Unschedulable):
            decision = engine.post_filter(attempt)
        report = report_attempt(1, self._now_s, 0.0, "simulated", "", decision)
        if isinstance(decision, ChosenNode):
            refused = self._reserve(attempt)
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

    def _reserve(self, attempt: SchedulingAttempt) -> str | None:
        """Assume the chosen node and run Reserve; return the message of a rejection, after which nothing is left."""
        rejection = run_nominate_reservation(attempt)
        if rejection is not None:
            return failure_of_rejection(rejection).message
        self._state.assume(attempt.pod, attempt.node_name)
        rejection = run_reserve(attempt)
        if rejection is None:
            return None
        run_unreserve(attempt)
        self._state.forget(attempt.pod.uid)
        return failure_of_rejection(rejection).message


def kinds_read(completed_config: CompletedConfig) -> list[tuple[str, str]]:
    """Return the kinds, by apiVersion and kind, that a configuration's plugins list besides nodes and pods."""
    snapshot = ApiSnapshot(())
    handle = SnapshotHandle(snapshot, snapshot.state(), 0.0)
    completed_config.make_profiles(handle)
    return sorted(handle.requested_kinds)
