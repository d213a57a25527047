"""The CPU side of the simulated machine: read cgroup files into the CFS tree, divide CPUs, measure contention."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from koord.host.cgroup import knob
from koord.sim.machine.cfs import (
    CPU_MILLI,
    NORMAL_RANK,
    UNBOUNDED,
    CfsGroup,
    CfsQuota,
    divide_cpu,
    max_milli_in_step,
    saved_after,
)
from koord.sim.machine.cgroup_files import SimulatedCgroupFiles
from koord.values.cpuset import CPUSet


class ContentionParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of the model that no file of a machine holds; docs/concepts/contention-model.md explains them."""

    # A busy neighbour on all other CPUs costs an instruction this much more of a cycle: shared caches, memory, threads.
    cpi: float = 1.0
    cpi_of_neighbours: float = 0.4
    cpi_of_pressure: float = 0.4  # the same, of work with a pressure on caches, wherever on the machine it runs
    cycles_per_milli_s: float = 2.5e6  # of one milli-core in one second: 2.5 GHz
    # Below this share of free memory the kernel takes page cache back, first from those whose memory is not protected.
    low_watermark: float = 0.02
    # Above memory.high a group grows by this share of what it wants to.
    growth_above_high: float = 0.1
    # No CPU is so busy that waiting has no end within a step.
    busiest: float = 0.98


DEFAULT_PARAMETERS = ContentionParameters()


class CpuContention(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """CpuContention tells how a container suffered from others on its CPUs: shares of 1, factors 1 when idle."""

    short_milli: float  # wanted, within its own bounds, and not given
    stalled_share: float  # of what was wanted in all: PSI's "some" of CPU
    cpi: float
    latency_factor: float


def compute_contention(
    *,
    wanted_milli: float,
    allowed_milli: float,
    got_milli: float,
    cpus: int,
    ahead_milli: float,
    behind_milli: float,
    pressure: float = 0.0,
    parameters: ContentionParameters = DEFAULT_PARAMETERS,
) -> CpuContention:
    """Compute the contention of one container.

    `allowed` is the demand within its own quota. On the `cpus` that it can use, work of its rank and above, its own
    included, is `ahead`: it queues with that. Work of lower ranks yields, but still pollutes the caches. `pressure` is
    what others do to caches and memory bandwidth on top of that, in machines full of busy neighbours.
    """
    room = max(cpus, 1) * CPU_MILLI
    short = max(0.0, min(wanted_milli, allowed_milli) - got_milli)
    neighbours = min(max(ahead_milli - got_milli, 0.0) + behind_milli, room) / room
    slowed = parameters.cpi_of_neighbours * neighbours + parameters.cpi_of_pressure * pressure
    cpi = parameters.cpi * (1 + slowed)
    busy = min(ahead_milli / room, parameters.busiest)
    stalled = max(0.0, wanted_milli - got_milli) / wanted_milli if wanted_milli > 0 else 0.0
    work = cpi / parameters.cpi / max(1.0 - stalled, 1.0 - parameters.busiest)
    return CpuContention(
        short_milli=short,
        stalled_share=stalled,
        cpi=cpi,
        latency_factor=work * (1 + queueing_delay(busy, max(cpus, 1))),
    )


def queueing_delay(busy: float, cpus: int) -> float:
    """Return the mean queueing time of `cpus` servers with that utilisation, in service times (Sakasegawa)."""
    return 0.0 if busy <= 0 else float(busy ** (math.sqrt(2 * (cpus + 1)) - 1) / (cpus * (1 - busy)))


SYSTEM = "system.slice"
IDLE_RANK = -2  # below every identity: it runs on CPUs that nobody else wants
_US_OF_MILLI = 100.0  # of a period of 100 ms


class CpuStepResult(msgspec.Struct, frozen=True, kw_only=True):
    """CpuStepResult is what a step gave to each container, by its group."""

    got: Mapping[str, float]  # by group of the container
    contention: Mapping[str, CpuContention]
    system_milli: float


class CpuSimulation:
    """The CPU simulation of one machine."""

    def __init__(self, files: SimulatedCgroupFiles, cpus: CPUSet, parameters: ContentionParameters) -> None:
        self._files = files
        self._parameters = parameters
        self._every = cpus.bits
        self._root = CfsGroup("", mask=cpus.bits)
        self._groups: dict[str, CfsGroup] = {"": self._root}
        self._system = CfsGroup(SYSTEM, self._root)
        self.quotas: dict[str, CfsQuota] = {}  # of groups that have one
        self._saved: dict[str, float] = {}  # unused quota, in milli-core-seconds

    def usable_cpus(self, name: str) -> int:
        """Return how many CPUs a group can use."""
        return self._mask(self._groups[name]).bit_count()

    def refresh(self, touched: Iterable[str]) -> None:
        """Read the files of these groups again."""
        for name in sorted(touched):  # parents before children
            if name not in self._files or name == "":
                continue
            group = self._groups.get(name) or self._make(name)
            number = self._files.number
            group.weight = float(number(name, knob.CPU_SHARES, 1024))
            group.mask = self._own_mask(name)
            bvt, idle = number(name, knob.CPU_BVT, 0), number(name, knob.CPU_IDLE, 0)
            group.rank = IDLE_RANK if idle else bvt or None
            quota_us = number(name, knob.CPU_QUOTA, -1)
            if quota_us > 0:
                burst_us = number(name, knob.CPU_BURST, 0)
                self.quotas[name] = CfsQuota(milli=quota_us / _US_OF_MILLI, burst_milli_s=burst_us / 1000)
            else:
                self.quotas.pop(name, None)
                self._saved.pop(name, None)
                group.bound_milli = UNBOUNDED

    def drop(self, name: str) -> None:
        """Remove a group and all below it."""
        group = self._groups.get(name)
        if group is None:
            return
        for one in list(group.walk()):
            del self._groups[one.name]
            self.quotas.pop(one.name, None)
            self._saved.pop(one.name, None)
        group.cut()

    def share(
        self,
        step_s: float,
        wanted: Mapping[str, float],
        system_milli: float,
        pressures: Mapping[str, float] = MappingProxyType({}),
    ) -> CpuStepResult:
        """Divide the CPUs for one step. `pressures` are those on caches, by group."""
        for name, quota in self.quotas.items():
            self._groups[name].bound_milli = max_milli_in_step(quota, self._saved.get(name, 0.0), step_s)
        got = divide_cpu(self._root, {**wanted, SYSTEM: system_milli})
        system = got.pop(SYSTEM)
        self._save(step_s, got)
        contention = self._contentions(wanted, got, system, pressures)
        return CpuStepResult(got=got, contention=contention, system_milli=system)

    def _save(self, step_s: float, got: Mapping[str, float]) -> None:
        """Update the burst buffers; groups without one save nothing."""
        buffers = [name for name, quota in self.quotas.items() if quota.burst_milli_s > 0]
        for name in buffers:
            used = sum(got.get(one.name, 0.0) for one in self._groups[name].walk() if not one.children)
            self._saved[name] = saved_after(self.quotas[name], self._saved.get(name, 0.0), used, step_s)

    def _contentions(
        self,
        wanted: Mapping[str, float],
        got: Mapping[str, float],
        system_milli: float,
        pressures: Mapping[str, float],
    ) -> dict[str, CpuContention]:
        places = {name: (self._mask(group), self._rank(group)) for name in got for group in (self._groups[name],)}
        loads: dict[tuple[int, int], float] = {(self._every, NORMAL_RANK): system_milli}
        for name, place in places.items():
            loads[place] = loads.get(place, 0.0) + got[name]
        around = {place: _around(place, loads) for place in set(places.values())}
        exerted = {name: got[name] * pressure for name, pressure in pressures.items() if name in got}
        whole, room = sum(exerted.values()), self._every.bit_count() * CPU_MILLI
        found: dict[str, CpuContention] = {}
        for name, place in places.items():
            ahead, behind = around[place]
            found[name] = compute_contention(
                wanted_milli=wanted[name],
                allowed_milli=self._allowed(self._groups[name], wanted[name]),
                got_milli=got[name],
                cpus=place[0].bit_count(),
                ahead_milli=ahead,
                behind_milli=behind,
                pressure=(whole - exerted.get(name, 0.0)) / room,
                parameters=self._parameters,
            )
        return found

    def _allowed(self, group: CfsGroup, wanted: float) -> float:
        """Return the demand within the quotas of the pod; a bound of the class is contention, not the pod's limit."""
        allowed = min(wanted, group.bound_milli)
        return allowed if group.parent is None else min(allowed, group.parent.bound_milli)

    def _make(self, name: str) -> CfsGroup:
        above = name.rpartition("/")[0]
        parent = self._groups.get(above)
        if parent is None:
            parent = self._make(above)
        made = self._groups[name] = CfsGroup(name, parent)
        return made

    def _own_mask(self, name: str) -> int | None:
        return CPUSet.parse_or_empty(self._files.read(name, knob.CPUSET) or "").bits or None

    def _mask(self, group: CfsGroup) -> int:
        mask, at = self._every, group
        while at.parent is not None:
            if at.mask is not None:
                mask &= at.mask
            at = at.parent
        return mask

    def _rank(self, group: CfsGroup) -> int:
        at: CfsGroup | None = group
        while at is not None:
            if at.rank is not None:
                return at.rank
            at = at.parent
        return NORMAL_RANK


def _around(place: tuple[int, int], loads: Mapping[tuple[int, int], float]) -> tuple[float, float]:
    """Return the load on these CPUs that runs first or alongside, and that which yields; each spread evenly."""
    mask, rank = place
    ahead = behind = 0.0
    for (other, its_rank), milli in loads.items():
        here = milli * (mask & other).bit_count() / max(other.bit_count(), 1)
        if its_rank >= rank:
            ahead += here
        else:
            behind += here
    return ahead, behind
