"""What a decision wants done, as data. Doing it, skipping what is already so, and retrying are the executor's.

Files are named by their key in the registry, which is the name that cgroup v1 has for them; the executor finds the
path and the notation of the node's own version. Every effect says who wants it and which numbers made it so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

UNLIMITED = -1  # what an absent limit is written as in quota and memory limit files


class WriteCgroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`group` is the directory below the subsystem's root, such as kubepods/besteffort."""

    group: str
    file: str
    value: str
    owner: str  # the strategy that alone writes this file there
    cause: str  # the reason in the audit trail
    why: str


class WriteSystem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file of the whole machine, named as in the registry, such as vm/min_free_kbytes."""

    file: str
    value: str
    owner: str
    cause: str
    why: str


class WriteSchemata(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line for the schemata file of a resctrl group."""

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
    """Move threads into a resctrl group. One that is gone by then is no fault."""

    group: str
    tasks: tuple[int, ...]
    owner: str
    cause: str
    why: str


class EvictionRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """The line of the ledger: who evicted, by which rule, and why this pod of all."""

    actor: str
    rule: str  # the feature, such as BEMemoryEvict
    measured: str
    threshold: str
    release: Mapping[str, int]  # what the rule wanted freed in all
    credited: Mapping[str, int]  # of that, what pods that are on their way out will free
    frees: Mapping[str, int]  # what this pod brings
    why_this_pod: str


class Evict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    record: EvictionRecord


Effect: TypeAlias = WriteCgroup | WriteSystem | WriteSchemata | AddTasks | Evict


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Effects in an order in which each single one is safe; an executor that knows present values may do better.

    `why` explains a plan that does nothing, and `figures` are the numbers that gauges show.
    """

    effects: tuple[Effect, ...] = ()
    why: str = ""
    figures: Mapping[str, float] = {}
