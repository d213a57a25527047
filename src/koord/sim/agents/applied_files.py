"""What the agent of a simulated node gave to the cgroup files of its machine: by whom, why and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koord.host.cgroup.knob import PER_DISK_FILES
from koord.koordlet.cgroup_writer.effects import FileWriteResult, WriteCgroup, WriteOutcome
from koord.koordlet.container_values import AppliedValue, KernelValue
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.sim.machine.cgroup_files import RESTORE
from koord.sim.machine.simulated_machine import SimulatedMachine


class SimulatedAppliedFiles:
    """Implements `koord.koordlet.container_values.AppliedFiles` from the results of strategies."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine
        self._values: dict[str, dict[str, AppliedValue]] = {}  # by group and knob
        self._refusals: dict[str, dict[str, str]] = {}
        self._pods: tuple[PodMeta, ...] = ()

    def record(self, now_s: float, results: Iterable[FileWriteResult]) -> None:
        for result in results:
            effect = result.effect
            if isinstance(effect, WriteCgroup) and effect.file not in PER_DISK_FILES:
                self._record(now_s, effect, result)

    def forget_removed(self, pods: tuple[PodMeta, ...]) -> None:
        """Forget groups that are gone with their pods, so that memory is bounded by the pods that exist."""
        if pods is self._pods:
            return
        self._pods = pods
        for known in (self._values, self._refusals):
            for group in [group for group in known if not self._machine.has_group(group)]:
                del known[group]

    def applied(self, group: str) -> Mapping[str, AppliedValue]:
        return self._values.get(group, {})

    def refusal(self, group: str, knob: str) -> str:
        return self._refusals.get(group, {}).get(knob, "")

    def read(self, group: str, knob: str, wanted: str) -> KernelValue:
        found = self._machine.read_knob(group, knob)
        return KernelValue(value=found, differs=found is not None and found != wanted)

    def _record(self, now_s: float, effect: WriteCgroup, result: FileWriteResult) -> None:
        group, file = effect.group, effect.file
        if effect.cause == RESTORE or not result.is_applied:
            self._values.get(group, {}).pop(file, None)
            if not result.is_applied and result.status is not WriteOutcome.VANISHED:
                self._refusals.setdefault(group, {})[file] = result.detail or result.status.value
            return
        self._refusals.get(group, {}).pop(file, None)
        values = self._values.setdefault(group, {})
        known = values.get(file)
        written_s = now_s if result.status is WriteOutcome.WRITTEN else None
        if written_s is None and known is not None and known.value == effect.value:
            if known.owner == effect.owner and known.why == effect.why:
                return
            written_s = known.written_s
        values[file] = AppliedValue(value=effect.value, owner=effect.owner, why=effect.why, written_s=written_s)
