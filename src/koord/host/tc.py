"""Traffic control of one network device by iproute2's `tc`: its qdisc, classes and filters made as planned.

The qdisc that stands at the root before is recorded in a file first, and made again when nothing is planned any more.
A qdisc of ours is taken up as it is after a restart; traffic does not notice.
"""

from __future__ import annotations

import enum

import msgspec

from koord.host.filesystem import Host
from koord.host.ifb import DirectionResult, IngressDetour
from koord.host.io_error import ABSENT, IoError, malformed
from koord.host.iproute import IprouteProgram, default_device, execute, observe, run_iproute, show
from koord.host.traffic_class import SOURCES, RootQdisc, TrafficClass, TrafficPlan, TrafficState, is_ours
from koord.host.traffic_command import TcCommand, difference, make_root, remove_root, restore_root


class TrafficOutcome(enum.Enum):
    KEPT = "kept"  # all was as planned
    CHANGED = "changed"
    RESTORED = "restored"  # nothing is planned, and the qdisc from before is back
    LEFT = "left"  # nothing is planned, and nothing of ours was there
    UNSUPPORTED = "unsupported"
    FAILED = "failed"


class TrafficResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a plan. `changes` are the commands that were taken, `problems` what they or the plan said."""

    device: str
    outcome: TrafficOutcome
    changes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """The file that says which qdisc stood at the root of a device; None for none."""

    device: str
    root: RootQdisc | None


class TrafficControl:
    """The device of the default route, and what it had before. Calls wait for tc, some milliseconds each."""

    def __init__(self, host: Host, record_path: str, run: IprouteProgram = run_iproute, device: str = "") -> None:
        """`device` is in place of the one with the default route."""
        self._host = host
        self._record_path = record_path
        self._run = run
        self._device = device
        self._detour = IngressDetour(run)
        self._applied: dict[int, TrafficClass] = {}

    def apply(self, plan: TrafficPlan | None) -> TrafficResult:
        """Make the device as planned. Without a plan it stays as it is: no NodeSLO was seen yet."""
        if plan is None:
            return TrafficResult(device="", outcome=TrafficOutcome.LEFT)
        device = self._device or default_device(self._host)
        record = self._read_record()
        if isinstance(record, IoError):
            return _failed("", record)
        if isinstance(device, IoError):
            return _failed("", device) if plan.enabled or record is None else self._restore(record.device, record)
        if record is not None and record.device != device:  # the default route has moved
            moved = self._restore(record.device, record)
            if moved.outcome not in (TrafficOutcome.RESTORED, TrafficOutcome.LEFT):
                return moved
            record = None
        return self._establish(device, plan, record) if plan.enabled else self._restore(device, record)

    def _establish(self, device: str, plan: TrafficPlan, record: _Record | None) -> TrafficResult:
        state = observe(self._run, device, SOURCES)
        if isinstance(state, IoError):
            return _failed(device, state)
        commands: list[TcCommand] = []
        if not is_ours(state, record is not None):
            refusal = self._record_root(device, state.root)
            if refusal is not None:
                return refusal
            commands = make_root(device, state.root)
            state, self._applied = TrafficState(), {}
        commands += difference(device, state, plan.egress, self._applied)
        refused = execute(self._run, commands)
        if isinstance(refused, IoError):
            return _failed(device, refused)
        self._applied = {} if refused else {one.minor: one for one in plan.egress.classes}
        done = tuple(" ".join(command) for number, command in enumerate(commands) if number not in refused)
        said = tuple(f"{' '.join(commands[number])}: {why}" for number, why in refused.items())
        incoming = self._detour.remove(device) if plan.ingress is None else self._detour.establish(device, plan.ingress)
        return _result(device, plan.problems, DirectionResult(changes=done, problems=said), incoming)

    def _record_root(self, device: str, root: RootQdisc | None) -> TrafficResult | None:
        """Record the present root before it goes; return why it must not go."""
        if root is not None and isinstance(why := restore_root(device, root), str):
            problem = f"{why}, so it is not replaced: remove it from {device} first"
            return TrafficResult(device=device, outcome=TrafficOutcome.UNSUPPORTED, problems=(problem,))
        text = msgspec.json.encode(_Record(device=device, root=root)).decode()
        refused = self._host.replace_file(self._record_path, text)
        return None if refused is None else _failed(device, refused)

    def _restore(self, device: str, record: _Record | None) -> TrafficResult:
        """Remove what is ours. A device that is gone has nothing."""
        self._applied = {}
        state = observe(self._run, device, SOURCES)
        if isinstance(state, IoError) and record is None:
            return TrafficResult(device=device, outcome=TrafficOutcome.LEFT)  # no tc, no qdisc of ours
        if isinstance(state, IoError) and not state.vanished:
            return _failed(device, state)
        incoming = self._detour.remove(device)
        if incoming.problems:
            return TrafficResult(device=device, outcome=TrafficOutcome.FAILED, problems=incoming.problems)
        commands: list[TcCommand] = []
        if not isinstance(state, IoError) and is_ours(state, record is not None):
            commands.append(remove_root(device))
            again = None if record is None or record.root is None else restore_root(device, record.root)
            commands += [again] if isinstance(again, tuple) else []
        refused = execute(self._run, commands)
        if isinstance(refused, IoError) or refused:
            why = refused if isinstance(refused, IoError) else "; ".join(refused.values())
            return TrafficResult(device=device, outcome=TrafficOutcome.FAILED, problems=(str(why),))
        kept = self._host.remove_file(self._record_path)
        if kept is not None:
            return _failed(device, kept)
        done = (*incoming.changes, *(" ".join(command) for command in commands))
        outcome = TrafficOutcome.RESTORED if done else TrafficOutcome.LEFT
        return TrafficResult(device=device, outcome=outcome, changes=done)

    def _read_record(self) -> _Record | IoError | None:
        text = self._host.read(self._record_path)
        if isinstance(text, IoError):
            return None if text.vanished else text
        try:
            return msgspec.json.decode(text, type=_Record)
        except msgspec.DecodeError as error:
            return malformed(self._record_path, f"{error}; delete it if {text[:80]!r} is not needed")


def check_supported(run: IprouteProgram = run_iproute) -> IoError | None:
    """Return None when this machine has tc, and the kernel lets it look at devices."""
    answer = show(run, "tc", "-json", "qdisc", "show")
    return answer if isinstance(answer, IoError) else None


def _result(device: str, said: tuple[str, ...], *directions: DirectionResult) -> TrafficResult:
    changes = tuple(change for one in directions for change in one.changes)
    problems = tuple(problem for one in directions for problem in one.problems)
    outcome = TrafficOutcome.FAILED if problems else TrafficOutcome.CHANGED if changes else TrafficOutcome.KEPT
    return TrafficResult(device=device, outcome=outcome, changes=changes, problems=(*said, *problems))


def _failed(device: str, problem: IoError) -> TrafficResult:
    outcome = TrafficOutcome.UNSUPPORTED if problem.stage == ABSENT else TrafficOutcome.FAILED
    return TrafficResult(device=device, outcome=outcome, problems=(str(problem),))
