"""Classes and filters of one network device: what is wanted, what tc shows, and the commands that lead from one to the
other: only the difference, in an order that loses no traffic. They are text; `koord.host.tc` runs them.

The root is an HTB qdisc with the handle 1:. Filters compare an address of packets in a u32 hash table of 256 buckets,
by the last byte of the address, so that a packet meets few of them however many pods a node has.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

MAJOR = 1  # of the handles of the qdisc and its classes
ROOT_MINOR, DEFAULT_MINOR = 1, 2
LEAST_RATE_BITS = 8_000  # HTB takes no rate of 0, and tc no rate at which a burst takes minutes
CGROUP_PREF = 12
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class TrafficClass(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One HTB class, by the minor number of its handle. `parent` is that of another class, 0 for the qdisc."""

    minor: int
    parent: int = ROOT_MINOR
    rate_bits: int
    ceil_bits: int
    priority: int = 0


class AddressFilter(msgspec.Struct, frozen=True, kw_only=True, gc=False, order=True):
    """Packets from one address, or to it, go to one class."""

    address: str
    minor: int


class TrafficTree(msgspec.Struct, frozen=True, kw_only=True):
    """All classes and filters of one direction. Parents come before their children."""

    classes: tuple[TrafficClass, ...] = ()
    filters: tuple[AddressFilter, ...] = ()
    by_cgroup: bool = False  # sockets of cgroups with a net_cls.classid go to that class


class TrafficPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted state of a device. Not enabled: the qdisc that was there before. Ingress may be left alone."""

    enabled: bool
    egress: TrafficTree = TrafficTree()
    ingress: TrafficTree | None = None
    problems: tuple[str, ...] = ()


class RootQdisc(msgspec.Struct, frozen=True, kw_only=True):
    """The root qdisc as tc shows it. A handle of 0: is the kernel's own default, which it makes anew by itself."""

    kind: str
    handle: str
    options: Mapping[str, Any] = {}

    @property
    def is_default(self) -> bool:
        return self.handle == "0:"


class ShownFilter(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    version: int  # of IP
    filter: AddressFilter


class TrafficState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a device as tc shows it. Rates have the few digits that tc prints."""

    root: RootQdisc | None = None
    classes: Mapping[int, TrafficClass] = {}
    filters: tuple[ShownFilter, ...] = ()
    tables: frozenset[int] = frozenset()  # IP versions whose hash table is there, and packets are led to it
    partial: frozenset[int] = frozenset()  # IP versions that have filters of any kind in their place
    by_cgroup: bool = False


class AddressFamily(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The place of one IP version's filters, and of the address that they compare in its header."""

    version: int
    protocol: str
    side: str  # src or dst
    pref: int
    table: int
    offsets: tuple[int, ...]  # of the address, four bytes each


class AddressSide(msgspec.Struct, frozen=True):
    """Both IP versions, as filters see one of the two addresses of a packet."""

    families: tuple[AddressFamily, ...]

    def of_version(self, version: int) -> AddressFamily:
        return next(family for family in self.families if family.version == version)

    def of_table(self, table: str) -> AddressFamily | None:
        return next((family for family in self.families if f"{family.table:x}" == table), None)


def _side(name: str, v4: tuple[int, ...], v6: tuple[int, ...]) -> AddressSide:
    return AddressSide(
        (
            AddressFamily(version=4, protocol="ip", side=name, pref=10, table=2, offsets=v4),
            AddressFamily(version=6, protocol="ipv6", side=name, pref=11, table=3, offsets=v6),
        )
    )


SOURCES = _side("src", (12,), (8, 12, 16, 20))
DESTINATIONS = _side("dst", (16,), (24, 28, 32, 36))


def parse_root(shown: str) -> RootQdisc | None:
    """Parse `tc -json qdisc show`. Raises msgspec.DecodeError."""
    for one in msgspec.json.decode(shown or "[]", type=list[dict[str, Any]]):
        if one.get("root"):
            options = one.get("options")
            return RootQdisc(
                kind=str(one.get("kind", "")),
                handle=str(one.get("handle", "")),
                options=options if isinstance(options, dict) else {},
            )
    return None


_CLASS = re.compile(r"class htb 1:([0-9a-f]+) (?:root|parent 1:([0-9a-f]+)) (.*)")
_RATE = re.compile(r"\brate (\d+)([KMGT]?)bit ceil (\d+)([KMGT]?)bit")
_PRIORITY = re.compile(r"\bprio (\d+)")


def parse_classes(shown: str) -> dict[int, TrafficClass]:
    """Parse `tc class show`, which has no JSON in many versions."""
    found: dict[int, TrafficClass] = {}
    for line in shown.splitlines():
        head = _CLASS.match(line)
        rates = None if head is None else _RATE.search(head[3])
        if head is None or rates is None:
            continue
        priority = _PRIORITY.search(head[3])
        minor = int(head[1], 16)
        found[minor] = TrafficClass(
            minor=minor,
            parent=int(head[2] or "0", 16),
            rate_bits=int(rates[1]) * _UNITS[rates[2]],
            ceil_bits=int(rates[3]) * _UNITS[rates[4]],
            priority=0 if priority is None else int(priority[1]),
        )
    return found


_PREF = re.compile(r"\bpref (\d+) u32\b")
_ITEM = re.compile(r"fh (([0-9a-f]+):[0-9a-f]*:[0-9a-f]+) .*?\*?flowid 1:([0-9a-f]+)")
_TABLE = re.compile(r"fh ([0-9a-f]+): ht divisor 256\b")
_LINK = re.compile(r"fh [0-9a-f]+::[0-9a-f]+ .*\blink ([0-9a-f]+):")
_MATCH = re.compile(r"\s+match ([0-9a-f]{8})/ffffffff at (\d+)")


def parse_filters(shown: str, side: AddressSide = SOURCES) -> TrafficState:
    """Parse `tc filter show`: text, as many versions print JSON of u32 filters that is none."""
    filters: list[ShownFilter] = []
    tables: set[str] = set()
    links: set[str] = set()
    prefs: set[int] = set()
    by_cgroup = False
    for entry in re.split(r"^filter ", shown, flags=re.MULTILINE):
        head, _, rest = entry.partition("\n")
        by_cgroup |= f" pref {CGROUP_PREF} cgroup " in f" {head} "
        prefs.update(map(int, _PREF.findall(head)))
        tables.update(_TABLE.findall(head))
        links.update(_LINK.findall(head))
        item = _ITEM.search(head)
        family = None if item is None else side.of_table(item[2])
        words = {int(offset): word for word, offset in _MATCH.findall(rest)}
        if item is None or family is None or set(words) != set(family.offsets):
            continue
        packed = bytes.fromhex("".join(words[offset] for offset in family.offsets))
        target = AddressFilter(address=str(ipaddress.ip_address(packed)), minor=int(item[3], 16))
        filters.append(ShownFilter(handle=item[1], version=family.version, filter=target))
    return TrafficState(
        filters=tuple(filters),
        tables=frozenset(family.version for family in side.families if f"{family.table:x}" in tables & links),
        partial=frozenset(family.version for family in side.families if family.pref in prefs),
        by_cgroup=by_cgroup,
    )


def is_ours(state: TrafficState, recorded: bool) -> bool:
    """Return whether the root is one that this module made: by handle, default, and first class or a record of it."""
    root = state.root
    if root is None or (root.kind, root.handle) != ("htb", f"{MAJOR}:"):
        return False
    default = str(root.options.get("default", "")).removeprefix("0x")
    return default == f"{DEFAULT_MINOR:x}" and (recorded or ROOT_MINOR in state.classes)


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
