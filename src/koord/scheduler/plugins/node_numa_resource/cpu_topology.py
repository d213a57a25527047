"""The CPUs of one machine by core, NUMA node and socket, as bit masks; the node's annotation is parsed strictly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from koord.api.annotations.codec import MalformedAnnotation, parse_json
from koord.api.annotations.cpu_codecs import CPUInfo
from koord.api.koordinator.protocol import A_CPU_TOPOLOGY
from koord.api.model import Submodel
from koord.values.bitmask import WIDTH
from koord.values.cpuset import MAX_CPU

_SOCKET_SHIFT = 16  # core numbers may repeat from socket to socket
_CEILINGS = {"id": MAX_CPU, "core": (1 << _SOCKET_SHIFT) - 1, "socket": MAX_CPU, "node": WIDTH - 1}


class InvalidCpuTopology(msgspec.Struct, frozen=True):
    """The reason why the CPUs of this node cannot be told apart; it names the field."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class CpuGroup(msgspec.Struct, frozen=True, gc=False):
    """The CPUs of a NUMA node or of a socket, with its cores in order. `socket` indexes CpuTopology.sockets."""

    number: int
    cpus: int
    cores: tuple[int, ...]
    socket: int


class CpuTopology(msgspec.Struct, frozen=True, kw_only=True):
    """The topology as CPU masks. Cores are ordered by (socket, core), zones and sockets by number.

    `per_core`, `per_zone` and `per_socket` are averages, as in Koordinator, so that uneven machines get the
    same answers.
    """

    cpus: int
    cores: tuple[int, ...]
    core_zones: tuple[int, ...]  # places in `zones`
    core_sockets: tuple[int, ...]  # places in `sockets`
    zones: tuple[CpuGroup, ...]
    zone_masks: Mapping[int, int]  # by the number of the NUMA node
    sockets: tuple[CpuGroup, ...]
    per_core: int
    per_zone: int
    per_socket: int
    has_uniform_cores: bool  # all cores have equally many CPUs

    def zone_mask(self, number: int) -> int:
        """Return the CPUs of a NUMA node; none when there is no such node."""
        return self.zone_masks.get(number, 0)

    def full_core_cpus(self, cpus: int) -> int:
        """Return those of the CPUs whose siblings are all among them."""
        return sum(core for core in self.cores if core & cpus == core)  # cores are disjoint: a sum is a union

    def one_per_core(self, cpus: int) -> int:
        """Return the lowest of the CPUs on each core."""
        return sum(part & -part for core in self.cores if (part := core & cpus))

    def cpus_sharing_cores(self, cpus: int) -> int:
        """Return all CPUs of the cores that the given ones lie on."""
        return sum(core for core in self.cores if core & cpus)

    def cpus_sharing_zones(self, cpus: int) -> int:
        """Return all CPUs of the NUMA nodes that the given ones lie on."""
        return sum(zone.cpus for zone in self.zones if zone.cpus & cpus)

    def core_count(self, cpus: int) -> int:
        """Return the number of cores that the CPUs lie on."""
        return sum(1 for core in self.cores if core & cpus)

    @staticmethod
    def from_details(detail: Sequence[CPUInfo]) -> CpuTopology | InvalidCpuTopology:
        return _build([(info.id, info.core, info.socket, info.node) for info in detail])


class _CpuEntry(Submodel, frozen=True, kw_only=True):
    """One CPU of the annotation. Unlike the API's model, this one can tell a missing number from a zero."""

    id: int | None = None
    core: int | None = None
    socket: int | None = None
    node: int | None = None


class _Detail(Submodel, frozen=True, kw_only=True):
    detail: tuple[_CpuEntry, ...] | None = None


def parse_cpu_topology(annotations: Mapping[str, str]) -> CpuTopology | InvalidCpuTopology:
    """Parse the topology from the annotations of a NodeResourceTopology."""
    text = annotations.get(A_CPU_TOPOLOGY)
    return InvalidCpuTopology(f"{A_CPU_TOPOLOGY} is missing") if text is None else _parsed(text)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> CpuTopology | InvalidCpuTopology:
    # Machines of one model carry the same text, and then share one topology.
    given = parse_json({A_CPU_TOPOLOGY: text}, A_CPU_TOPOLOGY, _Detail)
    if isinstance(given, MalformedAnnotation):
        return InvalidCpuTopology(str(given))
    if given is None or given.detail is None:
        return InvalidCpuTopology(f"{A_CPU_TOPOLOGY}: detail is missing")
    rows: list[tuple[int, int, int, int]] = []
    for place, entry in enumerate(given.detail):
        if entry.id is None or entry.core is None or entry.socket is None or entry.node is None:
            field = next(name for name in _CEILINGS if getattr(entry, name) is None)
            return InvalidCpuTopology(f"detail[{place}].{field} is missing")
        rows.append((entry.id, entry.core, entry.socket, entry.node))
    return _build(rows)


def _build(rows: list[tuple[int, int, int, int]]) -> CpuTopology | InvalidCpuTopology:
    if not rows:
        return InvalidCpuTopology("detail is empty")
    seen: dict[int, tuple[int, int, int, int]] = {}
    cores: dict[tuple[int, int], int] = {}
    core_node: dict[tuple[int, int], int] = {}
    for place, row in enumerate(rows):
        for (field, ceiling), value in zip(_CEILINGS.items(), row, strict=True):
            if not 0 <= value <= ceiling:
                return InvalidCpuTopology(f"detail[{place}].{field} is {value}, not in range 0-{ceiling}")
        cpu, core, socket, node = row
        if seen.setdefault(cpu, row) != row:
            return InvalidCpuTopology(f"detail[{place}].id: CPU {cpu} is listed twice, in different places")
        if core_node.setdefault((socket, core), node) != node:
            other = core_node[socket, core]
            return InvalidCpuTopology(
                f"detail[{place}].node: core {core} of socket {socket} is on NUMA nodes {other} and {node}"
            )
        cores[socket, core] = cores.get((socket, core), 0) | 1 << cpu
    return _group(cores, core_node, {(row[2], row[3]) for row in rows}, len(seen))


def _group(
    cores: Mapping[tuple[int, int], int],
    core_node: Mapping[tuple[int, int], int],
    pairs: set[tuple[int, int]],
    count: int,
) -> CpuTopology:
    order = sorted(cores)
    socket_numbers = sorted({socket for socket, _ in order})
    zone_numbers = sorted(set(core_node.values()))
    socket_place = {number: place for place, number in enumerate(socket_numbers)}
    zone_place = {number: place for place, number in enumerate(zone_numbers)}

    def group(number: int, members: list[tuple[int, int]]) -> CpuGroup:
        masks = tuple(cores[key] for key in members)
        return CpuGroup(number, sum(masks), masks, socket_place[members[0][0]])

    zones = tuple(group(n, [key for key in order if core_node[key] == n]) for n in zone_numbers)
    return CpuTopology(
        cpus=sum(cores.values()),
        cores=tuple(cores[key] for key in order),
        core_zones=tuple(zone_place[core_node[key]] for key in order),
        core_sockets=tuple(socket_place[key[0]] for key in order),
        zones=zones,
        zone_masks={zone.number: zone.cpus for zone in zones},
        sockets=tuple(group(n, [key for key in order if key[0] == n]) for n in socket_numbers),
        per_core=count // len(cores),
        per_zone=count // len(pairs),
        per_socket=count // len(socket_numbers),
        has_uniform_cores=len({core.bit_count() for core in cores.values()}) == 1,
    )
