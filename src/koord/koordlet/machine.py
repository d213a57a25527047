"""What strategies need of a machine besides samples: its shape, the present values of its files, and writing them.

The real one is `koord.koordlet.host_machine`; simulated nodes have their own. Nothing here waits, or raises for what a
node may do: an absent file reads as None, and every write gets its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from koord.api.qos_class import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.host.cgroup.layout import Layout
from koord.koordlet.apply.result import FileEffect, Result
from koord.koordlet.strategies.disk import Disks
from koord.koordlet.strategies.processor import Processor


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """The last-level cache and how the kernel lets it be divided."""

    mask: int = 0  # all ways
    ids: tuple[int, ...] = ()
    vendor: str = ""

    @property
    def is_divisible(self) -> bool:
        return self.mask > 0 and bool(self.ids)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a machine that seldom change. Amounts that Kubernetes knows are in NodeInputs."""

    processors: tuple[Processor, ...] = ()
    layout: Layout | None = None  # how groups are named; None where there are none to find
    groups: Mapping[str, str] = {}  # cgroup by Kubernetes' QoS class; that of Guaranteed holds the other two
    cgroup_version: int = 2
    page_bytes: int = 4096
    cache: Cache = Cache()
    disks: Disks = Disks()
    burst_within_quota: bool = True  # mainline kernels refuse a burst above the quota

    @property
    def kubepods(self) -> str:
        return self.groups.get(GUARANTEED, "")

    @property
    def burstable(self) -> str:
        return self.groups.get(BURSTABLE, "")

    @property
    def besteffort(self) -> str:
        return self.groups.get(BEST_EFFORT, "")


class Machine(Protocol):
    """The interface through which strategies read and write a machine's files.

    Groups are paths below the cgroup root ("" is the root); files are named as in the knob table (cgroup v1's names).
    """

    @property
    def shape(self) -> Shape: ...

    def knob(self, group: str, file: str) -> str | None:
        """Return the present value in cgroup v1's notation, or None when it cannot be read. Files of the whole
        machine have the group "".
        """
        ...

    def has(self, file: str) -> bool:
        """Return whether the kernel has the file for pods (or at all, for files of the whole machine)."""
        ...

    def below(self, group: str) -> tuple[str, ...]:
        """Return the paths of the groups directly below a group; none when it is gone."""
        ...

    def threads(self, group: str) -> tuple[int, ...]: ...

    def cached_threads(self, name: str) -> frozenset[int]:
        """Return the thread ids in a resctrl group."""
        ...

    def limited_disks(self, group: str) -> frozenset[str]:
        """Return the numbers (major:minor) of the disks for which a group has limits or settings now."""
        ...

    def carry_out(self, effects: Sequence[FileEffect], *, whole_of: Sequence[str] = ()) -> Sequence[Result]:
        """Bring files to their values; the results are in the order of the effects.

        The effects are all that the owners in `complete_owners` want: whatever else those owners wrote before is
        restored, and the results of that come after the others.
        """
        ...

    def release(self, owner: str, why: str) -> Sequence[Result]:
        """Restore everything that an owner ever wrote, also in an earlier process."""
        ...
