"""Incoming traffic of a device, limited by a detour: packets are redirected to an ifb device, where they go out to the
host through classes like those of outgoing traffic.

The detour is made when the classes are there, and ends before they go. Where somebody else handles packets as they
come in (an ingress or clsact qdisc, as networks with eBPF have), there is none: both would act on the same packets.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koord.host.io_error import IoError, malformed
from koord.host.iproute import IprouteProgram, execute, observe, refusal, show
from koord.host.traffic_class import DESTINATIONS, TrafficClass, TrafficState, TrafficTree, is_ours
from koord.host.traffic_command import TcCommand, difference, make_root

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
