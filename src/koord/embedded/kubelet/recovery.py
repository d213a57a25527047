"""Recover the runs of pods that an earlier process started from their status. Pure."""

from __future__ import annotations

from datetime import datetime

from koord.api.container import ContainerState, ContainerStateTerminated, ContainerStatus
from koord.api.pod import PodStatus
from koord.embedded.kubelet.behaviour import ContainerPlan, Plan
from koord.embedded.kubelet.podlife import ContainerRun, Exited, Flag, Phase, Run, Running, Waiting
from koord.embedded.kubelet.view import Template


def run_of(status: PodStatus, template: Template, plan: Plan, now: float) -> Run:
    """Return the run that a status describes, for a pod that was started before this process was."""
    began = _moment(status.start_time, now)
    init = {s.name: s for s in status.init_container_statuses}
    main = {s.name: s for s in status.container_statuses}
    waiting = "PodInitializing" if template.init_containers else "ContainerCreating"
    conditions = {c.type: Flag(c.status == "True", _moment(c.last_transition_time, now)) for c in status.conditions}
    phase = status.phase
    known: Phase = phase if phase in ("Running", "Succeeded", "Failed") else "Pending"  # type: ignore[assignment]
    no = Flag(False, began)
    return Run(
        phase=known,
        admitted_at=began,
        sandbox_at=now,
        init=tuple(_seen(init.get(v.name), p, waiting, now) for v, p in zip(template.init_containers, plan.init)),
        main=tuple(_seen(main.get(v.name), p, waiting, now) for v, p in zip(template.containers, plan.main)),
        sandbox=conditions.get("PodReadyToStartContainers", no),
        initialized=conditions.get("Initialized", Flag(not plan.init, began)),
        containers_ready=conditions.get("ContainersReady", no),
        ready=conditions.get("Ready", no),
        reason=status.reason,
        message=status.message,
    )


def _seen(status: ContainerStatus | None, plan: ContainerPlan, waiting: str, now: float) -> ContainerRun:
    if status is None:
        return ContainerRun(Waiting(waiting))
    last = _exit(status.last_state, now)
    state = status.state
    if state.running is not None:
        since = _moment(state.running.started_at, now)
        ends_at = None if plan.run_s is None else since + plan.run_s
        return ContainerRun(Running(since, since + plan.ready_s, ends_at, status.ready), status.restart_count, last)
    end = _exit(state, now)
    if end is not None:
        return ContainerRun(end, status.restart_count, last)
    if last is not None:  # it was waiting to be restarted: the wait is cut short
        return ContainerRun(Waiting("CrashLoopBackOff", now), status.restart_count, last)
    return ContainerRun(Waiting(waiting))


def _exit(state: ContainerState, now: float) -> Exited | None:
    end: ContainerStateTerminated | None = state.terminated
    if end is None:
        return None
    return Exited(end.exit_code, end.reason, _moment(end.started_at, now), _moment(end.finished_at, now))


def _moment(stamp: datetime | None, now: float) -> float:
    return now if stamp is None else stamp.timestamp()
