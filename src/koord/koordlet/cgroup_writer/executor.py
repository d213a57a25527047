"""Execute effects on files: write only what differs, in a safe order, for one owner per file, undoable and audited.

Nothing that a node can do raises: every effect gets a FileWriteResult. Only a bug of the program raises (OwnerConflict,
an unknown knob). All calls come from one task.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Mapping, Sequence, Set

import msgspec

from koord.host import resctrl
from koord.host.cgroup.codec import loosest
from koord.host.cgroup.knob import CPU_IDLE, CPU_SHARES, KNOBS, CgroupFile, KnobFile, KnobRoot, KnobSupport
from koord.host.cgroup.tree import CgroupTree
from koord.host.core_sched import KernelTimeSlices, TimeSliceSystem
from koord.host.io_error import JOURNAL, IoError, malformed
from koord.koordlet.cgroup_writer import executor_state
from koord.koordlet.cgroup_writer.effects import (
    AddTasks,
    FileEffect,
    FileKey,
    FileWriteResult,
    SetTimeSlice,
    TaskEffect,
    WriteCgroup,
    WriteEffect,
    WriteOutcome,
    WriteSchemata,
    file_of_effect,
    value_of_effect,
)
from koord.koordlet.cgroup_writer.executor_state import HierarchyState, depth, rank_in_group
from koord.koordlet.cgroup_writer.file_writer import (
    RECOVERY,
    SHARES_AFTER_IDLE,
    AuditCallback,
    FileWriter,
    MeasureCallback,
    PendingWrite,
    explain_refusal,
    is_ours,
    no_op,
)
from koord.koordlet.cgroup_writer.journal import JournalEntry, WriteJournal
from koord.koordlet.problem_log import ProblemLog
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)
REFRESH_S = 60.0
_IDLE_DETAIL = "the group is idle (cpu.idle 1), which has no shares"


class CgroupExecutor:
    """The executor applies file effects to the cgroup tree and keeps what is needed to undo them."""

    def __init__(
        self,
        tree: CgroupTree,
        clock: Clock,
        *,
        journal: WriteJournal | None = None,
        audit: AuditCallback = no_op,
        measure: MeasureCallback = no_op,
        refresh_s: float = REFRESH_S,
        time_slices: TimeSliceSystem | None = None,
    ) -> None:
        """`time_slices` are those of another kernel than this machine's."""
        self._tree = tree
        self.time_slices = KernelTimeSlices(tree.host) if time_slices is None else time_slices
        self._clock = clock
        self._journal = journal if journal is not None else WriteJournal(tree.host)
        self._state = executor_state.ExecutorState(refresh_s)
        self.has_earlier_writes = len(self._journal) > 0  # of an earlier process
        self._writer = FileWriter(tree, clock, self._journal, audit, measure)
        self._steady_plans = executor_state.SteadyPlans(self._state)
        self._refresh_s = refresh_s
        self._sweep_at = clock.monotonic() + refresh_s
        self._journal_problem = ProblemLog(
            _LOG,
            "nothing new is written, as the journal that undoes it cannot be",
            "the journal can be written again",
        )

    @property
    def disabled_knobs(self) -> Mapping[str, IoError]:
        """Return the knobs that this node turned out not to support, each with the error that showed it."""
        return self._state.disabled_knobs

    @property
    def journal_problem(self) -> str:
        """Return why nothing new is written; "" while the journal works."""
        return self._journal_problem.problem

    @property
    def owners(self) -> Mapping[FileKey, str]:
        return self._state.owners

    @property
    def known_files(self) -> Mapping[FileKey, executor_state.KnownFile]:
        """Return the files that hold what was asked for, when they were last read."""
        return self._state.entries

    @property
    def refusals(self) -> Mapping[FileKey, executor_state.RefusedWrite]:
        return self._state.refusals

    def execute(self, effects: Sequence[FileEffect], *, verify: bool = False) -> list[FileWriteResult]:
        """Bring files to their values; the results are in the order of the effects.

        With `verify` every file is read, however recently it was right. Where one owner names a file twice, as an
        intermediate and as a final value, only the final one counts: intermediate values are found here, from what the
        files hold.
        """
        if not effects:
            return []
        name = ("", effects[0].owner)  # not the name of a complete plan
        steady = None if verify else self._steady_results(name, effects, ())
        if steady is not None:
            return steady
        results, by_file = self._execute(effects, verify=verify)
        self._steady_plans.remember(name, effects, (), by_file, self._sweep_at)
        return results

    def _steady_results(
        self, name: tuple[str, ...], effects: Sequence[FileEffect], kept: Sequence[tuple[str, str]]
    ) -> list[FileWriteResult] | None:
        found = self._steady_plans.results(name, effects, kept, self._clock.monotonic())
        if found is not None:
            self._journal.retry()
            self._check_journal()
        return found

    def _execute(
        self, effects: Sequence[FileEffect], *, verify: bool
    ) -> tuple[list[FileWriteResult], Sequence[tuple[FileKey, FileWriteResult]]]:
        """Execute; return the results, and those of files by their keys where each effect has a file of its own."""
        now = self._clock.monotonic()
        self._journal.retry()
        keys = [None if isinstance(effect, TaskEffect) else self._key(effect) for effect in effects]
        writes = [(key, effect) for key, effect in zip(keys, effects) if key and not isinstance(effect, TaskEffect)]
        self._state.claim(writes)
        last = dict(writes)
        results: dict[FileKey, FileWriteResult] = {}
        steps: list[PendingWrite] = []
        hierarchy = HierarchyState()
        waking = {key[1] for key, effect in last.items() if key[0] == CPU_IDLE and value_of_effect(effect) == "0"}
        for key, effect in last.items():
            fresh = not verify and self._state.is_fresh(key, effect.owner, value_of_effect(effect), now)
            if key[0] == CPU_SHARES and not fresh and key[1] not in waking and self._is_idle(key[1]):
                results[key] = FileWriteResult(effect, WriteOutcome.HELD, detail=_IDLE_DETAIL)
                continue
            found = self._prepare(key, effect, now, hierarchy, fresh=fresh)
            if isinstance(found, PendingWrite):
                steps.append(found)
            else:
                results[key] = found
        self._run_steps(steps, hierarchy, results, now)
        self._check_journal()
        if now >= self._sweep_at:
            self.sweep()
        in_order = [
            self._act_on_tasks(effect)
            if isinstance(effect, TaskEffect)
            else results[key]
            if key and last[key] is effect
            else FileWriteResult(effect, WriteOutcome.REPLACED)
            for key, effect in zip(keys, effects)
        ]
        return in_order, list(results.items()) if len(last) == len(effects) else ()

    def reconcile(
        self,
        owners: Sequence[str],
        effects: Sequence[FileEffect],
        *,
        kept: Sequence[tuple[str, str]] = (),
        verify: bool = False,
    ) -> list[FileWriteResult]:
        """Execute all that some owners want: files that they wrote before and do not mention now are restored.

        Files in `kept`, named by group and knob, stay as they are.
        """
        name = tuple(owners)
        steady = None if verify else self._steady_results(name, effects, kept)
        if steady is not None:
            return steady
        wanted = {self._key(effect) for effect in effects if not isinstance(effect, TaskEffect)}
        wanted |= {(knob, group, "") for group, knob in kept}
        results, by_file = self._execute(effects, verify=verify)
        left = [
            origin
            for owner in owners
            for origin in self._journal.entries_of(owner)
            if origin.key not in wanted and (origin.along, origin.dir, "") not in wanted
        ]
        undone = self._undo(left, "its owner no longer asks for it")
        for key in [key for key, owner in self._state.owners.items() if owner in owners and key not in wanted]:
            self._state.forget(key)
        self._steady_plans.remember(name, effects, kept, () if undone else by_file, self._sweep_at)
        return results + undone

    def release(self, owner: str, why: str = "switched off") -> list[FileWriteResult]:
        """Restore all files of an owner; it owns nothing afterwards."""
        results = self._undo(self._journal.entries_of(owner), why)
        for key in [key for key, name in self._state.owners.items() if name == owner]:
            self._state.forget(key)
        return results

    def release_others(self, owners: Set[str], why: str) -> list[FileWriteResult]:
        """Restore the files of all owners but these: a process of another version may have had more."""
        return self._undo([origin for origin in self._journal if origin.owner not in owners], why)

    def restore(self, why: str = "restore") -> list[FileWriteResult]:
        """Undo everything in the journal, whoever wrote it, also what an earlier process wrote."""
        results = self._undo(list(self._journal), why)
        for key in list(self._state.owners):
            self._state.forget(key)
        return results

    def sweep(self) -> int:
        """Forget files of groups that are gone, so that memory is bounded by the pods that exist; return how many."""
        self._sweep_at = self._clock.monotonic() + self._refresh_s
        known: dict[str, bool] = {}
        gone = 0
        for key in {*self._state.owners, *(origin.key for origin in self._journal)}:
            folder = self._tree.folder(CgroupFile(key[0], key[1])) or ""
            if folder not in known:
                known[folder] = self._tree.host.is_folder(folder)
            if not known[folder]:
                self._drop(key)
                gone += 1
        return gone

    def _key(self, effect: WriteEffect) -> FileKey:
        file = file_of_effect(effect)
        codec = self._tree.codec(file.knob)
        return (file.knob, file.dir, "" if codec is None else codec.key(value_of_effect(effect)))

    def _is_idle(self, group: str) -> bool:
        """Return whether the group is idle, whoever made it so: an earlier process may have."""
        return self._tree.value(CPU_IDLE, group) == "1"

    def _act_on_tasks(self, effect: TaskEffect) -> FileWriteResult:
        """Act on threads. Those that ended meanwhile are no failure."""
        io_errors = self._add_tasks(effect) if isinstance(effect, AddTasks) else self._set_time_slice(effect)
        lost = [one for one in io_errors if one.errno != errno.ESRCH]
        if not lost:
            return FileWriteResult(effect, WriteOutcome.WRITTEN)
        return FileWriteResult(effect, WriteOutcome.FAILED, detail=str(lost[0]), io_error=lost[0])

    def _add_tasks(self, effect: AddTasks) -> list[IoError]:
        """Move threads into a resctrl group."""
        io_error = resctrl.make_group(self._tree.host, effect.group)
        return [io_error] if io_error is not None else resctrl.add_tasks(self._tree.host, effect.group, effect.tasks)

    def _set_time_slice(self, effect: SetTimeSlice) -> list[IoError]:
        tried = (self.time_slices.set_slice(thread, effect.slice_ns) for thread in effect.tasks)
        return [one for one in tried if one is not None]

    def _prepare(
        self, key: FileKey, effect: WriteEffect, now: float, hierarchy: HierarchyState, *, fresh: bool
    ) -> PendingWrite | FileWriteResult:
        """Return the pending write of an effect, or its result when nothing has to be written."""
        knob, group, part = key
        value = value_of_effect(effect)
        knob_file, path = self._tree.knob_file(knob), self._tree.path(CgroupFile(knob, group))
        if knob_file is None or path is None:
            return FileWriteResult(effect, WriteOutcome.OFF, detail=f"cgroup v{self._tree.version} has no {knob}")
        if knob in self._state.disabled_knobs:
            return FileWriteResult(effect, WriteOutcome.OFF, io_error=self._state.disabled_knobs[knob])
        if fresh:
            entry = self._state.entries[key]
            hierarchy.set_field(knob, group, knob_file, entry.actual)
            return FileWriteResult(effect, WriteOutcome.FRESH, entry.actual)
        target = knob_file.codec.encode(value) if knob_file.writable else None
        if target is None:
            return FileWriteResult(effect, WriteOutcome.INVALID, detail=f"{knob} does not take {value!r}")
        if self._state.is_backing_off(key, value, now):
            return FileWriteResult(
                effect, WriteOutcome.WAITING, detail=f"refused before with {self._state.refusals[key].code}"
            )
        if isinstance(effect, WriteSchemata):
            resctrl.make_group(self._tree.host, group)  # if it fails, reading the group's file shows why
        text = self._tree.host.read(path)
        if isinstance(text, IoError):
            return self._handle_refusal(key, effect, knob_file, text, "", now)
        current = knob_file.codec.extract(text, part)
        if current is None:
            return self._handle_refusal(key, effect, knob_file, malformed(path, f"no value in {text[:80]!r}"), "", now)
        hierarchy.set_field(knob, group, knob_file, current)
        original = effect.original if isinstance(effect, WriteCgroup) else None
        step = PendingWrite(effect, key, path, knob_file, current, target, current)
        step.original = None if original is None else knob_file.codec.encode(original)
        if not knob_file.codec.same_field(current, target):
            return step
        unrecorded = self._writer.record_original(step)
        if unrecorded is not None:
            return self._unrecorded(step, unrecorded)
        self._state.settle(key, effect, target, current, now)
        return FileWriteResult(effect, WriteOutcome.SAME, current)

    def _unrecorded(self, step: PendingWrite, io_error: IoError) -> FileWriteResult:
        """Return the result of a write that the journal refused. Every file meets the same obstacle, so it is logged
        once and not for each.
        """
        self._state.drop_entry(step.key)
        detail = f"its value is not in the journal: {io_error}"
        return FileWriteResult(step.effect, WriteOutcome.FAILED, step.before, detail, io_error)

    def _run_steps(
        self, steps: list[PendingWrite], hierarchy: HierarchyState, results: dict[FileKey, FileWriteResult], now: float
    ) -> None:
        batch = {step.key for step in steps}
        down = sorted(steps, key=lambda step: (depth(step.key[1]), rank_in_group(step.key[0], step.target)))
        for step in down:
            looser = loosest(step.knob_file.order, step.current, step.target)
            if not step.codec.same_field(step.current, looser):
                self._write_step(step, looser, batch, hierarchy, results, now)
        for step in reversed(down):
            if step.key not in results and not step.codec.same_field(step.current, step.target):
                self._write_step(step, step.target, batch, hierarchy, results, now)
        for step in steps:
            if step.key not in results:
                same = step.codec.same_field(step.before, step.target)
                written_s = None if same else self._clock.time()
                self._state.settle(step.key, step.effect, step.target, step.current, now, written_s)
                status = WriteOutcome.SAME if same else WriteOutcome.WRITTEN
                results[step.key] = FileWriteResult(step.effect, status, step.before)

    def _write_step(
        self,
        step: PendingWrite,
        field: str,
        batch: Set[FileKey],
        hierarchy: HierarchyState,
        results: dict[FileKey, FileWriteResult],
        now: float,
    ) -> None:
        knob, group, _ = step.key
        obstacle = hierarchy.violation(knob, group, step.knob_file, field)
        if obstacle is not None:
            self._state.drop_entry(step.key)
            results[step.key] = FileWriteResult(step.effect, WriteOutcome.HELD, step.before, obstacle)
            return
        shares = self._state.entries.get((CPU_SHARES, group, "")) if knob == CPU_IDLE else None
        io_error = self._writer.write(step, field, batch, None if shares is None else shares.target)
        hierarchy.set_field(knob, group, step.knob_file, step.current)
        if io_error is None:
            self._state.retry_related(step.key)
            return
        if io_error.stage == JOURNAL:
            results[step.key] = self._unrecorded(step, io_error)
            return
        results[step.key] = self._handle_refusal(
            step.key, step.effect, step.knob_file, io_error, step.before, now, step, field
        )

    def _handle_refusal(
        self,
        key: FileKey,
        effect: WriteEffect,
        knob_file: KnobFile,
        io_error: IoError,
        before: str,
        now: float,
        step: PendingWrite | None = None,
        field: str = "",
    ) -> FileWriteResult:
        """Classify an I/O error, remember it, and report it once with its likely reason, also in the audit log."""
        verdict = executor_state.classify_io_error(
            io_error, folder_exists=self._group_remains(key), basic=knob_file.support is KnobSupport.ALWAYS
        )
        if verdict is executor_state.ErrnoVerdict.DISPUTED:
            taken = step is not None and self._writer.accepts_own_value(step)
            verdict = executor_state.ErrnoVerdict.REJECTED if taken else executor_state.ErrnoVerdict.OFF
        if verdict is executor_state.ErrnoVerdict.ABSENT and self._absent_everywhere(key[0], knob_file):
            verdict = executor_state.ErrnoVerdict.OFF
        if verdict is executor_state.ErrnoVerdict.OFF and self._others_may_write(key[0], io_error):
            verdict = executor_state.ErrnoVerdict.REJECTED
        detail = str(io_error)
        news = False
        if verdict is executor_state.ErrnoVerdict.VANISHED:
            self._drop(key)
        elif verdict is executor_state.ErrnoVerdict.OFF:
            news = True
            self._state.disable_knob(key[0], io_error)
            self._state.forget(key)
            _LOG.warning("%s is switched off on this node: %s (asked for by %s)", key[0], io_error, effect.owner)
        else:
            if step is not None:
                detail = "; ".join(filter(None, (detail, explain_refusal(self._tree, key, knob_file, field))))
            news = self._state.record_refusal(key, value_of_effect(effect), io_error.code, _back_off_kind(verdict), now)
            if news:
                _LOG.warning("%s of %s cannot be %s: %s", key[0], key[1] or "/", value_of_effect(effect), detail)
        if news and step is not None:
            self._writer.audit_write(step, field, io_error)
        return FileWriteResult(effect, executor_state.OUTCOME_OF_VERDICT[verdict], before, detail, io_error)

    def _others_may_write(self, knob: str, io_error: IoError) -> bool:
        """Return whether the same file of all pods is writable: then one group is odd, and the knob stays enabled."""
        if io_error.errno not in (errno.EACCES, errno.EPERM):
            return False
        path = self._tree.path(CgroupFile(knob, self._tree.layout.kubepods))
        return path is not None and path != io_error.path and self._tree.host.writable(path)

    def _group_remains(self, key: FileKey) -> bool:
        """Return whether a missing file means a missing feature: its group exists, or is no group that could vanish."""
        if KNOBS[key[0]].root in (KnobRoot.PROC, KnobRoot.SYS) or not self._tree.is_mounted(key[0]):
            return True
        return self._tree.host.is_folder(self._tree.folder(CgroupFile(key[0], key[1])) or "")

    def _absent_everywhere(self, knob: str, knob_file: KnobFile) -> bool:
        """Return whether the group of all pods, once it exists, lacks the file: then the whole node does."""
        if knob_file.support is KnobSupport.ROOT or not self._tree.is_mounted(knob):
            return True
        everywhere = CgroupFile(knob, self._tree.layout.kubepods)
        folder, path = self._tree.folder(everywhere), self._tree.path(everywhere)
        if knob_file.support is KnobSupport.ALWAYS or folder is None or path is None:
            return False
        return self._tree.host.is_folder(folder) and not self._tree.host.exists(path)

    def _undo(self, origins: Iterable[JournalEntry], why: str) -> list[FileWriteResult]:
        """Restore the originals. An entry goes when its file has its original, or when there is nothing to restore any
        more; what the kernel refuses now stays, to be tried again.
        """
        now = self._clock.monotonic()
        self._journal.retry()
        results: dict[FileKey, FileWriteResult] = {}
        steps: list[PendingWrite] = []
        hierarchy = HierarchyState()
        by_key = {origin.key: origin for origin in origins}
        for origin in by_key.values():
            idle = self._journal.get((CPU_IDLE, origin.dir, "")) if origin.knob == CPU_SHARES else None
            if idle is not None and idle.key not in by_key and self._is_idle(origin.dir):
                self._journal.follow(origin, idle.owner, CPU_IDLE)
                self._state.forget(origin.key)
                continue
            found = self._restore_step(origin, why, idle)
            if isinstance(found, PendingWrite):
                hierarchy.set_field(origin.knob, origin.dir, found.knob_file, found.current)
                steps.append(found)
            else:
                results[origin.key] = found
        self._run_steps(steps, hierarchy, results, now)
        for key, result in results.items():
            if result.is_settled:
                self._drop(key)
        self._check_journal()
        return list(results.values())

    def _restore_step(
        self, origin: JournalEntry, why: str, idle: JournalEntry | None
    ) -> PendingWrite | FileWriteResult:
        """Return the write that undoes an entry, or why there is nothing to write. `idle` is restored with it."""
        file = CgroupFile(origin.knob, origin.dir)
        knob_file, path = self._tree.knob_file(origin.knob), self._tree.path(file)
        effect = WriteCgroup(
            group=origin.dir, file=origin.knob, value=origin.original, owner=origin.owner, cause=RECOVERY, why=why
        )
        if knob_file is None or path is None:
            return FileWriteResult(effect, WriteOutcome.VANISHED, detail=f"there is no {origin.knob} any more")
        effect = msgspec.structs.replace(effect, value=knob_file.codec.decode(origin.original))
        text = self._tree.host.read(path)
        if isinstance(text, IoError) and not text.vanished:
            return FileWriteResult(effect, WriteOutcome.FAILED, detail=str(text), io_error=text)
        current = None if isinstance(text, IoError) else knob_file.codec.extract(text, origin.part)
        inode = self._tree.host.inode(path.rpartition("/")[0]) or 0
        if current is None or inode != origin.inode:
            return FileWriteResult(effect, WriteOutcome.VANISHED, detail=f"{path} is not the file that was written")
        if not is_ours(self._tree.version, origin, knob_file.codec, current):
            return FileWriteResult(effect, WriteOutcome.OVERWRITTEN, current, f"{path} has {current}")
        if origin.knob == CPU_SHARES and self._is_idle(origin.dir):
            if idle is None or idle.original == "1":
                status = WriteOutcome.HELD if idle is None else WriteOutcome.SAME
                return FileWriteResult(effect, status, current, _IDLE_DETAIL)
            # What the file reads as now may equal the original, and is lost when the group leaves idle before this.
            current = SHARES_AFTER_IDLE[self._tree.version]
        return PendingWrite(effect, origin.key, path, knob_file, current, origin.original, current)

    def _check_journal(self) -> None:
        io_error = self._journal.io_error
        if io_error is None:
            self._journal_problem.works()
        else:
            self._journal_problem.fails(io_error, io_error.code)

    def _drop(self, key: FileKey) -> None:
        self._state.forget(key)
        self._journal.forget(key)


def _back_off_kind(verdict: executor_state.ErrnoVerdict) -> executor_state.ErrnoVerdict:
    """Return the verdict that decides the back-off: a file that one group lacks waits as long as a rejected value."""
    return executor_state.ErrnoVerdict.REJECTED if verdict is executor_state.ErrnoVerdict.ABSENT else verdict
