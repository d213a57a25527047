"""The commands of tc that make a device as planned, from what it has: only the difference, in an order that loses no
traffic. They are text; `koord.host.tc` runs them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from koord.host.traffic_class import (
    CGROUP_PREF,
    DEFAULT_MINOR,
    MAJOR,
    SOURCES,
    AddressFamily,
    AddressFilter,
    AddressSide,
    RootQdisc,
    TrafficClass,
    TrafficState,
    TrafficTree,
)

_BURST_BYTES = 1_600  # what a class may send at once, with a millisecond of its rate
_QUANTUM_BYTES = (1_600, 200_000)  # beyond these the kernel warns

TcCommand: TypeAlias = tuple[str, ...]


def make_root(device: str, before: RootQdisc | None) -> list[TcCommand]:
    remove = [] if before is None or before.is_default else [remove_root(device)]
    handle, default = f"{MAJOR}:", f"{DEFAULT_MINOR:x}"
    return [*remove, ("qdisc", "add", "dev", device, "root", "handle", handle, "htb", "default", default)]


def remove_root(device: str) -> TcCommand:
    return ("qdisc", "del", "dev", device, "root")


_FQ_CODEL = {
    "limit": "",
    "flows": "",
    "quantum": "",
    "target": "us",
    "interval": "us",
    "memory_limit": "",
    "drop_batch": "",
}
_RESTORABLE: Mapping[str, Mapping[str, str]] = {"pfifo": {"limit": ""}, "bfifo": {"limit": ""}, "fq_codel": _FQ_CODEL}


def restore_root(device: str, before: RootQdisc) -> TcCommand | str | None:
    """Return the command that makes a qdisc as it was, None where the kernel does so, or why nothing can."""
    if before.is_default:
        return None
    units = _RESTORABLE.get(before.kind)
    if units is None:
        return f"a {before.kind} qdisc that somebody configured could not be restored"
    words: list[str] = []
    for name, value in before.options.items():
        if name == "ecn" and isinstance(value, bool):
            words.append("ecn" if value else "noecn")
        elif name in units and isinstance(value, int):
            words += [name, f"{value}{units[name]}"]
        else:
            return f"{name} of a {before.kind} qdisc that somebody configured could not be restored"
    return ("qdisc", "add", "dev", device, "root", "handle", before.handle, before.kind, *words)


def difference(
    device: str,
    state: TrafficState,
    tree: TrafficTree,
    applied: Mapping[int, TrafficClass],
    side: AddressSide = SOURCES,
) -> list[TcCommand]:
    """Return the commands that make the tree of a device as planned, below a root that is there.

    `applied` are the classes as they were last set, exactly, which tc does not show. Classes are made before the
    filters that lead to them, and removed after.
    """
    wanted = {one.minor: one for one in tree.classes}
    commands = [
        _set_class(device, one)
        for one in tree.classes
        if not _is_shown(one, state.classes.get(one.minor)) or applied.get(one.minor, one) != one
    ]
    if len(state.tables) < len(side.families):
        # Tables that have lost their filters stay as long as there are others, and tc does not show them: all go.
        commands += [_filter("del", device, one) for one in side.families if one.version in state.partial]
        commands += [command for family in side.families for command in _make_table(device, family)]
        state = msgspec.structs.replace(state, filters=())
    # A filter that is there twice is kept once.
    shown = {one.filter: one.handle for one in state.filters}
    planned = set(tree.filters)
    kept = {handle for target, handle in shown.items() if target in planned}
    commands += [
        (*_filter("del", device, side.of_version(one.version)), "handle", one.handle, "u32")
        for one in state.filters
        if one.handle not in kept
    ]
    commands += [_add_filter(device, one, side) for one in sorted(planned - set(shown))]
    if tree.by_cgroup != state.by_cgroup:
        commands.append(_cgroup_filter(device, tree.by_cgroup))
    commands += [
        ("class", "del", "dev", device, "classid", _handle(minor))
        for minor in sorted(state.classes, reverse=True)
        if minor not in wanted
    ]
    return commands


def _is_shown(wanted: TrafficClass, shown: TrafficClass | None) -> bool:
    """Return whether tc shows the class as wanted, as far as its digits go."""
    if shown is None or (shown.parent, shown.priority) != (wanted.parent, wanted.priority):
        return False
    pairs = ((wanted.rate_bits, shown.rate_bits), (wanted.ceil_bits, shown.ceil_bits))
    # tc cuts off what is below a thousandth, and the kernel counts in bytes.
    return all(-8 < exact - printed <= exact // 1000 + 8 for exact, printed in pairs)


def _set_class(device: str, one: TrafficClass) -> TcCommand:
    least, most = _QUANTUM_BYTES
    quantum = min(max(one.rate_bits // 80, least), most)
    parent = f"{MAJOR}:{one.parent:x}" if one.parent else f"{MAJOR}:"
    head = ("class", "replace", "dev", device, "parent", parent, "classid", _handle(one.minor), "htb")
    rates = ("rate", f"{one.rate_bits}bit", "burst", f"{_burst(one.rate_bits)}b")
    ceils = ("ceil", f"{one.ceil_bits}bit", "cburst", f"{_burst(one.ceil_bits)}b")
    return (*head, *rates, *ceils, "prio", str(one.priority), "quantum", str(quantum))


def _burst(bits: int) -> int:
    return bits // 8 // 1000 + _BURST_BYTES


def _make_table(device: str, family: AddressFamily) -> list[TcCommand]:
    head = _filter("add", device, family)
    hash_key = ("hashkey", "mask", "0x000000ff", "at", str(family.offsets[-1]), "link", f"{family.table:x}:")
    return [
        (*head, "handle", f"{family.table:x}:", "u32", "divisor", "256"),
        (*head, "u32", "match", "u32", "0", "0", "at", "0", *hash_key),
    ]


def _add_filter(device: str, one: AddressFilter, side: AddressSide) -> TcCommand:
    address = ipaddress.ip_address(one.address)
    family = side.of_version(address.version)
    bucket = f"{family.table:x}:{address.packed[-1]:x}:"
    header = "ip" if address.version == 4 else "ip6"
    match = ("match", header, family.side, f"{address}/{address.max_prefixlen}", "flowid", _handle(one.minor))
    return (*_filter("add", device, family), "u32", "ht", bucket, *match)


def _cgroup_filter(device: str, wanted: bool) -> TcCommand:
    where = ("dev", device, "parent", f"{MAJOR}:", "protocol", "all", "prio", str(CGROUP_PREF))
    return ("filter", "add", *where, "handle", "1:", "cgroup") if wanted else ("filter", "del", *where, "cgroup")


def _filter(verb: str, device: str, family: AddressFamily) -> TcCommand:
    where = ("parent", f"{MAJOR}:", "protocol", family.protocol, "prio", str(family.pref))
    return ("filter", verb, "dev", device, *where)


def _handle(minor: int) -> str:
    return f"{MAJOR}:{minor:x}"


def batch(commands: Sequence[TcCommand]) -> str:
    """Return the commands as tc's batch mode reads them, one a line."""
    return "".join(f"{' '.join(command)}\n" for command in commands)


_FAILED = re.compile(r"Command failed -:(\d+)")


def parse_batch_errors(said: str) -> dict[int, str]:
    """Return what tc said of each command that failed, by its place in the batch."""
    found: dict[int, str] = {}
    lines: list[str] = []
    for line in said.splitlines():
        failed = _FAILED.match(line)
        if failed is None:
            lines.append(line.strip())
        else:
            found[int(failed[1]) - 1] = _sentence(lines)
            lines = []
    return found


def _sentence(lines: Iterable[str]) -> str:
    return "; ".join(line for line in lines if line and line != "We have an error talking to the kernel")
