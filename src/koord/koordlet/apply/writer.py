"""Write one file with what must happen around it: the journal before, the audit after, and files that change together.

Two pairs of cgroup v1 change together. memory.limit_in_bytes may not exceed memory.memsw.limit_in_bytes, which runtimes
set to the same number. And a group that leaves cpu.idle loses its cpu.shares.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import msgspec

from koord.host.cgroup.codec import Codec
from koord.host.cgroup.knob import (
    CPU_IDLE,
    CPU_SHARES,
    KNOBS,
    MEMORY_LIMIT,
    MEMORY_SWAP_LIMIT,
    Area,
    Place,
)
from koord.host.cgroup.order import size
from koord.host.cgroup.tree import File, Tree
from koord.host.fault import Fault, malformed
from koord.koordlet.apply.journal import Journal, Key
from koord.koordlet.apply.result import Record, Write, file_of
from koord.telemetry.clock import Clock

_KIND = {Area.CGROUP: "cgroup", Area.RESCTRL: "resctrl-schema"}  # of the metric of update times
_UNLIMITED = float("inf")
# What cpu.shares or cpu.weight reads as after cpu.idle was written: (idle, version).
_SHARES_AFTER = {(True, 1): "3", (True, 2): "0", (False, 1): "1024", (False, 2): "100"}

Audit = Callable[[Record], None]
Measure = Callable[[str, bool, float], None]


class Step(msgspec.Struct):
    """One file of a batch on its way from `current` to `target`, both as they stand in the file."""

    effect: Write
    key: Key
    path: str
    place: Place
    now: str
    target: str
    before: str

    @property
    def codec(self) -> Codec:
        return self.place.codec


def nothing(*_: object) -> None:
    """Ignore all arguments: the default callback."""


class Writer:
    """The writer performs single writes of a batch and journals and audits each of them."""
    def __init__(self, tree: Tree, clock: Clock, journal: Journal, audit: Audit, measure: Measure) -> None:
        self._tree = tree
        self._clock = clock
        self._journal = journal
        self._audit = audit
        self._measure = measure

    def put(self, step: Step, field: str, batch: Set[Key], shares: str | None = None) -> Fault | None:
        """Write the field and the files that change with it, unless the batch has a pending write of its own for those.

        `shares` is what a group leaving idle should have again.
        """
        knob, group, _ = step.key
        if knob == MEMORY_LIMIT and self._tree.version == 1 and (MEMORY_SWAP_LIMIT, group, "") not in batch:
            return self._put_limit(step, field)
        if knob == CPU_IDLE:
            return self._put_idle(step, field, shares, alone=(CPU_SHARES, group, "") not in batch)
        if knob == CPU_SHARES:  # a group that left idle in this batch has other shares than were read
            now = self._beside(step, CPU_SHARES)
            step.now = step.now if now is None else now.now
        return self._put(step, field)

    def own_value_taken(self, step: Step) -> bool:
        """Return whether the kernel accepts the value that the file already has: if not, the knob itself does not work.

        A file that cannot be read any more proves nothing, and counts as accepted.
        """
        text = self._tree.host.read(step.path)
        field = None if isinstance(text, Fault) else step.codec.pick(text, step.key[2])
        if isinstance(text, Fault) or field is None:
            return True
        return self._tree.host.write(step.path, step.codec.line(text, step.key[2], field)) is None

    def _put(self, step: Step, field: str) -> Fault | None:
        text = ""
        if step.codec.needs_text:
            found = self._tree.host.read(step.path)
            if isinstance(found, Fault):
                return found
            if step.codec.pick(found, step.key[2]) is None:
                return malformed(step.path, f"unexpected text {found[:80]!r}")
            text = found
        inode = self._tree.host.identity(step.path.rpartition("/")[0]) or 0
        known = self._journal.get(step.key) is not None
        owner = self._owner(step)
        self._journal.note(step.key, owner, step.now, field, inode)
        started = self._clock.monotonic()
        fault = self._tree.host.write(step.path, step.codec.line(text, step.key[2], field))
        self._measure(_KIND.get(KNOBS[step.key[0]].area, "default"), fault is None, self._clock.monotonic() - started)
        if fault is not None:
            if not known:
                self._journal.forget(step.key)  # nothing was changed, so there is nothing to undo
            else:
                self._journal.note(step.key, owner, step.now, step.now, inode)
            return fault
        self.record(step, field)
        step.now = field
        return None

    def _owner(self, step: Step) -> str:
        """Return the journal owner of the file: one that only changes along with another keeps the owner it has."""
        known = self._journal.get(step.key)
        along = file_of(step.effect).knob != step.key[0]
        return known.owner if along and known is not None else step.effect.owner

    def record(self, step: Step, field: str, fault: Fault | None = None) -> None:
        """Audit a write. The executor audits refusals, as it knows whether they are new."""
        self._audit(
            Record(
                at=self._clock.time(),
                owner=step.effect.owner,
                knob=step.key[0],
                group=step.key[1],
                path=step.path,
                before=step.now,
                after=field,
                reason=step.effect.cause,
                why=step.effect.why,
                message=f"update {step.path} to {field}",
                refused="" if fault is None else fault.code,
            )
        )

    def _put_limit(self, step: Step, field: str) -> Fault | None:
        swap = self._beside(step, MEMORY_SWAP_LIMIT)
        if swap is None or size(swap.now) == _UNLIMITED:  # no accounting of swap, or no limit that could be in the way
            return self._put(step, field)
        # The room for swap stays what it was.
        room = size(swap.now) - size(step.now)
        together = "-1" if size(field) == _UNLIMITED else str(int(size(field) + room))
        raising = size(field) > size(step.now)
        fault = self._put(swap, together) if raising else self._put(step, field)
        if fault is not None:
            return fault
        return self._put(step, field) if raising else self._put(swap, together)

    def _put_idle(self, step: Step, field: str, shares: str | None, *, alone: bool) -> Fault | None:
        beside = self._beside(step, CPU_SHARES)
        if beside is None:
            return self._put(step, field)
        # Entering, shares read as nonsense from then on; leaving, they are the kernel's default. Either is foretold to
        # the journal: a process that is killed right after must leave a line by which the old shares come back.
        known = self._journal.get(beside.key)
        wanted = shares or (known.original if known is not None else None)
        self._foretell(beside, _SHARES_AFTER[field == "1", self._tree.version])
        fault = self._put(step, field)
        after = self._beside(step, CPU_SHARES)
        if fault is not None and known is None:
            self._journal.forget(beside.key)
        elif after is not None:
            self._foretell(beside, after.now)
        if fault is not None or field == "1" or not alone:
            return fault
        return None if after is None or wanted is None or wanted == after.now else self._put(after, wanted)

    def _foretell(self, step: Step, field: str) -> None:
        """Journal a value that the kernel is about to set by itself."""
        inode = self._tree.host.identity(step.path.rpartition("/")[0]) or 0
        self._journal.note(step.key, self._owner(step), step.now, field, inode)

    def _beside(self, step: Step, knob: str) -> Step | None:
        """Return another knob of the same group as it is now."""
        file = File(knob, step.key[1])
        path, place = self._tree.path(file), self._tree.place(knob)
        if path is None or place is None:
            return None
        text = self._tree.host.read(path)
        field = None if isinstance(text, Fault) else place.codec.pick(text, "")
        if field is None:
            return None
        return Step(step.effect, (knob, file.dir, ""), path, place, field, field, field)
