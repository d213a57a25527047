"""Write one file with what must happen around it: the journal before, the audit after, and files that change together.

Two pairs change together. On cgroup v1 memory.limit_in_bytes may not exceed memory.memsw.limit_in_bytes, which runtimes
set to the same number. On both versions a group that leaves cpu.idle loses its cpu.shares or cpu.weight.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Set

import msgspec

from koord.host.cgroup.codec import FileCodec, LimitOrder, fits, limit_size
from koord.host.cgroup.knob import (
    CPU_BURST,
    CPU_IDLE,
    CPU_QUOTA,
    CPU_SHARES,
    CPUSET_EFFECTIVE,
    KNOBS,
    MEMORY_LIMIT,
    MEMORY_SWAP_LIMIT,
    CgroupFile,
    KnobFile,
    KnobRoot,
)
from koord.host.cgroup.tree import CgroupTree
from koord.host.io_error import IoError, malformed
from koord.koordlet.cgroup_writer.effects import FileKey, WriteEffect, WriteRecord, file_of_effect
from koord.koordlet.cgroup_writer.executor_state import ancestors
from koord.koordlet.cgroup_writer.journal import JournalEntry, WriteJournal
from koord.telemetry.clock import Clock

_KIND = {KnobRoot.CGROUP: "cgroup", KnobRoot.RESCTRL: "resctrl-schema"}  # of the metric of update times
_UNLIMITED = float("inf")
RECOVERY = "recovery"  # the cause of writes that restore originals
# What cpu.shares or cpu.weight reads as while a group is idle, by version. It is 3 shares, which are less than one of
# cpu.weight: kernels before 6.12 show 0 there, later ones the least weight that they take. The journal keeps the first.
_SHARES_WHILE_IDLE = {1: ("3",), 2: ("0", "1")}
# What the kernel gives to a group that leaves idle, whatever it had before.
SHARES_AFTER_IDLE = {1: "1024", 2: "100"}

AuditCallback = Callable[[WriteRecord], None]
MeasureCallback = Callable[[str, bool, float], None]


class PendingWrite(msgspec.Struct):
    """One file of a batch on its way from `current` to `target`, both as they stand in the file."""

    effect: WriteEffect
    key: FileKey
    path: str
    knob_file: KnobFile
    current: str
    target: str
    before: str
    original: str | None = None  # what the file would hold without the agent, where the effect says so

    @property
    def codec(self) -> FileCodec:
        return self.knob_file.codec


def is_ours(version: int, origin: JournalEntry, codec: FileCodec, field: str) -> bool:
    """Return whether the field comes from the agent, and not from somebody who wrote the file since.

    Shares that the kernel set by itself when its group became idle or ceased to be count as the agent's.
    """
    ours = [origin.last, origin.prior, origin.original]
    while_idle = _SHARES_WHILE_IDLE[version]
    if origin.knob == CPU_SHARES and (origin.along == CPU_IDLE or origin.last == while_idle[0]):
        ours += [*while_idle, SHARES_AFTER_IDLE[version]]
    return any(codec.same_field(field, one) for one in ours)


def no_op(*_: object) -> None:
    """Ignore all arguments: the default callback."""


class FileWriter:
    def __init__(
        self, tree: CgroupTree, clock: Clock, journal: WriteJournal, audit: AuditCallback, measure: MeasureCallback
    ) -> None:
        self._tree = tree
        self._clock = clock
        self._journal = journal
        self._audit = audit
        self._measure = measure

    def write(self, step: PendingWrite, field: str, batch: Set[FileKey], shares: str | None = None) -> IoError | None:
        """Write the field and the files that change with it, unless the batch has a pending write of its own for those.

        `shares` is what a group leaving idle should have again.
        """
        knob, group, _ = step.key
        if knob == MEMORY_LIMIT and self._tree.version == 1 and (MEMORY_SWAP_LIMIT, group, "") not in batch:
            return self._write_memory_limit(step, field)
        if knob == CPU_IDLE:
            return self._write_cpu_idle(step, field, shares, alone=(CPU_SHARES, group, "") not in batch)
        if knob == CPU_SHARES:  # a group that left idle in this batch has other shares than were read
            now = self._sibling_knob(step, CPU_SHARES)
            if now is not None and now.current != step.current:
                # Without an entry nobody knows what they were before it was idle: what is wanted counts as that.
                step.current = now.current if self._journal.get(step.key) is not None else field
        return self._write_field(step, field)

    def accepts_own_value(self, step: PendingWrite) -> bool:
        """Return whether the kernel accepts the value that the file already has: if not, the knob itself does not work.

        A file that cannot be read any more proves nothing, and counts as accepted.
        """
        text = self._tree.host.read(step.path)
        field = None if isinstance(text, IoError) else step.codec.extract(text, step.key[2])
        if isinstance(text, IoError) or field is None:
            return True
        return self._tree.host.write(step.path, step.codec.render(text, step.key[2], field)) is None

    def _write_field(self, step: PendingWrite, field: str) -> IoError | None:
        text = ""
        if step.codec.needs_text:
            found = self._tree.host.read(step.path)
            if isinstance(found, IoError):
                return found
            if step.codec.extract(found, step.key[2]) is None:
                return malformed(step.path, f"unexpected text {found[:80]!r}")
            text = found
        known = self._journal.get(step.key) is not None
        unrecorded = self._record(step, field)
        if unrecorded is not None:
            return unrecorded
        started = self._clock.monotonic()
        io_error = self._tree.host.write(step.path, step.codec.render(text, step.key[2], field))
        if (
            io_error is not None
            and io_error.errno == errno.ENOSPC
            and step.knob_file.order is LimitOrder.INHERITED_CPUS
        ):
            field, io_error = self._write_all_cpus(step, io_error)
        self._measure(
            _KIND.get(KNOBS[step.key[0]].root, "default"), io_error is None, self._clock.monotonic() - started
        )
        if io_error is not None:
            if not known:
                self._journal.forget(step.key)  # nothing was changed, so there is nothing to undo
            return io_error
        self.audit_write(step, field)
        step.current = field
        return None

    def _write_all_cpus(self, step: PendingWrite, refused: IoError) -> tuple[str, IoError | None]:
        """Write all CPUs in place of none, and return what was written: version 2 refuses none to a group with
        processes, and takes of all CPUs those that the group above has, which is what none means.
        """
        every = self._tree.value(CPUSET_EFFECTIVE, "")
        if isinstance(every, IoError):
            return "", refused
        return every, self._tree.host.write(step.path, every)

    def _record(self, step: PendingWrite, field: str) -> IoError | None:
        """Record a write in the journal. A file that only changes along with another keeps the owner it has."""
        known = self._journal.get(step.key)
        if known is not None and step.original is not None and step.codec.same_field(known.original, step.original):
            step.original = known.original  # the same limit in the kernel's own notation
        owner, along = step.effect.owner, file_of_effect(step.effect).knob
        along = "" if along == step.key[0] else along
        if known is not None and (along or step.effect.cause == RECOVERY):
            owner, along = known.owner, known.along
        elif along and step.effect.cause == RECOVERY:
            return None  # what changes along while another file is restored is restored by that, too
        inode = self._tree.host.inode(step.path.rpartition("/")[0]) or 0
        return self._journal.record_write(step.key, owner, step.current, field, inode, along, step.original)

    def record_original(self, step: PendingWrite) -> IoError | None:
        """Record what a file would hold without the agent when it holds what is wanted already, and who wants it now.

        A file that would hold the same anyway needs no entry.
        """
        known, original = self._journal.get(step.key), step.original
        if known is None:
            needless = original is None or step.codec.same_field(original, step.target)
        else:
            needless = (
                known.owner == step.effect.owner
                and not known.along
                and (original is None or step.codec.same_field(known.original, original))
                and known.inode == self._tree.host.inode(step.path.rpartition("/")[0])
            )
        return None if needless else self._record(step, step.current)

    def audit_write(self, step: PendingWrite, field: str, io_error: IoError | None = None) -> None:
        """Audit a write. The executor audits refusals, as it knows whether they are new."""
        self._audit(
            WriteRecord(
                at=self._clock.time(),
                owner=step.effect.owner,
                knob=step.key[0],
                group=step.key[1],
                path=step.path,
                before=step.current,
                after=field,
                reason=step.effect.cause,
                why=step.effect.why,
                message=f"update {step.path} to {field}",
                refused="" if io_error is None else io_error.code,
            )
        )

    def _write_memory_limit(self, step: PendingWrite, field: str) -> IoError | None:
        swap = self._sibling_knob(step, MEMORY_SWAP_LIMIT)
        if (
            swap is None or limit_size(swap.current) == _UNLIMITED
        ):  # no accounting of swap, or no limit that could be in the way
            return self._write_field(step, field)
        # The room for swap stays what it was.
        room = limit_size(swap.current) - limit_size(step.current)
        together = _limit_with_room(field, room)
        if step.original is not None:
            swap.original = swap.codec.encode(_limit_with_room(step.original, room))
        if limit_size(field) > limit_size(step.current):
            return self._write_field(swap, together) or self._write_field(step, field)
        # The journal learns of the swap limit before the memory limit is lowered: a process that is killed between the
        # two writes must leave a line by which the swap limit stays what it was.
        known = self._journal.get(swap.key) is not None
        unrecorded = self._record(swap, swap.current)
        if unrecorded is not None:
            return unrecorded
        io_error = self._write_field(step, field)
        if io_error is not None:
            if not known:
                self._journal.forget(swap.key)
            return io_error
        return self._write_field(swap, together)

    def _write_cpu_idle(self, step: PendingWrite, field: str, shares: str | None, *, alone: bool) -> IoError | None:
        beside = self._sibling_knob(step, CPU_SHARES)
        if beside is None:
            return self._write_field(step, field)
        # Entering, the shares are lost: the journal learns of them first. Leaving, what they read as is no original.
        known = self._journal.get(beside.key)
        wanted = shares or (known.original if known is not None else None)
        if field == "1":
            unrecorded = self._record(beside, _SHARES_WHILE_IDLE[self._tree.version][0])
            if unrecorded is not None:
                return unrecorded
        io_error = self._write_field(step, field)
        if io_error is not None and known is None:
            self._journal.forget(beside.key)
        if io_error is not None or field == "1" or not alone:
            return io_error
        after = self._sibling_knob(step, CPU_SHARES)
        return None if after is None or wanted is None or wanted == after.current else self._write_field(after, wanted)

    def _sibling_knob(self, step: PendingWrite, knob: str) -> PendingWrite | None:
        """Return another knob of the same group as it is now."""
        file = CgroupFile(knob, step.key[1])
        path, knob_file = self._tree.path(file), self._tree.knob_file(knob)
        if path is None or knob_file is None:
            return None
        text = self._tree.host.read(path)
        field = None if isinstance(text, IoError) else knob_file.codec.extract(text, "")
        if field is None:
            return None
        return PendingWrite(step.effect, (knob, file.dir, ""), path, knob_file, field, field, field)


def _limit_with_room(limit: str, room: float) -> str:
    return "-1" if limit_size(limit) == _UNLIMITED else str(int(limit_size(limit) + room))


def explain_refusal(tree: CgroupTree, key: FileKey, knob_file: KnobFile, field: str) -> str:
    """Return which parent, child or sibling value conflicts with a refused field; "" when none can be seen.

    The kernel says EINVAL or EBUSY and no more; operators need the other number. It is read only after a refusal.
    """
    knob, group, _ = key
    if knob == CPU_SHARES and tree.value(CPU_IDLE, group) == "1":
        return "cpu.idle is 1"
    if knob in (CPU_BURST, CPU_QUOTA):
        other = CPU_QUOTA if knob == CPU_BURST else CPU_BURST
        found = tree.value(other, group)
        if isinstance(found, str):
            burst, quota = (field, found) if knob == CPU_BURST else (found, field)
            if limit_size(burst) > limit_size(quota):
                return f"{other} is {found}"
    if knob_file.order in (LimitOrder.FREE, LimitOrder.SIZE):
        return ""
    for above in ancestors(group):
        limit = _field(tree, knob, knob_file, above) if above else None
        if limit is not None and not fits(knob_file.order, field, limit):
            return f"{above} has {limit or 'nothing'}"
    children = tree.children(group, knob_file.subsystem)
    for below in [] if isinstance(children, IoError) else children:
        child = _field(tree, knob, knob_file, below)
        if child is not None and not fits(knob_file.order, child, field):
            return f"{below} has {child}"
    return ""


def _field(tree: CgroupTree, knob: str, knob_file: KnobFile, group: str) -> str | None:
    text = tree.read(knob, group)
    return None if isinstance(text, IoError) else knob_file.codec.extract(text, "")
