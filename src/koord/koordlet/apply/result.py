"""What became of each effect, what the audit log is told, and the one form in which the executor sees wanted values."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from koord.host.cgroup.knob import RESCTRL_L3, RESCTRL_MB
from koord.host.cgroup.tree import File
from koord.host.fault import Fault
from koord.koordlet.plan import AddTasks, WriteCgroup, WriteSchemata, WriteSystem

Write: TypeAlias = WriteCgroup | WriteSystem | WriteSchemata
FileEffect: TypeAlias = Write | AddTasks


class Status(enum.Enum):
    """The outcome of one effect."""
    WRITTEN = "written"
    SAME = "same"  # read, and already right
    FRESH = "fresh"  # known to be right, not read again yet
    REPLACED = "replaced"  # a later effect of the same batch wants another value
    HELD = "held"  # it would break a rule between groups because another write failed
    WAITING = "waiting"  # refused before, its back-off is not over
    VANISHED = "vanished"  # the group is gone
    OFF = "off"  # this node's kernel does not have the knob, or does not let us
    INVALID = "invalid"  # no value that this file takes
    REJECTED = "rejected"  # the kernel refuses this value here
    FAILED = "failed"  # it may work later


class Result(msgspec.Struct, frozen=True):
    """The outcome of one effect, the field before it, and the error if there was one."""
    effect: FileEffect
    status: Status
    before: str = ""  # as it stood in the file
    detail: str = ""
    fault: Fault | None = None

    @property
    def settled(self) -> bool:
        """Return whether the file has the wanted value now."""
        return self.status in (Status.WRITTEN, Status.SAME, Status.FRESH)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One attempted write, for the audit log. Values are as they stand in the file."""

    at: float  # seconds since the epoch
    owner: str
    knob: str
    group: str
    path: str
    before: str
    after: str
    reason: str  # the effect's cause
    why: str
    message: str
    refused: str = ""  # the errno's name when the kernel refused


class Conflict(ValueError):
    """Two strategies want one file: a bug of the program, not a condition of the node."""


def file_of(effect: Write) -> File:
    """Return the cgroup file that an effect writes."""
    if isinstance(effect, WriteCgroup):
        return File(effect.file, effect.group)
    if isinstance(effect, WriteSystem):
        return File(effect.file)
    return File(RESCTRL_L3 if effect.resource == "L3" else RESCTRL_MB, effect.group)


def value_of(effect: Write) -> str:
    """Return the value that an effect writes, in cgroup v1's notation."""
    if isinstance(effect, WriteSchemata):
        return ";".join(f"{cache}={value}" for cache, value in effect.by_cache)
    return effect.value
