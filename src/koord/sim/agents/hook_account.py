"""The account of hooks on a simulated node: its runtime asks for them in the same process, so no call takes time."""

from __future__ import annotations

from collections.abc import Mapping

from koord.koordlet.hook_calls.hook_calls import HookStatistics
from koord.koordlet.hook_calls.reconciled_hooks import ReconciledHooks, hook_statuses, time_text
from koord.koordlet.hook_status import HookConnection, HooksStatus
from koord.koordlet.strategies.runtime_hooks import HookedPod, RuntimeHooksState

_RUNTIME = "simulated"


class SimulatedHookAccount:
    def __init__(self, gates: frozenset[str]) -> None:
        self._gates = gates
        self._statistics = HookStatistics(lambda hook, stage, success, seconds: None)
        self._reconciled = ReconciledHooks(self._statistics)
        self._since_s: float | None = None
        self.pods: Mapping[str, HookedPod] = {}  # what hooks last decided, by uid

    def note(self, now_s: float, state: RuntimeHooksState | None) -> None:
        """Take account of a run of the hooks; None is a run that failed before it decided anything."""
        if self._since_s is None:
            self._since_s = now_s
        if state is None:
            return
        self.pods = state.pods
        for _, problem in self._reconciled.note(now_s, state.pods.values()):
            self._statistics.record_failure(problem.hook, now_s, problem.problem)

    def status(self) -> HooksStatus:
        connected = self._since_s is not None
        connection = HookConnection(
            name=_RUNTIME,
            connected=connected,
            state="connected" if connected else "no hook has run yet",
            since=time_text(self._since_s),
            details={"runtime": _RUNTIME},
        )
        return HooksStatus(
            connections=(connection,), hooks=hook_statuses(self._gates, self.pods.values(), self._statistics)
        )
