"""The effects that strategies want on files, as data, and the results that the executor gives for them.

Files are named by their key in the knob table, which is cgroup v1's name; the executor finds the path and the notation
of the node's own version. Every effect says who wants it and which numbers led to it.
"""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias

import msgspec

from koord.host.cgroup.knob import RESCTRL_L3, RESCTRL_MB, CgroupFile
from koord.host.io_error import IoError

FileKey: TypeAlias = tuple[str, str, str]  # knob, group, part of the file


class WriteCgroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Write one file of one cgroup. `group` is the directory below the controller's root, as kubepods/besteffort.

    `original` is what the file would hold without the agent, where that is known from the pod's spec: a container that
    started with the value never held anything else. `takes_over` names the owners from which the file may be taken.
    """

    group: str
    file: str
    value: str
    owner: str  # the strategy that alone writes this file there
    cause: str  # the reason in the audit trail
    why: str
    original: str | None = None
    takes_over: tuple[str, ...] = ()


class WriteSystem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Write one file of the whole machine, named as in the knob table, such as vm/min_free_kbytes."""

    file: str
    value: str
    owner: str
    cause: str
    why: str
    takes_over: tuple[str, ...] = ()


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


class SetTimeSlice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Let threads run for `slice_ns` at a stretch; 0 is the scheduler's own. A thread that has ended by then is no
    error.
    """

    tasks: tuple[int, ...]
    slice_ns: int
    owner: str
    cause: str
    why: str


WriteEffect: TypeAlias = WriteCgroup | WriteSystem | WriteSchemata
TaskEffect: TypeAlias = AddTasks | SetTimeSlice
FileEffect: TypeAlias = WriteEffect | TaskEffect


class WriteOutcome(enum.Enum):
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
    OVERWRITTEN = "overwritten"  # not restored, as somebody else wrote it since


class FileWriteResult(msgspec.Struct, frozen=True):
    """The outcome of one effect, the field before it, and the error if there was one."""

    effect: FileEffect
    status: WriteOutcome
    before: str = ""  # as it stood in the file
    detail: str = ""
    io_error: IoError | None = None

    @property
    def is_applied(self) -> bool:
        return self.status in (WriteOutcome.WRITTEN, WriteOutcome.SAME, WriteOutcome.FRESH)

    @property
    def is_settled(self) -> bool:
        """Return whether nothing is left to do: applied, or without a file of ours to apply it to."""
        return self.is_applied or self.status in (WriteOutcome.VANISHED, WriteOutcome.OVERWRITTEN)


class WriteRecord(msgspec.Struct, frozen=True, kw_only=True):
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


class OwnerConflict(ValueError):
    """Two strategies want one file: a bug of the program, not a condition of the node."""


def file_of_effect(effect: WriteEffect) -> CgroupFile:
    if isinstance(effect, WriteCgroup):
        return CgroupFile(effect.file, effect.group)
    if isinstance(effect, WriteSystem):
        return CgroupFile(effect.file)
    return CgroupFile(RESCTRL_L3 if effect.resource == "L3" else RESCTRL_MB, effect.group)


def value_of_effect(effect: WriteEffect) -> str:
    """Return the value that an effect writes, in cgroup v1's notation."""
    if isinstance(effect, WriteSchemata):
        return ";".join(f"{cache}={value}" for cache, value in effect.by_cache)
    return effect.value
