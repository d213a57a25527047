"""The executor's state: who owns each file, what it should hold, when to check it, and which writes were refused."""

from __future__ import annotations

import msgspec

from koord.host.cgroup.knob import CPU_BURST, CPU_QUOTA
from koord.host.io_error import IoError
from koord.koordlet.cgroup_writer.effects import (
    FileKey,
    OwnerConflict,
    WriteCgroup,
    WriteEffect,
    WriteOutcome,
    WriteSystem,
    value_of_effect,
)
from koord.koordlet.cgroup_writer.errno_policy import ErrnoVerdict, back_off_s

_FIRST_LOOK_S = 1.0
_PAIRED_KNOB = {CPU_QUOTA: CPU_BURST, CPU_BURST: CPU_QUOTA}
# Another value may be tried soon, whatever happened to the last one; later, when all of them are refused.
_CHANGED_VALUE_S, _CHANGED_MOST_S = 1.0, 16.0


class KnownFile(msgspec.Struct):
    """A file whose value is known, and when it is to be checked again."""

    owner: str
    value: str
    target: str  # the value as it stands in the file
    actual: str
    recheck_at: float
    recheck_after_s: float
    why: str = ""
    written_s: float | None = None  # in seconds since the epoch; None: it was right when it was first read


class RefusedWrite(msgspec.Struct):
    """The last refusal of a file and the back-off that it causes."""

    value: str
    code: str
    at: float
    until: float
    wait_s: float
    changed_s: float = _CHANGED_VALUE_S


class ExecutorState:
    """The state of one executor. Times are the clock's monotonic seconds.

    `revision` grows with every change, so that what was concluded from the state can be used until then.
    """

    def __init__(self, refresh_s: float) -> None:
        self._refresh_s = refresh_s
        self.revision = 0
        self.entries: dict[FileKey, KnownFile] = {}
        self.owners: dict[FileKey, str] = {}
        self.refusals: dict[FileKey, RefusedWrite] = {}
        self.disabled_knobs: dict[str, IoError] = {}

    def claim(self, effects: list[tuple[FileKey, WriteEffect]]) -> None:
        """Claim the files for their owners, or raise before anything is written."""
        taken: dict[FileKey, str] = {}
        for key, effect in effects:
            owner = taken.get(key, effect.owner)
            if key not in taken:
                held = self.owners.get(key, effect.owner)
                owner = (
                    effect.owner
                    if isinstance(effect, WriteCgroup | WriteSystem) and held in effect.takes_over
                    else held
                )
            if owner != effect.owner:
                raise OwnerConflict(f"{effect.owner} wants to write {key}, which {owner} owns")
            taken[key] = owner
        if any(self.owners.get(key) != owner for key, owner in taken.items()):
            self.owners.update(taken)
            self.revision += 1

    def is_fresh(self, key: FileKey, owner: str, value: str, now: float) -> bool:
        """Return whether the file is known to hold the value for this owner and need not be read yet."""
        entry = self.entries.get(key)
        return entry is not None and entry.value == value and entry.owner == owner and now < entry.recheck_at

    def settle(
        self,
        key: FileKey,
        effect: WriteEffect,
        target: str,
        actual: str,
        now: float,
        written_s: float | None = None,
    ) -> None:
        """Record that the file holds its target. `written_s` is when it was written, None when it was right already.

        A file that changed recently is checked again soon: a kubelet that is still setting up the pod may overwrite it,
        and must not win for a whole refresh period.
        """
        self.revision += 1
        entry, value = self.entries.get(key), value_of_effect(effect)
        kept = entry is not None and entry.value == value and entry.actual == actual
        if written_s is None and entry is not None and entry.value == value:
            written_s = entry.written_s
        after = min(entry.recheck_after_s * 2, self._refresh_s) if kept and entry is not None else _FIRST_LOOK_S
        self.entries[key] = KnownFile(effect.owner, value, target, actual, now + after, after, effect.why, written_s)
        self.refusals.pop(key, None)

    def is_backing_off(self, key: FileKey, value: str, now: float) -> bool:
        refusal = self.refusals.get(key)
        if refusal is None:
            return False
        return now < (refusal.until if refusal.value == value else min(refusal.until, refusal.at + refusal.changed_s))

    def record_refusal(self, key: FileKey, value: str, code: str, verdict: ErrnoVerdict, now: float) -> bool:
        """Record a refusal and its back-off; return whether it is a new kind of refusal."""
        self.revision += 1
        before = self.refusals.get(key)
        changed = _CHANGED_VALUE_S if before is None else min(2 * before.changed_s, _CHANGED_MOST_S)
        wait = back_off_s(verdict, before.wait_s if before is not None and before.value == value else 0.0)
        wait = max(wait, changed)
        self.refusals[key] = RefusedWrite(value, code, now, now + wait, wait, changed)
        self.entries.pop(key, None)
        return before is None or before.code != code

    def retry_related(self, key: FileKey) -> None:
        """End the back-off of related files after a write that worked: the kernel may accept them now."""
        knob, group, _ = key
        paired = _PAIRED_KNOB.get(knob)
        for other in [
            other
            for other in self.refusals
            if other[0] in (knob, paired)
            and (is_ancestor_or_same(other[1], group) or is_ancestor_or_same(group, other[1]))
        ]:
            self.refusals[other].until = 0.0

    def disable_knob(self, knob: str, io_error: IoError) -> None:
        self.revision += 1
        self.disabled_knobs[knob] = io_error

    def drop_entry(self, key: FileKey) -> None:
        self.revision += 1
        self.entries.pop(key, None)

    def forget(self, key: FileKey) -> None:
        self.drop_entry(key)
        self.refusals.pop(key, None)
        self.owners.pop(key, None)


def is_ancestor_or_same(above: str, below: str) -> bool:
    return above == below or not above or below.startswith(f"{above}/")


OUTCOME_OF_VERDICT = {
    ErrnoVerdict.VANISHED: WriteOutcome.VANISHED,
    ErrnoVerdict.ABSENT: WriteOutcome.OFF,
    ErrnoVerdict.OFF: WriteOutcome.OFF,
    ErrnoVerdict.DISPUTED: WriteOutcome.REJECTED,
    ErrnoVerdict.REJECTED: WriteOutcome.REJECTED,
    ErrnoVerdict.RETRY: WriteOutcome.FAILED,
}
