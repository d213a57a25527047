"""The CPU side of a simulated machine: its files as the scheduler's tree, and what a step on it gives to whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.koordlet.contention.files import Files
from koord.koordlet.contention.filling import NORMAL_RANK, divide
from koord.koordlet.contention.group import UNBOUNDED, Group
from koord.koordlet.contention.parameter import Parameters
from koord.koordlet.contention.strain import Strain, strain
from koord.koordlet.contention.throttling import Quota, bound_milli, saved_after
from koord.koordlet.strategies import file
from koord.values.cpuset import CPUSet, CPUSetError

SYSTEM = "system.slice"
IDLE_RANK = -2  # below every identity: it runs on CPUs that nobody else wants
_US_OF_MILLI = 100.0  # of a period of 100 ms


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a step gave to each container, by its group."""
    got: Mapping[str, float]  # by group of the container
    strain: Mapping[str, Strain]
    system_milli: float


class Processing:
    """The CPU simulation of one machine."""
    def __init__(self, files: Files, cpus: CPUSet, parameters: Parameters) -> None:
        self._files = files
        self._parameters = parameters
        self._every = cpus.bits
        self._root = Group("", mask=cpus.bits)
        self._groups: dict[str, Group] = {"": self._root}
        self._system = Group(SYSTEM, self._root)
        self.quotas: dict[str, Quota] = {}  # of groups that have one
        self._saved: dict[str, float] = {}  # unused quota, in milli-core-seconds

    def reach(self, name: str) -> int:
        """Return how many CPUs a group can use."""
        return self._mask(self._groups[name]).bit_count()

    def refresh(self, touched: Iterable[str]) -> None:
        """Read the files of these groups again."""
        for name in sorted(touched):  # parents before children
            if name not in self._files or name == "":
                continue
            group = self._groups.get(name) or self._make(name)
            number = self._files.number
            group.weight = float(number(name, file.CPU_SHARES, 1024))
            group.mask = self._own_mask(name)
            bvt, idle = number(name, file.CPU_BVT, 0), number(name, file.CPU_IDLE, 0)
            group.rank = IDLE_RANK if idle else bvt or None
            quota_us = number(name, file.CPU_QUOTA, -1)
            if quota_us > 0:
                burst_us = number(name, file.CPU_BURST, 0)
                self.quotas[name] = Quota(milli=quota_us / _US_OF_MILLI, burst_milli_s=burst_us / 1000)
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

    def share(self, step_s: float, wanted: Mapping[str, float], system_milli: float) -> Done:
        """Divide the CPUs for one step."""
        for name, quota in self.quotas.items():
            self._groups[name].bound_milli = bound_milli(quota, self._saved.get(name, 0.0), step_s)
        got = divide(self._root, {**wanted, SYSTEM: system_milli})
        system = got.pop(SYSTEM)
        self._save(step_s, got)
        return Done(got=got, strain=self._strains(wanted, got, system), system_milli=system)

    def _save(self, step_s: float, got: Mapping[str, float]) -> None:
        """Update the burst buffers; groups without one save nothing."""
        buffers = [name for name, quota in self.quotas.items() if quota.burst_milli_s > 0]
        for name in buffers:
            used = sum(got.get(one.name, 0.0) for one in self._groups[name].walk() if not one.children)
            self._saved[name] = saved_after(self.quotas[name], self._saved.get(name, 0.0), used, step_s)

    def _strains(self, wanted: Mapping[str, float], got: Mapping[str, float], system_milli: float) -> dict[str, Strain]:
        places = {name: (self._mask(group), self._rank(group)) for name in got for group in (self._groups[name],)}
        loads: dict[tuple[int, int], float] = {(self._every, NORMAL_RANK): system_milli}
        for name, place in places.items():
            loads[place] = loads.get(place, 0.0) + got[name]
        around = {place: _around(place, loads) for place in set(places.values())}
        found: dict[str, Strain] = {}
        for name, place in places.items():
            ahead, behind = around[place]
            found[name] = strain(
                wanted_milli=wanted[name],
                allowed_milli=self._allowed(self._groups[name], wanted[name]),
                got_milli=got[name],
                cpus=place[0].bit_count(),
                ahead_milli=ahead,
                behind_milli=behind,
                parameters=self._parameters,
            )
        return found

    def _allowed(self, group: Group, wanted: float) -> float:
        """Return the demand within the quotas of the pod; a bound of the whole class is contention, not
        the pod's own limit.
        """
        allowed = min(wanted, group.bound_milli)
        return allowed if group.parent is None else min(allowed, group.parent.bound_milli)

    def _make(self, name: str) -> Group:
        above = name.rpartition("/")[0]
        parent = self._groups.get(above)
        if parent is None:
            parent = self._make(above)
        made = self._groups[name] = Group(name, parent)
        return made

    def _own_mask(self, name: str) -> int | None:
        try:
            return CPUSet.parse(self._files.read(name, file.CPUSET) or "").bits or None
        except CPUSetError:  # a file never holds what it would not take
            return None

    def _mask(self, group: Group) -> int:
        mask, at = self._every, group
        while at.parent is not None:
            if at.mask is not None:
                mask &= at.mask
            at = at.parent
        return mask

    def _rank(self, group: Group) -> int:
        at: Group | None = group
        while at is not None:
            if at.rank is not None:
                return at.rank
            at = at.parent
        return NORMAL_RANK


def _around(place: tuple[int, int], loads: Mapping[tuple[int, int], float]) -> tuple[float, float]:
    """Return the load on these CPUs that runs first or alongside, and the load that yields; each spread
    evenly over its CPUs.
    """
    mask, rank = place
    ahead = behind = 0.0
    for (other, its_rank), milli in loads.items():
        here = milli * (mask & other).bit_count() / max(other.bit_count(), 1)
        if its_rank >= rank:
            ahead += here
        else:
            behind += here
    return ahead, behind
