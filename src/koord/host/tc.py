"""Traffic control of one network device by iproute2's `tc` and `ip`: qdisc, classes and filters made as planned.
Incoming traffic is limited by a detour: packets are redirected to an ifb device, where they go out to the host
through classes like those of outgoing traffic.

The qdisc that stands at the root before is recorded in a file first, and made again when nothing is planned any more.
A qdisc of ours is taken up as it is after a restart; traffic does not notice.

The detour is made when the classes are there, and ends before they go. Where somebody else handles packets as they
come in (an ingress or clsact qdisc, as networks with eBPF have), there is none: both would act on the same packets.
"""

from __future__ import annotations

import enum
import errno
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from koord.host.filesystem import Host
from koord.host.io_error import ABSENT, OPEN, IoError, malformed, unsupported
from koord.host.traffic_class import (
    DESTINATIONS,
    SOURCES,
    AddressSide,
    RootQdisc,
    TcCommand,
    TrafficClass,
    TrafficPlan,
    TrafficState,
    TrafficTree,
    batch,
    difference,
    is_ours,
    make_root,
    parse_batch_errors,
    parse_classes,
    parse_filters,
    parse_root,
    remove_root,
    restore_root,
)

_SEARCHED = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin"
_PATIENCE_S = 10.0
_UP, _REJECT = 0x1, 0x200  # flags of a route


class ProgramAnswer(msgspec.Struct, frozen=True):
    code: int
    text: str
    errors: str


class IprouteProgram(Protocol):
    def __call__(self, words: Sequence[str], text: str = "") -> ProgramAnswer | IoError:
        """Run `tc` or `ip`, the first of the words, with the text as its input."""


def run_iproute(words: Sequence[str], text: str = "", *, prefix: Sequence[str] = ()) -> ProgramAnswer | IoError:
    """Run a program of this machine; `prefix` is a command that runs it elsewhere, as in another network namespace."""
    name, *rest = words
    program = shutil.which(name) or shutil.which(name, path=_SEARCHED)
    if program is None:
        return unsupported(name, "this machine has no such program: install iproute2")
    try:
        done = subprocess.run(
            [*prefix, program, *rest], input=text, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return malformed(program, str(error))
    return ProgramAnswer(done.returncode, done.stdout, done.stderr)


def show(run: IprouteProgram, *words: str) -> str | IoError:
    """Return what a program prints, or why it does not; a device that is not there is ENODEV."""
    answer = run(words)
    if isinstance(answer, IoError):
        return answer
    return answer.text if answer.code == 0 else refusal(" ".join(words), answer)


def refusal(what: str, answer: ProgramAnswer) -> IoError:
    said = " ".join(answer.errors.split())
    if "Cannot find device" in said or "does not exist" in said:
        return IoError(what, OPEN, errno.ENODEV, said)
    return malformed(what, said or f"it ended with {answer.code}")


def observe(run: IprouteProgram, device: str, side: AddressSide) -> TrafficState | IoError:
    """Return the root, the classes and the filters of a device."""
    qdiscs = show(run, "tc", "-json", "qdisc", "show", "dev", device)
    classes = qdiscs if isinstance(qdiscs, IoError) else show(run, "tc", "class", "show", "dev", device)
    filters = classes if isinstance(classes, IoError) else show(run, "tc", "filter", "show", "dev", device)
    if isinstance(qdiscs, IoError) or isinstance(classes, IoError) or isinstance(filters, IoError):
        return next(one for one in (qdiscs, classes, filters) if isinstance(one, IoError))
    try:
        root = parse_root(qdiscs)
    except msgspec.DecodeError as error:
        return malformed("tc -json qdisc show", str(error))
    return msgspec.structs.replace(parse_filters(filters, side), root=root, classes=parse_classes(classes))


def execute(run: IprouteProgram, commands: Sequence[TcCommand]) -> dict[int, str] | IoError:
    """Run commands of tc, all of them; return what it said of those that failed, by their place."""
    if not commands:
        return {}
    answer = run(("tc", "-force", "-batch", "-"), batch(commands))
    if isinstance(answer, IoError):
        return answer
    refused = parse_batch_errors(answer.errors)
    return refusal("tc -batch", answer) if answer.code != 0 and not refused else refused


def default_device(host: Host) -> str | IoError:
    """Return the device of the default route with the lowest metric, of IPv4 or else of IPv6."""
    found: list[tuple[int, str]] = []
    for name, read in (("route", _default_v4), ("ipv6_route", _default_v6)):
        text = host.read(f"{host.paths.proc}/net/{name}")
        if isinstance(text, str):
            found = sorted(one for line in text.splitlines() if (one := read(line.split())) is not None)
        if found:
            return found[0][1]
    return unsupported(f"{host.paths.proc}/net/route", "there is no default route, whose device is to be limited")


def _default_v4(fields: list[str]) -> tuple[int, str] | None:
    """Read a row of /proc/net/route: device, destination, gateway, flags, ..., metric, mask."""
    if len(fields) < 8 or fields[1] != "0" * 8 or fields[7] != "0" * 8 or not _is_used(fields[3]):
        return None
    return int(fields[6]), fields[0]


def _default_v6(fields: list[str]) -> tuple[int, str] | None:
    """Read a row of /proc/net/ipv6_route: destination, length, ..., metric, references, uses, flags, device."""
    if len(fields) < 10 or fields[0] != "0" * 32 or fields[1] != "00" or not _is_used(fields[8]):
        return None
    return int(fields[5], 16), fields[9]


def _is_used(flags: str) -> bool:
    return int(flags, 16) & (_UP | _REJECT) == _UP


IFB = "koord-ifb"
_QUEUE = "1000"  # packets; an ifb has 32 unless told otherwise
_INGRESS_KINDS = ("ingress", "clsact")
_PREF = "10"


class DirectionResult(msgspec.Struct, frozen=True, kw_only=True):
    changes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class IngressDetour:
    """The ifb device and the redirection to it."""

    def __init__(self, run: IprouteProgram) -> None:
        self._run = run
        self._applied: dict[int, TrafficClass] = {}

    def establish(self, device: str, tree: TrafficTree) -> DirectionResult:
        """Make the classes of the ifb device as planned, and lead the packets of the device there."""
        redirected = self._is_redirected(device)
        if isinstance(redirected, str | IoError):
            return DirectionResult(problems=(str(redirected),))
        changes: list[str] = []
        problem = self._make_link(changes)
        state = problem if problem is not None else observe(self._run, IFB, DESTINATIONS)
        if isinstance(state, IoError):
            return DirectionResult(changes=tuple(changes), problems=(str(state),))
        commands: list[TcCommand] = []
        if not is_ours(state, recorded=True):  # the device is ours, whatever it has
            commands, state, self._applied = make_root(IFB, state.root), TrafficState(), {}
        commands += difference(IFB, state, tree, self._applied, DESTINATIONS)
        commands += [] if redirected else _redirect(device)
        result = self._execute(commands, changes)
        self._applied = {} if result.problems else {one.minor: one for one in tree.classes}
        return result

    def remove(self, device: str) -> DirectionResult:
        """End the redirection and remove the ifb device, if there is one."""
        self._applied = {}
        link = show(self._run, "ip", "-json", "link", "show", "dev", IFB)
        if isinstance(link, IoError):
            return DirectionResult(problems=() if link.vanished else (str(link),))
        changes: list[str] = []
        if self._is_redirected(device) is True:
            ended = self._execute([("qdisc", "del", "dev", device, "ingress")], changes)
            if ended.problems:
                return ended  # packets that go to a device that is not there are lost
        problem = self._ip(changes, "link", "del", "dev", IFB)
        return DirectionResult(changes=tuple(changes), problems=() if problem is None else (str(problem),))

    def _is_redirected(self, device: str) -> bool | str | IoError:
        """Return whether packets go to the ifb device, or why they must not."""
        shown = show(self._run, "tc", "-json", "qdisc", "show", "dev", device)
        if isinstance(shown, IoError):
            return shown
        try:
            kinds = [one.get("kind") for one in msgspec.json.decode(shown or "[]", type=list[dict[str, Any]])]
        except msgspec.DecodeError as error:
            return malformed("tc -json qdisc show", str(error))
        found = next((kind for kind in kinds if kind in _INGRESS_KINDS), None)
        if found is None:
            return False
        filters = show(self._run, "tc", "filter", "show", "dev", device, "parent", "ffff:")
        if isinstance(filters, IoError) or f"to device {IFB})" in filters:
            return filters if isinstance(filters, IoError) else True
        return f"incoming traffic is not limited: {device} has a {found} qdisc of somebody else"

    def _make_link(self, changes: list[str]) -> IoError | None:
        link = show(self._run, "ip", "-json", "link", "show", "dev", IFB)
        if isinstance(link, IoError) and not link.vanished:
            return link
        problem = None
        if isinstance(link, IoError):
            problem = self._ip(changes, "link", "add", IFB, "txqueuelen", _QUEUE, "type", "ifb")
        if problem is None and (isinstance(link, IoError) or '"UP"' not in link):
            problem = self._ip(changes, "link", "set", "dev", IFB, "up")
        return problem

    def _ip(self, changes: list[str], *words: str) -> IoError | None:
        answer = self._run(("ip", *words))
        if isinstance(answer, IoError):
            return answer
        if answer.code != 0:
            return refusal(f"ip {' '.join(words)}", answer)
        changes.append(f"ip {' '.join(words)}")
        return None

    def _execute(self, commands: list[TcCommand], changes: list[str]) -> DirectionResult:
        refused = execute(self._run, commands)
        if isinstance(refused, IoError):
            return DirectionResult(changes=tuple(changes), problems=(str(refused),))
        done = [" ".join(command) for number, command in enumerate(commands) if number not in refused]
        said = tuple(f"{' '.join(commands[number])}: {why}" for number, why in refused.items())
        return DirectionResult(changes=(*changes, *done), problems=said)


def _redirect(device: str) -> list[TcCommand]:
    everything = ("u32", "match", "u32", "0", "0", "action", "mirred", "egress", "redirect", "dev", IFB)
    return [
        ("qdisc", "add", "dev", device, "handle", "ffff:", "ingress"),
        ("filter", "add", "dev", device, "parent", "ffff:", "protocol", "all", "prio", _PREF, *everything),
    ]


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
