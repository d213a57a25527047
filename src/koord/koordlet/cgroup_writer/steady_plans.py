"""Plans whose files were all right when they were last executed: executing the same plan again needs no work.

That holds until a file is due to be read again, or the executor's state changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.koordlet.cgroup_writer.effects import FileEffect, FileKey, FileWriteResult, WriteOutcome
from koord.koordlet.cgroup_writer.executor_state import ExecutorState


class SteadyPlan(msgspec.Struct, frozen=True, kw_only=True):
    effects: tuple[FileEffect, ...]
    kept: tuple[tuple[str, str], ...]
    revision: int  # of the executor's state
    due: float  # when the first file is to be read
    results: tuple[FileWriteResult, ...]


class SteadyPlans:
    """The last plan under each name, where all of it is right."""

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
