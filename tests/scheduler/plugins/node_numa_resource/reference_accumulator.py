"""A reference implementation of the CPU accumulator with lists and sets, slow and plain."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

FULL = "FullPCPUs"


class Cpu(NamedTuple):
    number: int
    core: tuple[int, int]  # (socket, core)
    zone: int
    socket: int


class ReferenceAccumulator:
    def __init__(
        self,
        cpus: list[Cpu],
        available: set[int],
        held: dict[int, int],
        pcpu_marked: set[int],
        numa_marked: set[int],
        *,
        count: int,
        policy: str,
        exclusive: str,
        most: bool,
        max_ref: int,
    ) -> None:
        self.cpus, self.available, self.held = cpus, set(available), held
        self.missing, self.policy, self.exclusive, self.most, self.max_ref = count, policy, exclusive, most, max_ref
        self.taken: list[int] = []
        self.exclusive_cores = {c.core for c in cpus if c.number in pcpu_marked}
        self.exclusive_zones = {c.zone for c in cpus if c.number in numa_marked}
        cores, sockets = {c.core for c in cpus}, {c.socket for c in cpus}
        self.per_core = len(cpus) // len(cores)
        self.per_zone = len(cpus) // len({(c.socket, c.zone) for c in cpus})
        self.per_socket = len(cpus) // len(sockets)

    def run(self) -> set[int] | None:
        if self.missing > len(self.available):
            return None
        if self.missing < 1 or self.whole() or self.near():
            return set(self.taken)
        for filtered in (True, False):
            for cpu in self.spread(self.free_cpus(filtered)):
                if self.take([cpu]):
                    return set(self.taken)
        raise AssertionError("failed to allocate cpus")

    def whole(self) -> bool:
        if self.policy != FULL and self.per_core != 1:
            return False
        if self.missing <= self.per_zone:
            for filtered in (True, False):
                for listed in self.free_cores_in_zone(filtered):
                    if len(listed) >= self.missing:
                        return self.take(listed[: self.missing])
        sockets = self.free_cores_in_socket()
        if self.missing <= self.per_socket:
            for listed in sockets:
                if len(listed) >= self.missing:
                    return self.take(listed[: self.missing])
        parked = []
        for listed in sorted(sockets, key=len, reverse=True):
            if self.missing >= len(listed):
                if self.take(listed):
                    return True
            else:
                parked.append(listed)
        for listed in sorted(parked, key=len):
            while listed and self.missing >= self.per_core:
                if self.take(listed[: self.per_core]):
                    return True
                listed = listed[self.per_core :]
        return False

    def near(self) -> bool:
        if self.policy == FULL:
            return False
        for limit, lists in ((self.per_zone, self.free_cpus_in_zone), (self.per_socket, self.free_cpus_in_socket)):
            if self.missing <= limit:
                for filtered in (True, False):
                    for listed in lists(filtered):
                        if len(listed) >= self.missing:
                            return self.take(self.spread(listed)[: self.missing])
        return False

    def take(self, cpus: list[int]) -> bool:
        self.taken += cpus
        self.available -= set(cpus)
        self.missing -= len(cpus)
        for c in self.cpus:
            if c.number in cpus:
                if self.exclusive == "PCPULevel":
                    self.exclusive_cores.add(c.core)
                if self.exclusive == "NUMANodeLevel":
                    self.exclusive_zones.add(c.zone)
        return self.missing == 0

    def free(self, *, cores: bool = False, zones: bool = False) -> list[Cpu]:
        """Without those on cores, or zones, that others and this pod want alone."""
        return [
            c
            for c in self.cpus
            if c.number in self.available
            and not (cores and self.exclusive == "PCPULevel" and c.core in self.exclusive_cores)
            and not (zones and self.exclusive == "NUMANodeLevel" and c.zone in self.exclusive_zones)
        ]

    def better(self, free: int) -> int:
        return free if self.most else -free

    def by_holders(self, cpus: Iterable[Cpu]) -> list[Cpu]:
        return sorted(cpus, key=lambda c: (self.held.get(c.number, 0) if self.max_ref > 1 else 0, c.number))

    def full_cores(self, free: list[Cpu]) -> list[int]:
        siblings = {core: [c.number for c in self.cpus if c.core == core] for core in {c.core for c in free}}
        kept = [core for core, all_ in siblings.items() if len([c for c in free if c.core == core]) == len(all_)]
        kept.sort(
            key=lambda core: (
                -len(siblings[core]),
                sum(self.held.get(n, 0) for n in siblings[core]) if self.max_ref > 1 else 0,
                core,
            )
        )
        return [number for core in kept for number in sorted(siblings[core])]

    def free_cores_in_zone(self, filtered: bool) -> list[list[int]]:
        free = self.free(zones=filtered)
        rows = []
        for zone, socket in self.zones():
            listed = self.full_cores([c for c in free if c.zone == zone])
            in_socket = sum(c.socket == socket for c in free)
            rows.append(((self.better(len(listed)), self.better(in_socket), zone), listed))
        return [listed for _, listed in sorted(rows)]

    def free_cores_in_socket(self) -> list[list[int]]:
        rows = []
        for socket in sorted({c.socket for c in self.cpus}):
            listed = self.full_cores([c for c in self.free() if c.socket == socket])
            rows.append(((self.better(len(listed)), socket), listed))
        return [listed for _, listed in sorted(rows)]

    def free_cpus_in_zone(self, filtered: bool) -> list[list[int]]:
        free = self.free(cores=filtered, zones=filtered)
        rows = []
        for zone, socket in self.zones():
            inside = self.by_holders(c for c in free if c.zone == zone)
            in_socket = sum(c.socket == socket for c in free)
            listed = self.first_of_each_core(inside) if filtered else inside
            rows.append(((self.better(len(inside)), self.better(in_socket), zone), [c.number for c in listed]))
        return [listed for _, listed in sorted(rows)]

    def free_cpus_in_socket(self, filtered: bool) -> list[list[int]]:
        free = self.free(cores=filtered)
        rows = []
        for socket in sorted({c.socket for c in self.cpus}):
            inside = self.by_holders(c for c in free if c.socket == socket)
            listed = self.first_of_each_core(inside) if filtered else inside
            rows.append(((self.better(len(listed)), socket), [c.number for c in listed]))
        return [listed for _, listed in sorted(rows)]

    def free_cpus(self, filtered: bool) -> list[int]:
        free = self.free(cores=filtered, zones=filtered)
        count: Callable[[Callable[[Cpu], bool]], int] = lambda test: sum(test(c) for c in free)  # noqa: E731

        def rank(core: tuple[int, int]) -> tuple[int, ...]:
            socket, zone = next((c.socket, c.zone) for c in self.cpus if c.core == core)
            beside = sum(c.socket == socket and c.number in self.taken for c in self.cpus)
            holders = sum(self.held.get(c.number, 0) for c in self.cpus if c.core == core) if self.max_ref > 1 else 0
            return (
                -beside,
                self.better(count(lambda c: c.socket == socket)),
                self.better(count(lambda c: c.zone == zone)),
                count(lambda c: c.core == core),
                socket,
                holders,
                *core,
            )

        cores = sorted({c.core for c in free}, key=rank)
        return [c.number for core in cores for c in self.by_holders(c for c in free if c.core == core)]

    def zones(self) -> list[tuple[int, int]]:
        return sorted({c.zone: c.socket for c in sorted(self.cpus, key=lambda c: c.core, reverse=True)}.items())

    def first_of_each_core(self, cpus: list[Cpu]) -> list[Cpu]:
        seen: set[tuple[int, int]] = set()
        return [c for c in cpus if not (c.core in seen or seen.add(c.core))]  # type: ignore[func-returns-value]

    def spread(self, numbers: list[int]) -> list[int]:
        if len(numbers) <= self.per_core:
            return numbers
        core_of = {c.number: c.core for c in self.cpus}
        result: list[int] = []
        while numbers:
            seen: set[tuple[int, int]] = set()
            rest = []
            for number in numbers:
                if core_of[number] in seen:
                    rest.append(number)
                else:
                    seen.add(core_of[number])
                    result.append(number)
            numbers = rest
        return result
