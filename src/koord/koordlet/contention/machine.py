"""A machine that exists in memory only: strategies read and write its files as they do a real one's, and time passes
in steps of any length. What a step comes to is decided in `filling`, `throttling`, `memory` and `strain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.api.qos_class import BE, BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.api.resource_name import BATCH_CPU, MEMORY
from koord.host.cgroup import knob
from koord.host.cgroup.layout import CGROUPFS, Layout
from koord.koordlet.apply.result import FileEffect, Result
from koord.koordlet.contention import placement
from koord.koordlet.contention.cpu import Processing
from koord.koordlet.contention.files import MAINLINE, Files
from koord.koordlet.contention.memory import Holder, Space, settle
from koord.koordlet.contention.moment import Fare, Moment, Wish
from koord.koordlet.contention.parameter import DEFAULT, Parameters
from koord.koordlet.contention.throttling import Quota, throttled_share
from koord.koordlet.machine import Shape
from koord.koordlet.plan import WriteCgroup, WriteSystem
from koord.koordlet.pod import PodView
from koord.koordlet.strategies import file
from koord.koordlet.strategies.disk import Disks
from koord.koordlet.strategies.processor import Processor
from koord.values.cpuset import CPUSet

LAYOUT = Layout(CGROUPFS)
GROUPS = {kube_qos: LAYOUT.qos_dir(kube_qos) for kube_qos in (GUARANTEED, BURSTABLE, BEST_EFFORT)}
_KIB = 1024


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware and kernel of a simulated machine."""
    processors: tuple[Processor, ...]
    memory_bytes: int
    disks: Disks = Disks()
    files: frozenset[str] = MAINLINE  # that the kernel has
    page_bytes: int = 4096


class SimulatedMachine:
    """Implements `koord.koordlet.machine.Machine`. Pods change with `set_pods`, time passes with `step`."""

    def __init__(self, hardware: Hardware, parameters: Parameters = DEFAULT) -> None:
        cpus = CPUSet.of(one.cpu for one in hardware.processors)
        self._hardware = hardware
        self._parameters = parameters
        self._shape = Shape(
            processors=hardware.processors,
            groups=GROUPS,
            page_bytes=hardware.page_bytes,
            disks=hardware.disks,
            layout=LAYOUT,
        )
        self._files = Files(hardware.files, cpus, self._touch)
        self._cpu = Processing(self._files, cpus, parameters)
        self._touched: set[str] = set()
        self._spaces: tuple[Space, ...] | None = None
        self._pods: tuple[PodView, ...] = ()
        self._housed: dict[str, PodView] = {}  # by uid
        self._be_request_milli = 0
        self._files.make("", {})
        for kube_qos, group in GROUPS.items():
            weight = placement.shares(1000 * len(cpus)) if kube_qos == GUARANTEED else placement.LEAST_SHARES
            self._files.make(group, {file.CPU_SHARES: str(weight)})

    # What strategies see ----------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        return self._shape

    def knob(self, group: str, file: str) -> str | None:
        return self._files.read(group, file)

    def has(self, file: str) -> bool:
        return file in self._files.known

    def below(self, group: str) -> tuple[str, ...]:
        return self._files.below(group)

    def threads(self, group: str) -> tuple[int, ...]:
        return ()

    def cached_threads(self, name: str) -> frozenset[int]:
        return frozenset()

    def limited_disks(self, group: str) -> frozenset[str]:
        return self._files.disks(group)

    def carry_out(self, effects: Sequence[FileEffect], *, whole_of: Sequence[str] = ()) -> Sequence[Result]:
        results = [self._files.write(effect) for effect in effects]
        for owner in whole_of:
            named = [
                _place(one) for one in effects if isinstance(one, WriteCgroup | WriteSystem) and one.owner == owner
            ]
            results += self._files.give_back(owner, named, "nobody asks for it any more")
        return results

    def release(self, owner: str, why: str) -> Sequence[Result]:
        return self._files.give_back(owner, (), why)

    # Pods -------------------------------------------------------------------------------------------------------

    def house(self, pods: tuple[PodView, ...]) -> None:
        """Set the pods on the machine: groups are made and removed as a kubelet does."""
        if pods is self._pods:
            return
        self._pods = pods
        here = {pod.uid: pod for pod in pods}
        for uid in [uid for uid in self._housed if uid not in here]:
            self._remove(self._housed.pop(uid))
        for pod in pods:
            known = self._housed.get(pod.uid)
            if known is not pod:
                self._admit(pod, known)
                self._housed[pod.uid] = pod
        asked = sum(placement.asked(pod.requests, ("cpu",)) or 0 for pod in pods if pod.kube_qos == BURSTABLE)
        self._files.make(GROUPS[BURSTABLE], {file.CPU_SHARES: str(placement.shares(asked))})
        self._be_request_milli = sum(pod.requests.get(BATCH_CPU, 0) for pod in pods if pod.qos == BE)

    def _admit(self, pod: PodView, known: PodView | None) -> None:
        if known is None or known.requests != pod.requests or known.limits != pod.limits:
            self._files.make(pod.group, placement.beginning(pod.requests, placement.pod_limits(pod)))
        before = {one.group: one for one in known.containers if one.group} if known is not None else {}
        now = {one.group: one for one in pod.containers if one.group}
        for group in before.keys() - now.keys():
            self._drop(group)
        for group, one in now.items():
            old = before.get(group)
            if old is None or old.requests != one.requests or old.limits != one.limits:
                values = placement.beginning(one.requests, one.limits)
                self._files.make(group, values)

    def _remove(self, pod: PodView) -> None:
        self._drop(pod.group)

    def _drop(self, group: str) -> None:
        self._files.remove(group)
        self._cpu.drop(group)
        self._spaces = None

    # Time -------------------------------------------------------------------------------------------------------

    def step(self, now_s: float, step_s: float, wishes: Mapping[str, Wish], system: Wish) -> Moment:
        """Simulate the `step_s` seconds up to `now_s`. `demands` are by container id; a missing
        container demands nothing.
        """
        self._cpu.refresh(self._touched)
        self._touched.clear()
        running = [
            (pod, one, wishes[one.id])
            for pod in self._housed.values()
            for one in pod.containers
            if one.group and one.id in wishes
        ]
        done = self._cpu.share(step_s, {one.group: wish.cpu_milli for _, one, wish in running}, system.cpu_milli)
        held = settle(
            self._hardware.memory_bytes,
            system.memory_bytes,
            self._memory_spaces(),
            [
                Holder(
                    group=one.group,
                    allocated=wish.memory_bytes,
                    cache=wish.cache_bytes,
                    score_adj=placement.score_adj(pod, one.requests.get(MEMORY, 0), self._hardware.memory_bytes),
                    priority=self._files.number(one.group, file.MEMORY_PRIORITY, 0),
                )
                for pod, one, wish in running
            ],
            self._files.number("", file.MIN_FREE_KBYTES, 0) * _KIB,
            self._parameters,
        )
        fares = {
            one.id: Fare(
                pod=pod.uid,
                wanted_milli=wish.cpu_milli,
                got_milli=done.got[one.group],
                throttled_share=throttled_share(self._cpu.quotas.get(one.group, _NO_QUOTA), wish.cpu_milli, wish.gust),
                memory_bytes=held.allocated.get(one.group, 0),
                cache_bytes=held.cache.get(one.group, 0),
                memory_stalled=held.stalled.get(one.group, 0.0),
                strain=done.strain[one.group],
            )
            for pod, one, wish in running
        }
        best_effort = {one.group for pod, one, _ in running if pod.is_best_effort}
        return Moment(
            at_s=now_s,
            step_s=step_s,
            fares=fares,
            system_milli=done.system_milli,
            system_bytes=system.memory_bytes,
            be_used_milli=sum(done.got[group] for group in best_effort),
            be_limit_milli=self._be_limit_milli(),
            be_request_milli=self._be_request_milli,
            kills=held.kills,
        )

    def _be_limit_milli(self) -> float:
        """Return the smallest cpuset of the BE root and the groups two levels below it, or the root's
        quota if that is less.
        """
        root = GROUPS[BEST_EFFORT]
        fewest = self._cpu.reach(root)
        for pod in self._files.below(root):
            for group in self._files.below(pod):
                fewest = min(fewest, self._cpu.reach(group))
        quota_us = self._files.number(root, file.CPU_QUOTA, -1)
        most = fewest * 1000.0
        return min(most, quota_us / 100) if quota_us > 0 else most

    def _touch(self, group: str) -> None:
        self._touched.add(group)
        self._spaces = None

    def _memory_spaces(self) -> tuple[Space, ...]:
        if self._spaces is None:
            found: list[Space] = []
            waiting: list[tuple[str, str | None]] = [("", None)]
            for group, above in waiting:  # grows while it is walked: parents before children
                found.append(self._space(group, above))
                waiting += [(name, group) for name in self._files.below(group)]
            self._spaces = tuple(found)
        return self._spaces

    def _space(self, group: str, above: str | None) -> Space:
        def bound(name: str) -> int | None:
            value = self._files.number(group, name, -1)
            return value if 0 < value < 2**62 else None

        number = self._files.number
        return Space(
            name=group,
            parent=above,
            limit=bound(knob.MEMORY_LIMIT),
            high=bound(file.MEMORY_HIGH),
            low=number(group, file.MEMORY_LOW, 0),
            least=number(group, file.MEMORY_MIN, 0),
            kill_together=number(group, file.MEMORY_OOM_GROUP, 0) == 1,
            oom_by_priority=number(group, file.MEMORY_USE_PRIORITY_OOM, 0) == 1,
        )


_NO_QUOTA = Quota()


def _place(effect: WriteCgroup | WriteSystem) -> tuple[str, str]:
    return (effect.group if isinstance(effect, WriteCgroup) else ""), effect.file
