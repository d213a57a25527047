"""The lifecycle of one pod on its node, from admission to the end of its last container. Pure.

                      deleted or past its deadline -> stopping -> containers end
    admitted -> sandbox -> init containers, one by one (sidecars stay) -> containers -> ready
                                                     exit -> restarted after a back-off, or for good -> over

`advance` moves a PodRun to a point in time through every step that was due before it, so that a kubelet
that was away
(a partition, a pause of the process) finds the state that its node would have reached. Admission is
decided in
`pod_worker`, the reported status is built in `pod_status`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from koord.embedded.kubelet.behaviour import ContainerPlan, Plan

BACKOFF_FIRST_S = 10.0
BACKOFF_MAX_S = 300.0
BACKOFF_RESET_S = 600.0  # a container that ran this long starts over with its delays
KILLED = 137  # 128 + SIGKILL
LOST = 255  # what a runtime reports of a container that died with its machine

Phase: TypeAlias = Literal["Pending", "Running", "Succeeded", "Failed"]
_Group: TypeAlias = Literal["init", "main"]
_GROUPS: tuple[_Group, ...] = ("init", "main")


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A container that has not started; `until` is when it will, None means when its turn comes."""

    reason: str
    until: float | None = None


class Running(msgspec.Struct, frozen=True, gc=False):
    since: float
    ready_at: float
    ends_at: float | None
    ready: bool = False


class Exited(msgspec.Struct, frozen=True, gc=False):
    code: int
    reason: str
    since: float
    at: float


class ContainerRun(msgspec.Struct, frozen=True, gc=False):
    state: Waiting | Running | Exited
    restarts: int = 0
    last: Exited | None = None  # how the run before this one ended
    backoff_s: float = 0.0  # how long the next restart waits

    @property
    def started(self) -> bool:
        return self.last is not None or not isinstance(self.state, Waiting)


class Flag(msgspec.Struct, frozen=True, gc=False):
    """The state of a pod condition and when it last changed."""

    up: bool
    since: float

    def now(self, up: bool, at: float) -> Flag:
        return self if up == self.up else Flag(up, at)


class Run(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    phase: Phase
    admitted_at: float
    sandbox_at: float  # when there is a network and the images are there
    init: tuple[ContainerRun, ...]
    main: tuple[ContainerRun, ...]
    sandbox: Flag
    initialized: Flag
    containers_ready: Flag
    ready: Flag
    stop_at: float | None = None  # when the containers will have stopped
    stop_code: int = 0
    reason: str = ""
    message: str = ""

    @property
    def over(self) -> bool:
        """Return whether nothing will run here again."""
        return self.phase in ("Succeeded", "Failed")


class Deletion(msgspec.Struct, frozen=True, gc=False):
    seen_at: float
    grace_s: float


class Orders(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Carries what the pod's spec and its deletion ask of the node."""

    plan: Plan
    restart_policy: str = "Always"
    deadline_s: float | None = None
    grace_s: float = 30.0
    deletion: Deletion | None = None
    gates_open: bool = True


def admitted(plan: Plan, at: float, start_s: float) -> Run:
    reason = "PodInitializing" if plan.init else "ContainerCreating"
    waiting = ContainerRun(Waiting(reason))
    no = Flag(False, at)
    return Run(
        phase="Pending",
        admitted_at=at,
        sandbox_at=at + start_s,
        init=(waiting,) * len(plan.init),
        main=(waiting,) * len(plan.main),
        sandbox=no,
        initialized=Flag(not plan.init, at),
        containers_ready=no,
        ready=no,
    )


def advance(run: Run, orders: Orders, now: float) -> Run:
    """Return the run at `now`, after every step that fell due."""
    while (due := next_due(run, orders)) is not None and due <= now:
        run = _step(run, orders, due)
    ready = run.ready.now(run.containers_ready.up and orders.gates_open, now)  # gates open and close without a step
    return run if ready is run.ready else replace(run, ready=ready)


def next_due(run: Run, orders: Orders) -> float | None:
    """Return when the next step happens if nothing else does."""
    if run.over:
        return None
    return min((moment for moment, _ in _moments(run, orders)), default=None)


def rebooted(run: Run, orders: Orders, died_at: float, back_at: float) -> Run:
    """Return the run after a reboot: what ran ended at `died_at`, and what may be restarted starts at
    `back_at`.
    """
    run = advance(run, orders, died_at)
    if run.over:
        return run
    if not run.sandbox.up:  # the work on its sandbox stood still meanwhile
        run = replace(run, sandbox_at=back_at + run.sandbox_at - died_at)
    for group in _GROUPS:
        for index, container in enumerate(run.init if group == "init" else run.main):
            run = _with(run, group, index, _crashed(container, orders, group, index, died_at, back_at))
    return _settled(run, orders, back_at)


def killed(run: Run, orders: Orders, index: int, at: float, reason: str) -> Run:
    """Return the run after a main container was killed at `at`; it is restarted as its pod says."""
    run = advance(run, orders, at)
    state = run.main[index].state
    if run.over or not isinstance(state, Running):
        return run
    return _settled(_ended(run, orders, "main", index, Exited(KILLED, reason, state.since, at)), orders, at)


def delayed(run: Run, seconds: float) -> Run:
    """Return the run with the ends of its main containers moved `seconds` later."""
    main = tuple(
        replace(one, state=replace(one.state, ends_at=one.state.ends_at + seconds))
        if isinstance(one.state, Running) and one.state.ends_at is not None
        else one
        for one in run.main
    )
    return replace(run, main=main)


def _crashed(
    container: ContainerRun, orders: Orders, group: _Group, index: int, died_at: float, back_at: float
) -> ContainerRun:
    state = container.state
    if isinstance(state, Waiting) and state.until is not None:
        return replace(container, state=replace(state, until=max(state.until, back_at)))
    if not isinstance(state, Running):
        return container
    end = Exited(LOST, "Unknown", state.since, died_at)
    if not _restartable(group, _plan_of(orders.plan, group, index), orders.restart_policy, LOST):
        return replace(container, state=end)
    return replace(container, last=end, state=Waiting("ContainerCreating", back_at))


# Steps -------------------------------------------------------------------------------------------------------------

_Do: TypeAlias = Callable[[Run, Orders, float], Run]


def _moments(run: Run, orders: Orders) -> Iterator[tuple[float, _Do]]:
    """Yield every step that is going to happen to this pod as things stand, with its time."""
    stop = _stop(run, orders)
    if stop is not None:
        yield stop
    if run.stop_at is not None:
        yield run.stop_at, _stopped
    elif not run.sandbox.up:
        yield run.sandbox_at, _sandboxed
    for group in _GROUPS:
        for index, container in enumerate(run.init if group == "init" else run.main):
            state = container.state
            if isinstance(state, Running):
                if not state.ready:
                    yield state.ready_at, _marks_ready(group, index)
                if state.ends_at is not None:
                    yield state.ends_at, _ends(group, index)
            elif isinstance(state, Waiting) and state.until is not None and run.stop_at is None:
                yield state.until, _restarts(group, index)


def _step(run: Run, orders: Orders, due: float) -> Run:
    _, do = min(_moments(run, orders), key=lambda pair: pair[0])
    return _settled(do(run, orders, due), orders, due)


def _stop(run: Run, orders: Orders) -> tuple[float, _Do] | None:
    """Return the earliest order to stop that is not being followed yet."""
    found: list[tuple[float, _Do]] = []
    deletion = orders.deletion
    if deletion is not None:
        end, _ = _stopping(run, orders, deletion.seen_at, deletion.grace_s)
        if run.stop_at is None or end < run.stop_at:
            found.append((deletion.seen_at, _told_to_stop))
    if orders.deadline_s is not None and run.stop_at is None:
        found.append((run.admitted_at + orders.deadline_s, _past_deadline))
    return min(found, key=lambda pair: pair[0], default=None)


def _stopping(run: Run, orders: Orders, at: float, grace_s: float) -> tuple[float, int]:
    """Return when everything that is told to stop at `at` has stopped, and with which exit code."""
    running = any(isinstance(c.state, Running) for c in (*run.init, *run.main))
    if not running:
        return at, 0
    stop_s = orders.plan.stop_s
    return (at + stop_s, 0) if stop_s <= grace_s else (at + grace_s, KILLED)


def _told_to_stop(run: Run, orders: Orders, at: float) -> Run:
    assert orders.deletion is not None
    end, code = _stopping(run, orders, at, orders.deletion.grace_s)
    return replace(run, stop_at=end, stop_code=code)


def _past_deadline(run: Run, orders: Orders, at: float) -> Run:
    end, code = _stopping(run, orders, at, orders.grace_s)
    message = "Pod was active on the node longer than the specified deadline"
    return replace(run, stop_at=end, stop_code=code, reason="DeadlineExceeded", message=message)


def _stopped(run: Run, orders: Orders, at: float) -> Run:
    return replace(
        run,
        init=tuple(_halted(c, run.stop_code, at) for c in run.init),
        main=tuple(_halted(c, run.stop_code, at) for c in run.main),
        phase=_last_phase(run),
    )


def _halted(container: ContainerRun, code: int, at: float) -> ContainerRun:
    state = container.state
    if isinstance(state, Running):
        return replace(container, state=Exited(code, "Completed" if code == 0 else "Error", state.since, at))
    if isinstance(state, Waiting) and container.last is not None:  # it was between two runs: its last end stands
        return replace(container, state=container.last)
    return container


def _last_phase(run: Run) -> Phase:
    """Return the phase of a stopped pod: Failed, unless all of its containers ran and ended with exit code 0."""
    ends = [_halted(c, run.stop_code, 0.0).state for c in run.main]
    well = all(isinstance(end, Exited) and end.code == 0 for end in ends)
    return "Succeeded" if well and not run.reason else "Failed"


def _sandboxed(run: Run, orders: Orders, at: float) -> Run:
    return replace(run, sandbox=run.sandbox.now(True, at))


def _marks_ready(group: _Group, index: int) -> _Do:
    def do(run: Run, orders: Orders, at: float) -> Run:
        container = getattr(run, group)[index]
        return _with(run, group, index, replace(container, state=replace(container.state, ready=True)))

    return do


def _ends(group: _Group, index: int) -> _Do:
    def do(run: Run, orders: Orders, at: float) -> Run:
        state = getattr(run, group)[index].state
        code = _plan_of(orders.plan, group, index).exit_code
        return _ended(run, orders, group, index, Exited(code, "Error" if code else "Completed", state.since, at))

    return do


def _restarts(group: _Group, index: int) -> _Do:
    def do(run: Run, orders: Orders, at: float) -> Run:
        container = getattr(run, group)[index]
        return _with(run, group, index, _started(container, _plan_of(orders.plan, group, index), at))

    return do


def _ended(run: Run, orders: Orders, group: _Group, index: int, end: Exited) -> Run:
    """Apply the exit of a container: for good, or until it is restarted."""
    container: ContainerRun = getattr(run, group)[index]
    plan = _plan_of(orders.plan, group, index)
    if run.stop_at is not None or not _restartable(group, plan, orders.restart_policy, end.code):
        return _with(run, group, index, replace(container, state=end))
    pause = 0.0 if end.at - end.since >= BACKOFF_RESET_S else container.backoff_s
    container = replace(container, last=end, backoff_s=min(max(BACKOFF_FIRST_S, 2 * pause), BACKOFF_MAX_S))
    if pause == 0:
        return _with(run, group, index, _started(container, plan, end.at))
    return _with(run, group, index, replace(container, state=Waiting("CrashLoopBackOff", end.at + pause)))


def _restartable(group: _Group, plan: ContainerPlan, policy: str, code: int) -> bool:
    if plan.sidecar:
        return True
    if group == "init":
        return code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def _started(container: ContainerRun, plan: ContainerPlan, at: float) -> ContainerRun:
    ends_at = None if plan.run_s is None else at + plan.run_s
    running = Running(at, at + plan.ready_s, ends_at, plan.ready_s == 0)
    return replace(container, state=running, restarts=container.restarts + (container.last is not None))


def _plan_of(plan: Plan, group: _Group, index: int) -> ContainerPlan:
    return plan.init[index] if group == "init" else plan.main[index]


def _with(run: Run, group: _Group, index: int, container: ContainerRun) -> Run:
    containers = run.init if group == "init" else run.main
    changed = (*containers[:index], container, *containers[index + 1 :])
    return replace(run, init=changed) if group == "init" else replace(run, main=changed)


# What follows from a step ------------------------------------------------------------------------------------------


def _settled(run: Run, orders: Orders, at: float) -> Run:
    """Start what may start now, then derive the phase and conditions of the pod from its containers."""
    if not run.over and run.stop_at is None and run.sandbox.up:
        run = _launched(run, orders.plan, at)
    if not run.over:
        run = replace(run, phase=_phase(run, orders))
        if run.over:
            run = replace(run, init=tuple(_halted(c, 0, at) for c in run.init))  # sidecars end with the work
    initialized = _initialized(run, orders.plan) or run.phase == "Succeeded"
    containers_ready = not run.over and _all_ready(run, orders.plan)
    return replace(
        run,
        sandbox=run.sandbox.now(run.sandbox.up and not run.over, at),
        initialized=run.initialized.now(initialized, at),
        containers_ready=run.containers_ready.now(containers_ready, at),
        ready=run.ready.now(containers_ready and orders.gates_open, at),
    )


def _launched(run: Run, plan: Plan, at: float) -> Run:
    for index, container in enumerate(run.init):
        state = container.state
        if isinstance(state, Waiting) and state.until is None:
            run = _with(run, "init", index, _started(container, plan.init[index], at))
            container = run.init[index]
        if not _lets_pass(container, plan.init[index]):
            return run
    if any(isinstance(c.state, Waiting) and c.state.until is None for c in run.main):
        main = tuple(
            _started(c, p, at) if isinstance(c.state, Waiting) and c.state.until is None else c
            for c, p in zip(run.main, plan.main, strict=True)
        )
        return replace(run, main=main)
    return run


def _lets_pass(container: ContainerRun, plan: ContainerPlan) -> bool:
    if plan.sidecar:
        return container.started
    return isinstance(container.state, Exited) and container.state.code == 0


def _initialized(run: Run, plan: Plan) -> bool:
    return all(_lets_pass(c, p) for c, p in zip(run.init, plan.init, strict=True))


def _all_ready(run: Run, plan: Plan) -> bool:
    sidecars = [c for c, p in zip(run.init, plan.init, strict=True) if p.sidecar]
    return all(isinstance(c.state, Running) and c.state.ready for c in (*run.main, *sidecars))


def _phase(run: Run, orders: Orders) -> Phase:
    for container, plan in zip(run.init, orders.plan.init, strict=True):
        if isinstance(container.state, Exited) and container.state.code and not plan.sidecar:
            return "Failed"
    states = [c.state for c in run.main]
    if all(isinstance(state, Exited) for state in states):
        well = all(isinstance(state, Exited) and state.code == 0 for state in states)
        return "Succeeded" if well and not run.reason else "Failed"
    return "Running" if all(c.started for c in run.main) else "Pending"
