"""The lifecycle of one pod on its node, from admission to the end of its last container. Pure.

                      deleted or past its deadline -> stopping -> containers end
    admitted -> sandbox -> init containers, one by one (sidecars stay) -> containers -> ready
                                                     exit -> restarted after a back-off, or for good -> over

`advance` moves a PodRun to a point in time through every step that was due before it, so that a kubelet
that was away (a partition, a pause of the process) finds the state that its node would have reached.
Admission is decided in `pod_worker`, the reported status is built in `pod_status`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from koord.embedded.kubelet.pod_behaviour import ContainerBehaviour, PodBehaviour

BACKOFF_FIRST_S = 10.0
BACKOFF_MAX_S = 300.0
BACKOFF_RESET_S = 600.0  # a container that ran this long starts over with its delays
MIN_GRACE_S = 2.0  # to stop in, whatever a preStop hook used of the grace period
SIGKILL_EXIT_CODE = 137  # 128 + SIGKILL
LOST_EXIT_CODE = 255  # what a runtime reports of a container that died with its machine

IMAGE_PULL_BACKOFF = "ImagePullBackOff"

PodPhase: TypeAlias = Literal["Pending", "Running", "Succeeded", "Failed"]
_Group: TypeAlias = Literal["init", "main"]
_GROUPS: tuple[_Group, ...] = ("init", "main")


class ContainerWaiting(msgspec.Struct, frozen=True, gc=False):
    """A container that has not started; `until` is when it will, None means when its turn comes."""

    reason: str
    until: float | None = None


class ContainerRunning(msgspec.Struct, frozen=True, gc=False):
    since: float
    ready_at: float
    ends_at: float | None
    ready: bool = False


class ContainerExited(msgspec.Struct, frozen=True, gc=False):
    code: int
    reason: str
    since: float
    at: float


class ContainerRun(msgspec.Struct, frozen=True, gc=False):
    state: ContainerWaiting | ContainerRunning | ContainerExited
    restarts: int = 0
    last: ContainerExited | None = None  # how the run before this one ended
    backoff_s: float = 0.0  # how long the next restart waits

    @property
    def started(self) -> bool:
        return self.last is not None or not isinstance(self.state, ContainerWaiting)


class ConditionState(msgspec.Struct, frozen=True, gc=False):
    """The state of a pod condition and when it last changed."""

    is_true: bool
    since: float

    def updated(self, up: bool, at: float) -> ConditionState:
        return self if up == self.is_true else ConditionState(up, at)


class PodRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    phase: PodPhase
    admitted_at: float
    sandbox_at: float  # when there is a network and the images are there
    init: tuple[ContainerRun, ...]
    main: tuple[ContainerRun, ...]
    sandbox: ConditionState
    initialized: ConditionState
    containers_ready: ConditionState
    ready: ConditionState
    stop_at: float | None = None  # when the containers will have stopped
    stop_code: int = 0
    reason: str = ""
    message: str = ""

    @property
    def is_over(self) -> bool:
        """Return whether nothing will run here again."""
        return self.phase in ("Succeeded", "Failed")


class PodDeletion(msgspec.Struct, frozen=True, gc=False):
    seen_at: float
    grace_s: float


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Carries what the pod's spec and its deletion ask of the node."""

    plan: PodBehaviour
    restart_policy: str = "Always"
    deadline_s: float | None = None
    grace_s: float = 30.0
    deletion: PodDeletion | None = None
    gates_open: bool = True


def start_run(plan: PodBehaviour, at: float, start_s: float) -> PodRun:
    reason = "PodInitializing" if plan.init else "ContainerCreating"
    waiting = ContainerRun(ContainerWaiting(reason))
    no = ConditionState(False, at)
    return PodRun(
        phase="Pending",
        admitted_at=at,
        sandbox_at=at + start_s,
        init=(waiting,) * len(plan.init),
        main=(waiting,) * len(plan.main),
        sandbox=no,
        initialized=ConditionState(not plan.init, at),
        containers_ready=no,
        ready=no,
    )


def advance(run: PodRun, run_spec: RunSpec, now: float) -> PodRun:
    """Return the run at `now`, after every step that fell due."""
    while (due := next_due(run, run_spec)) is not None and due <= now:
        run = _step(run, run_spec, due)
    ready = run.ready.updated(
        run.containers_ready.is_true and run_spec.gates_open, now
    )  # gates open and close without a step
    return run if ready is run.ready else replace(run, ready=ready)


def next_due(run: PodRun, run_spec: RunSpec) -> float | None:
    """Return when the next step happens if nothing else does."""
    if run.is_over:
        return None
    return min((moment for moment, _ in _upcoming_steps(run, run_spec)), default=None)


def after_reboot(run: PodRun, run_spec: RunSpec, died_at: float, back_at: float) -> PodRun:
    """Return the run after a reboot: what ran ended at `died_at`, and what may be restarted starts at `back_at`."""
    run = advance(run, run_spec, died_at)
    if run.is_over:
        return run
    if not run.sandbox.is_true:  # the work on its sandbox stood still meanwhile
        run = replace(run, sandbox_at=back_at + run.sandbox_at - died_at)
    for group in _GROUPS:
        for index, container in enumerate(run.init if group == "init" else run.main):
            run = _replace_container(
                run, group, index, _container_after_crash(container, run_spec, group, index, died_at, back_at)
            )
    return _derive_state(run, run_spec, back_at)


def after_kill(run: PodRun, run_spec: RunSpec, index: int, at: float, reason: str) -> PodRun:
    """Return the run after a main container was killed at `at`; it is restarted as its pod says."""
    run = advance(run, run_spec, at)
    state = run.main[index].state
    if run.is_over or not isinstance(state, ContainerRunning):
        return run
    return _derive_state(
        _after_exit(run, run_spec, "main", index, ContainerExited(SIGKILL_EXIT_CODE, reason, state.since, at)),
        run_spec,
        at,
    )


def after_delay(run: PodRun, seconds: float) -> PodRun:
    """Return the run with the ends of its main containers moved `seconds` later."""
    main = tuple(
        replace(one, state=replace(one.state, ends_at=one.state.ends_at + seconds))
        if isinstance(one.state, ContainerRunning) and one.state.ends_at is not None
        else one
        for one in run.main
    )
    return replace(run, main=main)


def _container_after_crash(
    container: ContainerRun, run_spec: RunSpec, group: _Group, index: int, died_at: float, back_at: float
) -> ContainerRun:
    state = container.state
    if isinstance(state, ContainerWaiting) and state.until is not None:
        return replace(container, state=replace(state, until=max(state.until, back_at)))
    if not isinstance(state, ContainerRunning):
        return container
    end = ContainerExited(LOST_EXIT_CODE, "Unknown", state.since, died_at)
    if not _restartable(
        group, _container_behaviour(run_spec.plan, group, index), run_spec.restart_policy, LOST_EXIT_CODE
    ):
        return replace(container, state=end)
    return replace(container, last=end, state=ContainerWaiting("ContainerCreating", back_at))


# Steps -------------------------------------------------------------------------------------------------------------

_Step: TypeAlias = Callable[[PodRun, RunSpec, float], PodRun]


def _upcoming_steps(run: PodRun, run_spec: RunSpec) -> Iterator[tuple[float, _Step]]:
    """Yield every step that is going to happen to this pod as things stand, with its time."""
    stop = _next_stop_order(run, run_spec)
    if stop is not None:
        yield stop
    if run.stop_at is not None:
        yield run.stop_at, _finish_stop
    elif not run.sandbox.is_true:
        yield run.sandbox_at, _sandbox_ready
    for group in _GROUPS:
        for index, container in enumerate(run.init if group == "init" else run.main):
            state = container.state
            if isinstance(state, ContainerRunning):
                if not state.ready:
                    yield state.ready_at, _ready_step(group, index)
                if state.ends_at is not None:
                    yield state.ends_at, _exit_step(group, index)
            elif isinstance(state, ContainerWaiting) and state.until is not None and run.stop_at is None:
                yield state.until, _restart_step(group, index)


def _step(run: PodRun, run_spec: RunSpec, due: float) -> PodRun:
    _, do = min(_upcoming_steps(run, run_spec), key=lambda pair: pair[0])
    return _derive_state(do(run, run_spec, due), run_spec, due)


def _next_stop_order(run: PodRun, run_spec: RunSpec) -> tuple[float, _Step] | None:
    """Return the earliest order to stop that is not being followed yet."""
    found: list[tuple[float, _Step]] = []
    deletion = run_spec.deletion
    if deletion is not None:
        end, _ = _stop_deadline(run, run_spec, deletion.seen_at, deletion.grace_s)
        if run.stop_at is None or end < run.stop_at:
            found.append((deletion.seen_at, _begin_deletion))
    if run_spec.deadline_s is not None and run.stop_at is None:
        found.append((run.admitted_at + run_spec.deadline_s, _begin_deadline_stop))
    return min(found, key=lambda pair: pair[0], default=None)


def _stop_deadline(run: PodRun, run_spec: RunSpec, at: float, grace_s: float) -> tuple[float, int]:
    """Return when everything that is told to stop at `at` has stopped, and with which exit code.

    preStop hooks are part of the grace period; a container whose hook used all of it still has two seconds.
    """
    plans = (*run_spec.plan.init, *run_spec.plan.main)
    running = [p for c, p in zip((*run.init, *run.main), plans, strict=True) if isinstance(c.state, ContainerRunning)]
    if not running:
        return at, 0
    hook_s = min(max(plan.pre_stop_s for plan in running), grace_s)
    left_s = max(grace_s - hook_s, MIN_GRACE_S) if hook_s else grace_s
    stop_s = run_spec.plan.stop_s
    return (at + hook_s + stop_s, 0) if stop_s <= left_s else (at + hook_s + left_s, SIGKILL_EXIT_CODE)


def _begin_deletion(run: PodRun, run_spec: RunSpec, at: float) -> PodRun:
    assert run_spec.deletion is not None
    end, code = _stop_deadline(run, run_spec, at, run_spec.deletion.grace_s)
    return replace(run, stop_at=end, stop_code=code)


def _begin_deadline_stop(run: PodRun, run_spec: RunSpec, at: float) -> PodRun:
    end, code = _stop_deadline(run, run_spec, at, run_spec.grace_s)
    message = "Pod was active on the node longer than the specified deadline"
    return replace(run, stop_at=end, stop_code=code, reason="DeadlineExceeded", message=message)


def _finish_stop(run: PodRun, run_spec: RunSpec, at: float) -> PodRun:
    return replace(
        run,
        init=tuple(_stop_container(c, run.stop_code, at) for c in run.init),
        main=tuple(_stop_container(c, run.stop_code, at) for c in run.main),
        phase=_phase_after_stop(run),
    )


def _stop_container(container: ContainerRun, code: int, at: float) -> ContainerRun:
    state = container.state
    if isinstance(state, ContainerRunning):
        return replace(container, state=ContainerExited(code, "Completed" if code == 0 else "Error", state.since, at))
    if (
        isinstance(state, ContainerWaiting) and container.last is not None
    ):  # it was between two runs: its last end stands
        return replace(container, state=container.last)
    return container


def _phase_after_stop(run: PodRun) -> PodPhase:
    """Return the phase of a stopped pod: Failed, unless all of its containers ran and ended with exit code 0."""
    ends = [_stop_container(c, run.stop_code, 0.0).state for c in run.main]
    well = all(isinstance(end, ContainerExited) and end.code == 0 for end in ends)
    return "Succeeded" if well and not run.reason else "Failed"


def _sandbox_ready(run: PodRun, run_spec: RunSpec, at: float) -> PodRun:
    return replace(run, sandbox=run.sandbox.updated(True, at))


def _ready_step(group: _Group, index: int) -> _Step:
    def do(run: PodRun, run_spec: RunSpec, at: float) -> PodRun:
        container = getattr(run, group)[index]
        return _replace_container(run, group, index, replace(container, state=replace(container.state, ready=True)))

    return do


def _exit_step(group: _Group, index: int) -> _Step:
    def do(run: PodRun, run_spec: RunSpec, at: float) -> PodRun:
        state = getattr(run, group)[index].state
        code = _container_behaviour(run_spec.plan, group, index).nth_run(getattr(run, group)[index].restarts).exit_code
        return _after_exit(
            run, run_spec, group, index, ContainerExited(code, "Error" if code else "Completed", state.since, at)
        )

    return do


def _restart_step(group: _Group, index: int) -> _Step:
    def do(run: PodRun, run_spec: RunSpec, at: float) -> PodRun:
        container = getattr(run, group)[index]
        return _replace_container(
            run, group, index, _start_container(container, _container_behaviour(run_spec.plan, group, index), at)
        )

    return do


def _after_exit(run: PodRun, run_spec: RunSpec, group: _Group, index: int, end: ContainerExited) -> PodRun:
    """Apply the exit of a container: for good, or until it is restarted."""
    container: ContainerRun = getattr(run, group)[index]
    plan = _container_behaviour(run_spec.plan, group, index)
    if run.stop_at is not None or not _restartable(group, plan, run_spec.restart_policy, end.code):
        return _replace_container(run, group, index, replace(container, state=end))
    pause = 0.0 if end.at - end.since >= BACKOFF_RESET_S else container.backoff_s
    container = replace(container, last=end, backoff_s=min(max(BACKOFF_FIRST_S, 2 * pause), BACKOFF_MAX_S))
    if pause == 0:
        return _replace_container(run, group, index, _start_container(container, plan, end.at))
    return _replace_container(
        run, group, index, replace(container, state=ContainerWaiting("CrashLoopBackOff", end.at + pause))
    )


def _restartable(group: _Group, plan: ContainerBehaviour, policy: str, code: int) -> bool:
    if plan.sidecar:
        return True
    if group == "init":
        return code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def _start_container(container: ContainerRun, plan: ContainerBehaviour, at: float) -> ContainerRun:
    restarts = container.restarts + (container.last is not None)
    run_s = plan.nth_run(restarts).run_s
    running = ContainerRunning(at, at + plan.ready_s, None if run_s is None else at + run_s, plan.ready_s == 0)
    return replace(container, state=running, restarts=restarts)


def _start_or_wait_for_image(container: ContainerRun, plan: ContainerBehaviour, at: float) -> ContainerRun:
    if plan.has_image:
        return _start_container(container, plan, at)
    return replace(container, state=ContainerWaiting(IMAGE_PULL_BACKOFF))


def _container_behaviour(plan: PodBehaviour, group: _Group, index: int) -> ContainerBehaviour:
    return plan.init[index] if group == "init" else plan.main[index]


def _replace_container(run: PodRun, group: _Group, index: int, container: ContainerRun) -> PodRun:
    containers = run.init if group == "init" else run.main
    changed = (*containers[:index], container, *containers[index + 1 :])
    return replace(run, init=changed) if group == "init" else replace(run, main=changed)


# What follows from a step ------------------------------------------------------------------------------------------


def _derive_state(run: PodRun, run_spec: RunSpec, at: float) -> PodRun:
    """Start what may start now, then derive the phase and conditions of the pod from its containers."""
    if not run.is_over and run.stop_at is None and run.sandbox.is_true:
        run = _start_due_containers(run, run_spec.plan, at)
    if not run.is_over:
        run = replace(run, phase=_phase(run, run_spec))
        if run.is_over:
            run = replace(run, init=tuple(_stop_container(c, 0, at) for c in run.init))  # sidecars end with the work
    initialized = _initialized(run, run_spec.plan) or run.phase == "Succeeded"
    containers_ready = not run.is_over and _all_ready(run, run_spec.plan)
    return replace(
        run,
        sandbox=run.sandbox.updated(run.sandbox.is_true and not run.is_over, at),
        initialized=run.initialized.updated(initialized, at),
        containers_ready=run.containers_ready.updated(containers_ready, at),
        ready=run.ready.updated(containers_ready and run_spec.gates_open, at),
    )


def _start_due_containers(run: PodRun, plan: PodBehaviour, at: float) -> PodRun:
    for index, container in enumerate(run.init):
        state = container.state
        if isinstance(state, ContainerWaiting) and state.until is None:
            run = _replace_container(run, "init", index, _start_or_wait_for_image(container, plan.init[index], at))
            container = run.init[index]
        if not _unblocks_next(container, plan.init[index]):
            return run
    if any(isinstance(c.state, ContainerWaiting) and c.state.until is None for c in run.main):
        main = tuple(
            _start_or_wait_for_image(c, p, at) if isinstance(c.state, ContainerWaiting) and c.state.until is None else c
            for c, p in zip(run.main, plan.main, strict=True)
        )
        return replace(run, main=main)
    return run


def _unblocks_next(container: ContainerRun, plan: ContainerBehaviour) -> bool:
    if plan.sidecar:
        return container.started
    return isinstance(container.state, ContainerExited) and container.state.code == 0


def _initialized(run: PodRun, plan: PodBehaviour) -> bool:
    return all(_unblocks_next(c, p) for c, p in zip(run.init, plan.init, strict=True))


def _all_ready(run: PodRun, plan: PodBehaviour) -> bool:
    sidecars = [c for c, p in zip(run.init, plan.init, strict=True) if p.sidecar]
    return all(isinstance(c.state, ContainerRunning) and c.state.ready for c in (*run.main, *sidecars))


def _phase(run: PodRun, run_spec: RunSpec) -> PodPhase:
    for container, plan in zip(run.init, run_spec.plan.init, strict=True):
        if isinstance(container.state, ContainerExited) and container.state.code and not plan.sidecar:
            return "Failed"
    states = [c.state for c in run.main]
    if all(isinstance(state, ContainerExited) for state in states):
        well = all(isinstance(state, ContainerExited) and state.code == 0 for state in states)
        return "Succeeded" if well and not run.reason else "Failed"
    return "Running" if all(c.started for c in run.main) else "Pending"
