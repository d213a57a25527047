"""Traffic control of one network device by iproute2's `tc`: its qdisc, classes and filters made as planned.

The qdisc that stands at the root before is recorded in a file first, and made again when nothing is planned any more.
A qdisc of ours is taken up as it is after a restart; traffic does not notice.
"""

from __future__ import annotations

import enum
import errno
import shutil
import subprocess
from collections.abc import Sequence
from typing import Protocol

import msgspec

from koord.host.filesystem import Host
from koord.host.io_error import ABSENT, OPEN, IoError, malformed, unsupported
from koord.host.traffic_class import (
    RootQdisc,
    TrafficClass,
    TrafficPlan,
    TrafficState,
    is_ours,
    parse_classes,
    parse_filters,
    parse_root,
)
from koord.host.traffic_command import (
    TcCommand,
    batch,
    difference,
    make_root,
    parse_batch_errors,
    remove_root,
    restore_root,
)

_SEARCHED = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin"
_PATIENCE_S = 10.0
_UP, _REJECT = 0x1, 0x200  # flags of a route


class TrafficOutcome(enum.Enum):
    KEPT = "kept"  # all was as planned
    CHANGED = "changed"
    RESTORED = "restored"  # nothing is planned, and the qdisc from before is back
    LEFT = "left"  # nothing is planned, and nothing of ours was there
    UNSUPPORTED = "unsupported"
    FAILED = "failed"


class TrafficResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a plan. `changes` are the commands that tc took, `problems` what it or the plan said."""

    device: str
    outcome: TrafficOutcome
    changes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class TcAnswer(msgspec.Struct, frozen=True):
    code: int
    text: str
    errors: str


class TcProgram(Protocol):
    def __call__(self, words: Sequence[str], text: str = "") -> TcAnswer | IoError:
        """Run tc with these words, and the text as its input."""
        ...


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """The file that says which qdisc stood at the root of a device; None for none."""

    device: str
    root: RootQdisc | None


class TrafficControl:
    """The device of the default route, and what it had before. Calls wait for tc, some milliseconds each."""

    def __init__(self, host: Host, record_path: str, run: TcProgram | None = None, device: str = "") -> None:
        """`device` is in place of the one with the default route."""
        self._host = host
        self._record_path = record_path
        self._run = run_tc if run is None else run
        self._device = device
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
        state = self._observe(device)
        if isinstance(state, IoError):
            return _failed(device, state)
        commands: list[TcCommand] = []
        if not is_ours(state, record is not None):
            refusal = self._record_root(device, state.root)
            if refusal is not None:
                return refusal
            commands = make_root(device, state.root)
            state, self._applied = TrafficState(), {}
        commands += difference(device, state, plan, self._applied)
        refused = self._execute(commands)
        if isinstance(refused, IoError):
            return _failed(device, refused)
        self._applied = {} if refused else {one.minor: one for one in plan.classes}
        done = tuple(" ".join(command) for number, command in enumerate(commands) if number not in refused)
        said = tuple(f"{' '.join(commands[number])}: {why}" for number, why in refused.items())
        outcome = TrafficOutcome.FAILED if said else TrafficOutcome.CHANGED if done else TrafficOutcome.KEPT
        return TrafficResult(device=device, outcome=outcome, changes=done, problems=(*plan.problems, *said))

    def _record_root(self, device: str, root: RootQdisc | None) -> TrafficResult | None:
        """Record the present root before it goes; return why it must not go."""
        if root is not None and isinstance(why := restore_root(device, root), str):
            problem = f"{why}, so it is not replaced: remove it from {device} first"
            return TrafficResult(device=device, outcome=TrafficOutcome.UNSUPPORTED, problems=(problem,))
        text = msgspec.json.encode(_Record(device=device, root=root)).decode()
        refused = self._host.replace_file(self._record_path, text)
        return None if refused is None else _failed(device, refused)

    def _restore(self, device: str, record: _Record | None) -> TrafficResult:
        """Remove a qdisc of ours. A device that is gone has none."""
        self._applied = {}
        state = self._observe(device)
        if isinstance(state, IoError) and record is None:
            return TrafficResult(device=device, outcome=TrafficOutcome.LEFT)  # no tc, no qdisc of ours
        if isinstance(state, IoError) and not state.vanished:
            return _failed(device, state)
        commands: list[TcCommand] = []
        if not isinstance(state, IoError) and is_ours(state, record is not None):
            commands.append(remove_root(device))
            again = None if record is None or record.root is None else restore_root(device, record.root)
            commands += [again] if isinstance(again, tuple) else []
        refused = self._execute(commands)
        if isinstance(refused, IoError) or refused:
            why = refused if isinstance(refused, IoError) else "; ".join(refused.values())
            return TrafficResult(device=device, outcome=TrafficOutcome.FAILED, problems=(str(why),))
        kept = self._host.remove_file(self._record_path)
        if kept is not None:
            return _failed(device, kept)
        done = tuple(" ".join(command) for command in commands)
        outcome = TrafficOutcome.RESTORED if done else TrafficOutcome.LEFT
        return TrafficResult(device=device, outcome=outcome, changes=done)

    def _observe(self, device: str) -> TrafficState | IoError:
        texts: list[str] = []
        for words in (("-json", "qdisc"), ("class",), ("filter",)):
            answer = self._run((*words, "show", "dev", device))
            if isinstance(answer, IoError):
                return answer
            if answer.code != 0:
                return _refusal(f"tc {' '.join(words)} show dev {device}", answer)
            texts.append(answer.text)
        try:
            root = parse_root(texts[0])
        except msgspec.DecodeError as error:
            return malformed("tc -json qdisc show", str(error))
        shown = parse_filters(texts[2])
        return msgspec.structs.replace(shown, root=root, classes=parse_classes(texts[1]))

    def _execute(self, commands: Sequence[TcCommand]) -> dict[int, str] | IoError:
        """Run all commands; return what tc said of those that failed."""
        if not commands:
            return {}
        answer = self._run(("-force", "-batch", "-"), batch(commands))
        if isinstance(answer, IoError):
            return answer
        refused = parse_batch_errors(answer.errors)
        return _refusal("tc -batch", answer) if answer.code != 0 and not refused else refused

    def _read_record(self) -> _Record | IoError | None:
        text = self._host.read(self._record_path)
        if isinstance(text, IoError):
            return None if text.vanished else text
        try:
            return msgspec.json.decode(text, type=_Record)
        except msgspec.DecodeError as error:
            return malformed(self._record_path, f"{error}; delete it if {text[:80]!r} is not needed")


def run_tc(words: Sequence[str], text: str = "", *, prefix: Sequence[str] = ()) -> TcAnswer | IoError:
    """Run the tc of this machine; `prefix` is a command that runs it elsewhere, as in another network namespace."""
    program = shutil.which("tc") or shutil.which("tc", path=_SEARCHED)
    if program is None:
        return unsupported("tc", "this machine has no such program: install iproute2")
    try:
        done = subprocess.run(
            [*prefix, program, *words], input=text, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return malformed(program, str(error))
    return TcAnswer(done.returncode, done.stdout, done.stderr)


def check_supported() -> IoError | None:
    """Return None when this machine has tc, and the kernel lets it look at devices."""
    answer = run_tc(("-json", "qdisc", "show"))
    if isinstance(answer, IoError):
        return answer
    return None if answer.code == 0 else _refusal("tc", answer)


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


def _refusal(what: str, answer: TcAnswer) -> IoError:
    said = " ".join(answer.errors.split())
    if "Cannot find device" in said:
        return IoError(what, OPEN, errno.ENODEV, said)
    return malformed(what, said or f"it ended with {answer.code}")


def _failed(device: str, problem: IoError) -> TrafficResult:
    absent = problem.stage == ABSENT
    outcome = TrafficOutcome.UNSUPPORTED if absent else TrafficOutcome.FAILED
    return TrafficResult(device=device, outcome=outcome, problems=(str(problem),))
