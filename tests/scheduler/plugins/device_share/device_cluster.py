"""A small cluster with devices, driven as the scheduler drives it: decide, assume, reserve, bind, observe, delete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from koord.api.config.scheduler.koordinator_args import DeviceShareArgs, defaulted_device_share
from koord.api.koordinator.protocol import (
    A_DEVICE_ALLOCATE_HINT,
    A_DEVICE_ALLOCATED,
    A_DEVICE_JOINT_ALLOCATE,
    A_GPU_PARTITION_SPEC,
)
from koord.api.koordinator.scheduling import Device
from koord.api.kubernetes.resource import Resource
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.framework.reservation import writable_reservations
from koord.scheduler.framework.verdict import Fault, PodPatch, PreBindActions, Reject, Skip
from koord.scheduler.plugins.device_share.cache import NodeDeviceCache
from koord.scheduler.plugins.device_share.plugin import DeviceShare
from tests.scheduler.builders import make_node, make_pod
from tests.scheduler.fake_handles import FakeLister
from tests.scheduler.plugins.device_share.device_builders import REFERENCE_GPUS, REFERENCE_RDMA, device

NOW = 1_767_225_600.0  # 2026-01-01


def named(machine: Device, name: str) -> Device:
    return msgspec.structs.replace(machine, metadata=msgspec.structs.replace(machine.metadata, name=name))


def reference_machine(name: str = "n0", **more: Any) -> Device:
    return named(device(*REFERENCE_GPUS, *REFERENCE_RDMA, **more), name)


def asking(
    name: str,
    requests: Mapping[str, int | str],
    *,
    hint: Any = None,
    joint: Any = None,
    partition: Any = None,
    annotations: Mapping[str, str] | None = None,
    **more: Any,
) -> Pod:
    noted = dict(annotations or {})
    for key, value in (
        (A_DEVICE_ALLOCATE_HINT, hint),
        (A_DEVICE_JOINT_ALLOCATE, joint),
        (A_GPU_PARTITION_SPEC, partition),
    ):
        if value is not None:
            noted[key] = value if isinstance(value, str) else json.dumps(value)
    asked = {key: str(value) for key, value in requests.items()}
    return make_pod(name, more=asked, annotations=noted, **more)


class DeviceCluster:
    """The handle of its plugin, and the cluster around it."""

    def __init__(self, *machines: Device, args: DeviceShareArgs | None = None, **options: Any) -> None:
        self.state = ClusterState()
        self.actions = SchedulerActions()
        self.listers: dict[str, FakeLister] = {}
        for machine in machines:
            self.state.set_node(make_node(machine.metadata.name))
            self.devices.put(machine)
        self.plugin = DeviceShare(defaulted_device_share(args or DeviceShareArgs()), self, **options)
        self.cycle = CycleState(self.state)

    @property
    def devices(self) -> FakeLister:
        return self.lister_of("Device")

    @property
    def book(self) -> NodeDeviceCache:
        return self.plugin.cache

    def lister(self, resource: Resource[Any]) -> Any:
        return self.lister_of(resource.kind)

    def lister_of(self, kind: str) -> FakeLister:
        return self.listers.setdefault(kind, FakeLister())

    def now(self) -> float:
        return NOW

    # The way of a pod --------------------------------------------------------------------------------------------

    def judged(self, pod: Pod | PodInfo, node: str = "n0") -> str:
        """Return the text of Filter's rejection of a node; "" when it takes the pod."""
        info = pod if isinstance(pod, PodInfo) else self.state.pod_info(pod)
        cycle = CycleState(self.state)
        reservations, given = writable_reservations(cycle), writable_reservations(self.cycle)
        reservations.matched, reservations.nominated = given.matched, given.nominated
        answer = self.plugin.pre_filter(cycle, info)
        if isinstance(answer, Skip):
            return ""
        if isinstance(answer, Reject):
            return answer.text
        found = self.plugin.filter(cycle, info, self.state.table.index[node])
        return "" if found is None else found.text

    def reserve(self, pod: Pod, node: str = "n0") -> str:
        """Assume the pod there and let the plugin choose; undone when it refuses."""
        info = self.state.pod_info(pod)
        self.state.assume(info, node)
        answer = self.plugin.reserve(self.cycle, info, self.state.table.index[node])
        if answer is None:
            return ""
        self.undo(pod, node)
        return answer.text if isinstance(answer, Reject) else answer.message

    def undo(self, pod: Pod, node: str = "n0") -> None:
        self.plugin.unreserve(self.cycle, self.state.pod_info(pod), node)
        self.state.forget(pod.metadata.uid)

    def mark(self, pod: Pod, node: str = "n0") -> PodPatch | Fault | PreBindActions | None:
        work = self.plugin.pre_bind(self.cycle, self.state.pod_info(pod), node)
        assert not isinstance(work, Reject)
        return work

    def bound(self, pod: Pod, node: str = "n0") -> Pod:
        """The pod as the server shows it after the binding."""
        work = self.mark(pod, node)
        mark = work.pod_patch if isinstance(work, PreBindActions) else work
        assert not isinstance(mark, Fault), mark
        carried = {**pod.metadata.annotations, **(mark.annotations if mark is not None else {})}
        seen = msgspec.structs.replace(
            pod,
            metadata=msgspec.structs.replace(pod.metadata, annotations=carried),
            spec=msgspec.structs.replace(pod.spec, node_name=node),
        )
        self.state.set_pod(seen)
        return seen

    def place(self, pod: Pod, node: str = "n0") -> dict[str, tuple[int, ...]] | str:
        """All the way. Which devices it got by type, or who objected."""
        said = self.judged(pod, node) or self.reserve(pod, node)
        if said:
            return said
        return minors_of(self.bound(pod, node))

    def check(self) -> None:
        """Assert that the cache counts what live pods carry and what is assumed, and that no card is given twice."""
        book = self.book
        assert {(node, uid): held for node, uid, held in book.iter_allocations()} == book.rebuild_allocations()
        assert all(uid in {p.uid for p in self.state.pods()} for uid in book.assumed)


def minors_of(pod: Pod) -> dict[str, tuple[int, ...]]:
    text = pod.metadata.annotations.get(A_DEVICE_ALLOCATED)
    return {} if text is None else {k: tuple(d["minor"] for d in found) for k, found in json.loads(text).items()}
