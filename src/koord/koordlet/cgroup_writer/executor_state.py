"""The executor's state: who owns each file, what it should hold, when to check it, and which writes were refused; and
the order of a batch of writes, with the rule between parents and children that must hold after each.

The errno table says what a refused open, read or write means for a knob, and how long to back off. EINVAL alone is
ambiguous: it means "no such feature" on some kernels and "not beside that other value" on all. The executor resolves
it by writing the file's own value back (`DISPUTED`).

Pass one goes down the tree and writes what is looser than now; pass two comes up and writes the wanted values. When a
write fails, those that relied on it are held back rather than made in a wrong order.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Iterable, Sequence

import msgspec

from koord.host.cgroup.codec import LimitOrder, fits, loosest
from koord.host.cgroup.knob import CPU_BURST, CPU_IDLE, CPU_QUOTA, MEMORY_LIMIT, MEMORY_SWAP_LIMIT, KnobFile
from koord.host.io_error import ABSENT, OPEN, PARSE, READ, WRITE, IoError
from koord.koordlet.cgroup_writer.effects import (
    FileEffect,
    FileKey,
    FileWriteResult,
    OwnerConflict,
    WriteCgroup,
    WriteEffect,
    WriteOutcome,
    WriteSystem,
    value_of_effect,
)

# Order in one group on the way down, widest first. On the way up it is reversed: burst, quota; limit, swap.
# Leaving idle comes first, since shares cannot be written before; entering idle comes last for the same reason.
_LEAVE_IDLE, _FIRST, _SECOND, _ANY, _LATE, _ENTER_IDLE = range(6)
_RANK = {MEMORY_SWAP_LIMIT: _FIRST, CPU_QUOTA: _SECOND, MEMORY_LIMIT: _SECOND, CPU_BURST: _LATE}


def depth(group: str) -> int:
    return group.count("/") + 1 if group else 0


def rank_in_group(knob: str, target: str) -> int:
    """Return the position of a knob among the writes of one group on the way down."""
    if knob == CPU_IDLE:
        return _LEAVE_IDLE if target == "0" else _ENTER_IDLE
    return _RANK.get(knob, _ANY)


def ancestors(group: str) -> Iterable[str]:
    """Yield the groups above, nearest first, the root ("") last."""
    while group:
        group = group.rpartition("/")[0]
        yield group


class HierarchyState:
    """The fields that the files of one batch hold right now."""

    def __init__(self) -> None:
        self._now: dict[tuple[str, str], str] = {}
        self._below: dict[tuple[str, str], list[str]] = {}

    def set_field(self, knob: str, group: str, knob_file: KnobFile, field: str) -> None:
        """Set the file's field, at the start and after each write."""
        if knob_file.order in (LimitOrder.FREE, LimitOrder.SIZE):
            return
        if (knob, group) not in self._now:
            for above in ancestors(group):
                self._below.setdefault((knob, above), []).append(group)
        self._now[knob, group] = field

    def violation(self, knob: str, group: str, knob_file: KnobFile, field: str) -> str | None:
        """Return why the field must not be written now: a group above or below in this batch that it would not fit.

        What does not fit already, because somebody else wrote it, does not prevent a write that improves it.
        """
        now = self._now.get((knob, group))
        if now is None:  # not a limit of a hierarchy
            return None
        narrower = loosest(knob_file.order, now, field) != field
        for above in ancestors(group):
            limit = self._now.get((knob, above))
            if limit is None or fits(knob_file.order, field, limit):
                continue
            if not narrower or fits(knob_file.order, now, limit):
                return f"{field or 'nothing'} does not fit in {limit or 'nothing'} of {above or 'the root'}"
        for below in self._below.get((knob, group), ()) if narrower else ():
            child = self._now[knob, below]
            if not fits(knob_file.order, child, field):
                return f"{child or 'nothing'} of {below} would not fit in {field or 'nothing'}"
        return None


class ErrnoVerdict(enum.Enum):
    VANISHED = "vanished"  # the group is gone, and the effect with it
    ABSENT = "absent"  # the group is there, the file is not
    OFF = "off"  # the node cannot do this: disable the knob
    DISPUTED = "disputed"  # either the value or the knob is refused: write the file's own value to tell which
    REJECTED = "rejected"  # this value is refused here as things are
    RETRY = "retry"  # nothing is wrong with the value


_TABLE = {
    (OPEN, errno.ENOENT): ErrnoVerdict.ABSENT,
    (OPEN, errno.ENOTDIR): ErrnoVerdict.VANISHED,
    (OPEN, errno.ENODEV): ErrnoVerdict.VANISHED,
    (OPEN, errno.EACCES): ErrnoVerdict.OFF,
    (OPEN, errno.EPERM): ErrnoVerdict.OFF,
    (OPEN, errno.EROFS): ErrnoVerdict.OFF,
    (OPEN, errno.EOPNOTSUPP): ErrnoVerdict.OFF,
    (OPEN, errno.ENOSYS): ErrnoVerdict.OFF,
    (READ, errno.ENODEV): ErrnoVerdict.VANISHED,
    (READ, errno.EOPNOTSUPP): ErrnoVerdict.OFF,  # pressure files of a kernel started with psi=0
    (READ, errno.ENOSYS): ErrnoVerdict.OFF,
    (READ, errno.EINVAL): ErrnoVerdict.OFF,
    (WRITE, errno.ENODEV): ErrnoVerdict.VANISHED,  # also "no such block device": the folder tells which
    (WRITE, errno.EOPNOTSUPP): ErrnoVerdict.OFF,
    (WRITE, errno.ENOSYS): ErrnoVerdict.OFF,
    (WRITE, errno.EROFS): ErrnoVerdict.OFF,
    (WRITE, errno.EPERM): ErrnoVerdict.OFF,
    (WRITE, errno.EINVAL): ErrnoVerdict.DISPUTED,
    (WRITE, errno.EACCES): ErrnoVerdict.REJECTED,  # version 1: a CPU that the parent's cpuset does not have
    (WRITE, errno.ENOSPC): ErrnoVerdict.REJECTED,  # an empty cpuset with tasks in it
    (WRITE, errno.ERANGE): ErrnoVerdict.REJECTED,  # a CPU that the machine does not have
    (WRITE, errno.E2BIG): ErrnoVerdict.REJECTED,
    (WRITE, errno.EOVERFLOW): ErrnoVerdict.REJECTED,
    (WRITE, errno.EBUSY): ErrnoVerdict.RETRY,  # a cpuset below still has the CPU; memory above the new limit
}


def classify_io_error(io_error: IoError, *, folder_exists: bool, basic: bool) -> ErrnoVerdict:
    """Classify an I/O error. `basic` knobs are in every kernel: no refused value disables them."""
    if io_error.stage == ABSENT:
        return ErrnoVerdict.OFF
    if io_error.stage == PARSE:
        return ErrnoVerdict.RETRY
    verdict = _TABLE.get((io_error.stage, io_error.errno), ErrnoVerdict.RETRY)
    if verdict is ErrnoVerdict.ABSENT and not folder_exists:
        return ErrnoVerdict.VANISHED
    if verdict is ErrnoVerdict.VANISHED and folder_exists:
        return ErrnoVerdict.REJECTED if io_error.stage == WRITE else ErrnoVerdict.RETRY
    if (
        basic
        and io_error.stage == WRITE
        and verdict in (ErrnoVerdict.DISPUTED, ErrnoVerdict.OFF)
        and io_error.errno != errno.EROFS
    ):
        return ErrnoVerdict.REJECTED
    return verdict


_FIRST_S = {ErrnoVerdict.REJECTED: 10.0, ErrnoVerdict.RETRY: 1.0}
_LONGEST_S = {ErrnoVerdict.REJECTED: 600.0, ErrnoVerdict.RETRY: 60.0}


def back_off_s(verdict: ErrnoVerdict, before_s: float) -> float:
    """Return how long to wait after a refusal when the wait before it was `before_s` (0: there was none)."""
    first, longest = _FIRST_S.get(verdict, 1.0), _LONGEST_S.get(verdict, 60.0)
    return min(max(before_s * 2, first), longest)


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


class SteadyPlan(msgspec.Struct, frozen=True, kw_only=True):
    effects: tuple[FileEffect, ...]
    kept: tuple[tuple[str, str], ...]
    revision: int  # of the executor's state
    due: float  # when the first file is to be read
    results: tuple[FileWriteResult, ...]


class SteadyPlans:
    """The last plan under each name, where all of its files were right: executing it again needs no work.

    That holds until a file is due to be read again, or the executor's state changes.
    """

    def __init__(self, state: ExecutorState) -> None:
        self._state = state
        self._plans: dict[tuple[str, ...], SteadyPlan] = {}

    def results(
        self, name: tuple[str, ...], effects: Sequence[FileEffect], kept: Sequence[tuple[str, str]], now: float
    ) -> list[FileWriteResult] | None:
        """Return the results of executing the plan again; None where it has to be executed."""
        plan = self._plans.get(name)
        if plan is None or plan.revision != self._state.revision or now >= plan.due:
            return None
        return list(plan.results) if plan.effects == tuple(effects) and plan.kept == tuple(kept) else None

    def remember(
        self,
        name: tuple[str, ...],
        effects: Sequence[FileEffect],
        kept: Sequence[tuple[str, str]],
        by_file: Sequence[tuple[FileKey, FileWriteResult]],
        due: float,
    ) -> None:
        """Keep a plan that was just executed, at the latest until `due`. `by_file` is empty where it is not steady."""
        fresh: dict[int, FileWriteResult] = {}  # by identity, as each effect has one file
        for key, result in by_file:
            entry = self._state.entries.get(key) if result.is_applied else None
            if entry is not None:
                due = min(due, entry.recheck_at)
                fresh[id(result.effect)] = FileWriteResult(result.effect, WriteOutcome.FRESH, entry.actual)
            elif result.status is WriteOutcome.OFF:
                fresh[id(result.effect)] = result
            else:
                break
        if not by_file or len(fresh) < len(by_file):
            self._plans.pop(name, None)
            return
        self._plans[name] = SteadyPlan(
            effects=tuple(effects),
            kept=tuple(kept),
            revision=self._state.revision,
            due=due,
            results=tuple(fresh[id(effect)] for effect in effects),
        )
