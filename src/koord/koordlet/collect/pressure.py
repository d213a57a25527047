"""Stalls of pods and containers: the shares of time in which work waited for CPU, memory or disks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.host.cgroup.knob import CPU_PRESSURE, IO_PRESSURE, MEMORY_PRESSURE
from koord.host.cgroup.stat import Pressure
from koord.host.cgroup.tree import Tree
from koord.host.cgroup.usage import pressure
from koord.host.fault import Fault, lacking
from koord.koordlet.collect.condition import Conditions
from koord.koordlet.collect.settings import Timer
from koord.koordlet.pod import PodView
from koord.koordlet.series import kind
from koord.koordlet.series.store import Store

PRESSURE = "pressure"
RESOURCES = (("cpu", CPU_PRESSURE), ("mem", MEMORY_PRESSURE), ("io", IO_PRESSURE))


class PressureCollector:
    """Samples the PSI of pods and containers: shares of time in which work waited for CPU, memory or I/O."""
    def __init__(self, tree: Tree, store: Store, conditions: Conditions, every_s: float) -> None:
        self._tree = tree
        self._store = store
        self._conditions = conditions
        self._timer = Timer(every_s)
        self.latest: Mapping[tuple[str, str], Mapping[str, Pressure]] = {}  # by pod and container ("" for the pod)

    def sample(self, at_s: float, now_s: float, pods: Sequence[PodView]) -> None:
        if not self._timer.due(at_s):
            return
        missing = next((name for _, name in RESOURCES if not self._tree.supported(name)), None)
        if missing is not None:
            why = "this kernel tells no pressure of groups (it may have to be booted with psi=1)"
            self._conditions.fails(PRESSURE, lacking(missing, why), for_good=True)
            return
        latest: dict[tuple[str, str], Mapping[str, Pressure]] = {}
        trouble: Fault | None = None
        for pod in pods:
            if not pod.is_alive or not pod.group:
                continue
            targets = [(pod.group, "", kind.POD_PSI, kind.POD_PSI_CPU_FULL_SUPPORTED, pod.uid)]
            targets += [
                (one.group, one.id, kind.CONTAINER_PSI, kind.CONTAINER_PSI_CPU_FULL_SUPPORTED, one.id)
                for one in pod.containers
                if one.id and one.group
            ]
            for group, container, series, full, subject in targets:
                found = self._read(group)
                if isinstance(found, Fault):
                    trouble = trouble if found.vanished else found
                    continue
                latest[pod.uid, container] = found
                self._keep(series, full, subject, now_s, found)
        self.latest = latest
        if trouble is None:
            self._conditions.works(PRESSURE)
        else:
            self._conditions.fails(PRESSURE, trouble)

    def _read(self, group: str) -> dict[str, Pressure] | Fault:
        found: dict[str, Pressure] = {}
        for name, knob in RESOURCES:
            one = pressure(self._tree, knob, group)
            if isinstance(one, Fault):
                return one
            found[name] = one
        return found

    def _keep(self, series: str, full: str, subject: str, now_s: float, found: dict[str, Pressure]) -> None:
        for name, one in found.items():
            self._store.add((series, subject, name, "10", "some"), now_s, one.some.avg10)
            self._store.add((series, subject, name, "10", "full"), now_s, one.full.avg10)
        self._store.add((full, subject), now_s, float(found["cpu"].full_supported))
