"""iproute2's programs `tc` and `ip`: how they are run, and what they show of a device."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Sequence
from typing import Protocol

import msgspec

from koord.host.filesystem import Host
from koord.host.io_error import OPEN, IoError, malformed, unsupported
from koord.host.traffic_class import AddressSide, TrafficState, parse_classes, parse_filters, parse_root
from koord.host.traffic_command import TcCommand, batch, parse_batch_errors

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
