"""The effects that strategies want on files, as data, and the results that the executor gives for them.

Files are named by their key in the knob table, which is cgroup v1's name; the executor finds the path and the notation
of the node's own version. Every effect says who wants it and which numbers led to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

UNLIMITED = -1  # what an absent limit is written as in quota and memory limit files


class WriteCgroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Write one file of one cgroup. `group` is the directory below the subsystem's root, such as kubepods/besteffort.

    """

    group: str
    file: str
    value: str
    owner: str  # the strategy that alone writes this file there
    cause: str  # the reason in the audit trail
    why: str


class WriteSystem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Write one file of the whole machine, named as in the knob table, such as vm/min_free_kbytes."""

    file: str
    value: str
    owner: str
    cause: str
    why: str


class WriteSchemata(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Write one line of the schemata file of a resctrl group."""

    group: str
    resource: Literal["L3", "MB"]
    by_cache: tuple[tuple[int, str], ...]  # value by cache id, in the order of ids
    owner: str
    cause: str
    why: str

    @property
    def line(self) -> str:
        return f"{self.resource}:" + "".join(f"{cache}={value};" for cache, value in self.by_cache) + "\n"


class AddTasks(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Move threads into a resctrl group. A thread that has ended by then is no error."""

    group: str
    tasks: tuple[int, ...]
    owner: str
    cause: str
    why: str


class EvictionRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """Why a pod was evicted: the actor, the rule, the measured values, the threshold, and the rank of the victim."""

    actor: str
    rule: str  # the feature, such as BEMemoryEvict
    measured: str
    threshold: str
    release: Mapping[str, int]  # what the rule wanted freed in all
    credited: Mapping[str, int]  # of that, what pods that are on their way out will free
    frees: Mapping[str, int]  # what this pod brings
    why_this_pod: str


class Evict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Evict one pod through the API server; `record` explains the choice."""
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    record: EvictionRecord


Effect: TypeAlias = WriteCgroup | WriteSystem | WriteSchemata | AddTasks | Evict


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The effects that a strategy wants, in an order in which each single one is safe; an executor that knows the
    present values may find a better order.

    `why` explains a plan that does nothing, and `figures` are the numbers that gauges show.
    """

    effects: tuple[Effect, ...] = ()
    why: str = ""
    figures: Mapping[str, float] = {}
