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
    """The last-level cache as the kernel lets it be divided."""

    mask: int = 0  # all ways
    ids: tuple[int, ...] = ()
    vendor: str = ""

    @property
    def is_divisible(self) -> bool:
        return self.mask > 0 and bool(self.ids)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What seldom changes about a machine. Amounts that Kubernetes knows are in Facts."""

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
    """Groups are paths below the cgroup root ("" is the root), files are the registry's names (cgroup v1's)."""

    @property
    def shape(self) -> Shape: ...

    def knob(self, group: str, file: str) -> str | None:
        """The present value in version 1's notation; None when it cannot be read. The machine's own files have no
        group."""
        ...

    def has(self, file: str) -> bool:
        """Whether this machine's kernel has the file for pods (or at all, for files of the whole machine)."""
        ...

    def below(self, group: str) -> tuple[str, ...]:
        """The groups right below one, as paths; none when it is gone."""
        ...

    def threads(self, group: str) -> tuple[int, ...]: ...

    def cached_threads(self, name: str) -> frozenset[int]:
        """The threads in a resctrl group."""
        ...

    def limited_disks(self, group: str) -> frozenset[str]:
        """Numbers (major:minor) of the disks for which a group has limits or settings now."""
        ...

    def carry_out(self, effects: Sequence[FileEffect], *, whole_of: Sequence[str] = ()) -> Sequence[Result]:
        """Bring files to their values; results in the order of the effects.

        The effects are all that the owners in `whole_of` want: whatever else those wrote before goes back to what it
        was, and such results come after the others.
        """
        ...

    def release(self, owner: str, why: str) -> Sequence[Result]:
        """Give back everything that an owner ever wrote, also in an earlier process."""
        ...
