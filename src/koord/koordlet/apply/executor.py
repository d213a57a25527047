"""Execute effects on files: write only what differs, in a safe order, for one owner per file, undoable and audited.

Nothing that a node can do raises: every effect gets a FileWriteResult. Only a bug of the program raises (OwnerConflict,
an unknown knob). All calls come from one task.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Mapping, Sequence, Set

from koord.host import resctrl
from koord.host.cgroup.knob import CPU_IDLE, CPU_SHARES, KNOBS, Area, Place, Support
from koord.host.cgroup.order import loosest
from koord.host.cgroup.tree import File, Tree
from koord.host.fault import Fault, malformed
from koord.koordlet.apply.journal import Journal, Key, Origin
from koord.koordlet.apply.level import Level, depth, rank
from koord.koordlet.apply.obstruction import obstruction
from koord.koordlet.apply.result import FileEffect, Result, Status, Write, file_of, value_of
from koord.koordlet.apply.state import STATUS, Memory
from koord.koordlet.apply.verdict import Verdict, judge
from koord.koordlet.apply.writer import Audit, Measure, Step, Writer, nothing
from koord.koordlet.plan import AddTasks, WriteCgroup, WriteSchemata
from koord.telemetry.clock import Clock

log = logging.getLogger(__name__)
REFRESH_S = 60.0


class Executor:
    """The executor applies file effects to the cgroup tree and keeps what is needed to undo them."""
    def __init__(
        self,
        tree: Tree,
        clock: Clock,
        *,
        journal: Journal | None = None,
        audit: Audit = nothing,
        measure: Measure = nothing,
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._tree = tree
        self._clock = clock
        self._journal = journal if journal is not None else Journal(tree.host)
        self._memory = Memory(refresh_s)
        self._writer = Writer(tree, clock, self._journal, audit, measure)
        self._refresh_s = refresh_s
        self._sweep_at = clock.monotonic() + refresh_s
        self._journal_said = ""

    @property
    def off(self) -> Mapping[str, Fault]:
        """Return the knobs that this node turned out not to support, each with the error that showed it."""
        return self._memory.off

    @property
    def owners(self) -> Mapping[Key, str]:
        """Return the owner of each file."""
        return self._memory.owners

    def execute(self, effects: Sequence[FileEffect]) -> list[Result]:
        """Bring files to their values; the results are in the order of the effects.

        Where one owner names a file twice, as an intermediate and as a final value, only the final one counts:
        intermediate values are found here, from what the files hold.
        """
        now = self._clock.monotonic()
        keys = [None if isinstance(effect, AddTasks) else self._key(effect) for effect in effects]
        writes = [(key, effect) for key, effect in zip(keys, effects) if key and not isinstance(effect, AddTasks)]
        self._memory.claim(writes)
        last = dict(writes)
        results: dict[Key, Result] = {}
        steps: list[Step] = []
        level = Level()
        waking = {key[1] for key, effect in last.items() if key[0] == CPU_IDLE and value_of(effect) == "0"}
        for key, effect in last.items():
            if key[0] == CPU_SHARES and key[1] not in waking and self._idle(key[1]):
                detail = "the group is idle (cpu.idle 1), which has no shares"
                results[key] = Result(effect, Status.HELD, detail=detail)
                continue
            found = self._prepare(key, effect, now, level)
            if isinstance(found, Step):
                steps.append(found)
            else:
                results[key] = found
        self._run(steps, level, results, now)
        self._check_journal()
        if now >= self._sweep_at:
            self.sweep()
        return [
            self._move(effect)
            if isinstance(effect, AddTasks)
            else results[key]
            if key and last[key] is effect
            else Result(effect, Status.REPLACED)
            for key, effect in zip(keys, effects)
        ]

    def reconcile(self, owner: str, effects: Sequence[FileEffect]) -> list[Result]:
        """Execute all that an owner wants: files that it wrote before and does not mention now are restored."""
        wanted = {self._key(effect) for effect in effects if not isinstance(effect, AddTasks)}
        left = [origin for origin in self._journal.of(owner) if origin.key not in wanted]
        results = [*self.execute(effects), *self._undo(left, f"{owner} no longer asks for it")]
        for key in [key for key, name in self._memory.owners.items() if name == owner and key not in wanted]:
            self._memory.forget(key)
        return results

    def release(self, owner: str, why: str = "switched off") -> list[Result]:
        """Restore all files of an owner; it owns nothing afterwards."""
        results = self._undo(self._journal.of(owner), why)
        for key in [key for key, name in self._memory.owners.items() if name == owner]:
            self._memory.forget(key)
        return results

    def restore(self, why: str = "restore") -> list[Result]:
        """Undo everything in the journal, whoever wrote it, also what an earlier process wrote."""
        results = self._undo(list(self._journal), why)
        for key in list(self._memory.owners):
            self._memory.forget(key)
        return results

    def reconsider(self) -> None:
        """Enable disabled knobs again, after an operator changed the node."""
        self._memory.off.clear()

    def sweep(self) -> int:
        """Forget files of groups that are gone, so that memory is bounded by the pods that exist; return how many."""
        self._sweep_at = self._clock.monotonic() + self._refresh_s
        known: dict[str, bool] = {}
        gone = 0
        for key in {*self._memory.owners, *(origin.key for origin in self._journal)}:
            folder = self._tree.folder(File(key[0], key[1])) or ""
            if folder not in known:
                known[folder] = self._tree.host.is_folder(folder)
            if not known[folder]:
                self._drop(key)
                gone += 1
        return gone

    def _key(self, effect: Write) -> Key:
        file = file_of(effect)
        codec = self._tree.codec(file.knob)
        return (file.knob, file.dir, "" if codec is None else codec.key(value_of(effect)))

    def _idle(self, group: str) -> bool:
        """Return whether this executor made the group idle."""
        entry = self._memory.entries.get((CPU_IDLE, group, ""))
        return entry is not None and entry.actual == "1"

    def _move(self, effect: AddTasks) -> Result:
        """Move threads into a resctrl group. Threads that ended meanwhile are no failure, a group
        that cannot be made is.
        """
        host = self._tree.host
        fault = resctrl.make_group(host, effect.group)
        faults = [fault] if fault is not None else resctrl.add_tasks(host, effect.group, effect.tasks)
        lost = [one for one in faults if one.errno != errno.ESRCH]
        if not lost:
            return Result(effect, Status.WRITTEN)
        return Result(effect, Status.FAILED, detail=str(lost[0]), fault=lost[0])

    def _prepare(self, key: Key, effect: Write, now: float, level: Level) -> Step | Result:
        """Return the pending write of an effect, or its result when nothing has to be written."""
        knob, group, part = key
        value = value_of(effect)
        place, path = self._tree.place(knob), self._tree.path(File(knob, group))
        if place is None or path is None:
            return Result(effect, Status.OFF, detail=f"cgroup v{self._tree.version} has no {knob}")
        if knob in self._memory.off:
            return Result(effect, Status.OFF, fault=self._memory.off[knob])
        if self._memory.fresh(key, value, now):
            entry = self._memory.entries[key]
            level.put(knob, group, place, entry.actual)
            return Result(effect, Status.FRESH, entry.actual)
        target = place.codec.encode(value) if place.writable else None
        if target is None:
            return Result(effect, Status.INVALID, detail=f"{knob} does not take {value!r}")
        if self._memory.waits(key, value, now):
            return Result(effect, Status.WAITING, detail=f"refused before with {self._memory.refusals[key].code}")
        if isinstance(effect, WriteSchemata):
            resctrl.make_group(self._tree.host, group)  # if it fails, reading the group's file shows why
        text = self._tree.host.read(path)
        if isinstance(text, Fault):
            return self._refused(key, effect, place, text, "", now)
        current = place.codec.pick(text, part)
        if current is None:
            return self._refused(key, effect, place, malformed(path, f"no value in {text[:80]!r}"), "", now)
        level.put(knob, group, place, current)
        if place.codec.same(current, target):
            self._memory.settle(key, effect.owner, value, target, current, now)
            return Result(effect, Status.SAME, current)
        return Step(effect, key, path, place, current, target, current)

    def _run(self, steps: list[Step], level: Level, results: dict[Key, Result], now: float) -> None:
        batch = {step.key for step in steps}
        down = sorted(steps, key=lambda step: (depth(step.key[1]), rank(step.key[0], step.target)))
        for step in down:
            looser = loosest(step.place.order, step.now, step.target)
            if not step.codec.same(step.now, looser):
                self._make(step, looser, batch, level, results, now)
        for step in reversed(down):
            if step.key not in results and not step.codec.same(step.now, step.target):
                self._make(step, step.target, batch, level, results, now)
        for step in steps:
            if step.key not in results:
                self._memory.settle(step.key, step.effect.owner, value_of(step.effect), step.target, step.now, now)
                results[step.key] = Result(step.effect, Status.WRITTEN, step.before)

    def _make(
        self, step: Step, field: str, batch: Set[Key], level: Level, results: dict[Key, Result], now: float
    ) -> None:
        knob, group, _ = step.key
        obstacle = level.obstacle(knob, group, step.place, field)
        if obstacle is not None:
            self._memory.entries.pop(step.key, None)
            results[step.key] = Result(step.effect, Status.HELD, step.before, obstacle)
            return
        shares = self._memory.entries.get((CPU_SHARES, group, "")) if knob == CPU_IDLE else None
        fault = self._writer.put(step, field, batch, None if shares is None else shares.target)
        level.put(knob, group, step.place, step.now)
        if fault is None:
            self._memory.encourage(step.key)
            return
        results[step.key] = self._refused(step.key, step.effect, step.place, fault, step.before, now, step, field)

    def _refused(
        self,
        key: Key,
        effect: Write,
        place: Place,
        fault: Fault,
        before: str,
        now: float,
        step: Step | None = None,
        field: str = "",
    ) -> Result:
        """Classify an I/O error, remember it, and report it once: in the log, in the audit log, with its likely
        reason.
        """
        verdict = judge(fault, folder_exists=self._stays(key), basic=place.support is Support.ALWAYS)
        if verdict is Verdict.DISPUTED:
            taken = step is not None and self._writer.own_value_taken(step)
            verdict = Verdict.REJECTED if taken else Verdict.OFF
        if verdict is Verdict.ABSENT and self._absent_everywhere(key[0], place):
            verdict = Verdict.OFF
        if verdict is Verdict.OFF and self._others_may_write(key[0], fault):
            verdict = Verdict.REJECTED
        detail = str(fault)
        news = False
        if verdict is Verdict.VANISHED:
            self._drop(key)
        elif verdict is Verdict.OFF:
            news = True
            self._memory.off[key[0]] = fault
            self._memory.forget(key)
            log.warning("%s is switched off on this node: %s (asked for by %s)", key[0], fault, effect.owner)
        else:
            if step is not None:
                detail = "; ".join(filter(None, (detail, obstruction(self._tree, key, place, field))))
            news = self._memory.refuse(key, value_of(effect), fault.code, _waiting(verdict), now)
            if news:
                log.warning("%s of %s cannot be %s: %s", key[0], key[1] or "/", value_of(effect), detail)
        if news and step is not None:
            self._writer.record(step, field, fault)
        return Result(effect, STATUS[verdict], before, detail, fault)

    def _others_may_write(self, knob: str, fault: Fault) -> bool:
        """Return whether the same file of all pods is writable: then one group is odd, and the knob stays enabled."""
        if fault.errno not in (errno.EACCES, errno.EPERM):
            return False
        path = self._tree.path(File(knob, self._tree.layout.kubepods))
        return path is not None and path != fault.path and self._tree.host.writable(path)

    def _stays(self, key: Key) -> bool:
        """Return whether a missing file means a missing feature: its group exists, or is no group that could vanish."""
        if KNOBS[key[0]].area in (Area.PROC, Area.SYS) or not self._tree.mounted(key[0]):
            return True
        return self._tree.host.is_folder(self._tree.folder(File(key[0], key[1])) or "")

    def _absent_everywhere(self, knob: str, place: Place) -> bool:
        """Return whether the group of all pods, once it exists, lacks the file: then the whole node does."""
        if place.support is Support.ROOT or not self._tree.mounted(knob):
            return True
        everywhere = File(knob, self._tree.layout.kubepods)
        folder, path = self._tree.folder(everywhere), self._tree.path(everywhere)
        if place.support is Support.ALWAYS or folder is None or path is None:
            return False
        return self._tree.host.is_folder(folder) and not self._tree.host.exists(path)

    def _undo(self, origins: Iterable[Origin], why: str) -> list[Result]:
        now = self._clock.monotonic()
        results: dict[Key, Result] = {}
        steps: list[Step] = []
        level = Level()
        for origin in origins:
            step = self._backwards(origin, why)
            if step is None:
                self._drop(origin.key)
                continue
            level.put(origin.knob, origin.dir, step.place, step.now)
            steps.append(step)
        self._run(steps, level, results, now)
        for key, result in results.items():
            if result.settled:
                self._drop(key)
        return list(results.values())

    def _backwards(self, origin: Origin, why: str) -> Step | None:
        """Return the write that undoes an entry, or None when the group is gone, was recreated, or
        somebody else wrote since.
        """
        file = File(origin.knob, origin.dir)
        place, path = self._tree.place(origin.knob), self._tree.path(file)
        if place is None or path is None:
            return None
        text = self._tree.host.read(path)
        current = None if isinstance(text, Fault) else place.codec.pick(text, origin.part)
        inode = self._tree.host.identity(path.rpartition("/")[0]) or 0
        if current is None or inode != origin.inode:
            return None
        if not any(place.codec.same(current, ours) for ours in (origin.last, origin.prior)):
            return None
        effect = WriteCgroup(
            group=origin.dir,
            file=origin.knob,
            value=place.codec.decode(origin.original),
            owner=origin.owner,
            cause="recovery",
            why=why,
        )
        return Step(effect, origin.key, path, place, current, origin.original, current)

    def _check_journal(self) -> None:
        fault = self._journal.fault
        if fault is not None and fault.code != self._journal_said:
            log.warning("the journal cannot be written, so writes cannot be undone after a restart: %s", fault)
        self._journal_said = "" if fault is None else fault.code

    def _drop(self, key: Key) -> None:
        self._memory.forget(key)
        self._journal.forget(key)


def _waiting(verdict: Verdict) -> Verdict:
    """Return the verdict that decides the back-off: a file that one group lacks waits as long as a rejected value."""
    return Verdict.REJECTED if verdict is Verdict.ABSENT else verdict
