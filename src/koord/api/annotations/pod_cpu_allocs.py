"""node.koordinator.sh/pod-cpu-allocs: pods whose CPUs the kubelet bound by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part
from koord.api.protocol import A_POD_CPU_ALLOCS


class PodCPUAlloc(Part, frozen=True, kw_only=True):
    """PodCPUAlloc is one entry of node.koordinator.sh/pod-cpu-allocs: a pod whose CPUs the kubelet bound by itself."""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    cpuset: str = ""
    managed_by_kubelet: bool = False


def parse(annotations: Mapping[str, str]) -> tuple[PodCPUAlloc, ...] | Malformed | None:
    return read(annotations, A_POD_CPU_ALLOCS, tuple[PodCPUAlloc, ...])


def dump(value: Sequence[PodCPUAlloc]) -> str:
    return written(value)
