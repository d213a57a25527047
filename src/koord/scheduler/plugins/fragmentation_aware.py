"""Keep GPUs whole: place pods where they leave the least that the pods of this cluster could not use.

Off unless a profile enables it at score. What pods are expected is learnt from the GPU pods that run now. Where a share
of a card goes is chosen the same way, if DeviceShare gives it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable
from typing import Literal

import msgspec
import numpy as np

from koord.api import device as wire
from koord.api.custom import DEVICES
from koord.api.resource_name import CPU, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.policy.device.fragmentation import CARD_MILLI, Choice, Room, Shape, Typical, descent, typical_pods
from koord.policy.device.inventory import WHOLE
from koord.policy.device.request import GpuNeed, asks_for_devices, gpu_need, normalised
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin, Scores
from koord.scheduler.framework.verdict import ROW
from koord.scheduler.plugins.device_share.book import Book
from koord.scheduler.plugins.device_share.site import Site
from koord.scheduler.state import shape as state_shape
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, Rows

_NAME = "FragmentationAware"
_MEMORY_OF_A_CARD = 16 << 30  # for pods that ask for bytes, before any card is known
_KEPT = 1 << 15
_FEW = 16


class Mix:
    """The GPU pods that run, by what they ask for. `version` moves when they have become others to a tenth."""

    def __init__(self, state: ClusterState) -> None:
        self._counts: Counter[Shape] = Counter()
        self._changes = 0
        self._expected: tuple[Typical, ...] | None = None
        self.version = 0
        state.listen(self._placed)

    def _placed(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        shape = shape_of(pod.shape)
        if shape is None:
            return
        self._counts[shape] += 1 if what == "add" else -1
        self._changes += 1
        if self._changes * 10 > self._counts.total() + _FEW:
            self._changes = 0
            self._expected = None
            self.version += 1

    def expected(self) -> tuple[Typical, ...]:
        if self._expected is None:
            self._expected = typical_pods((+self._counts).elements())
        return self._expected


class _Outlook(msgspec.Struct, frozen=True):
    """What was found of rooms, for one kind of pod under one mix. CPU matters only by whom it is enough for."""

    version: int
    expected: tuple[Typical, ...]
    cpus: tuple[int, ...]
    known: dict[Hashable, Choice | None] = {}


class FragmentationAware(Plugin):
    name = _NAME
    scope = ROW

    def __init__(self, handle: Handle) -> None:
        self._book = handle.state.derived(Book)
        self._mix = handle.state.derived(Mix)
        handle.lister(DEVICES).on_change(self._book.device_changed)
        self._outlooks: dict[Shape, _Outlook] = {}

    def ground(self, state: ClusterState) -> Hashable:
        return self._mix.version

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        shape = shape_of(pod.shape)
        site = self._book.of(node) if shape is not None else None
        if shape is None or site is None:
            return 0
        found = self._choice(shape, site, node)
        return 0 if found is None else found.score

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        if shape_of(pod.shape) is None:
            return np.zeros(len(table.alive[rows]), np.int64)
        nodes = (table.nodes[row] for row in np.arange(table.size)[rows])
        found = (0 if n is None or n.node is None else self.score(cycle, pod, n) for n in nodes)
        return np.fromiter(found, np.int64, len(table.alive[rows]))

    def best_card(self, pod: PodInfo, site: Site, node: NodeInfo) -> int | None:
        """The minor of the card that a share should come from."""
        shape = shape_of(pod.shape)
        if shape is None or shape.gpu_count != 1 or shape.gpu_milli >= CARD_MILLI:
            return None
        placed = node.pods.get(pod.uid)  # it is counted on the node already
        found = self._choice(shape, site, node, back=0 if placed is None else placed.requests.get(CPU, 0))
        minors = list(site.inventory.of(wire.GPU))
        return None if found is None or not found.cards else minors[found.cards[0]]

    def _choice(self, shape: Shape, site: Site, node: NodeInfo, back: int = 0) -> Choice | None:
        outlook = self._outlook(shape)
        if not outlook.expected:
            return None
        left = site.free_of(wire.GPU)
        gpus = tuple(left[minor].get(GPU_MEMORY_RATIO, 0) * CARD_MILLI // WHOLE for minor in left)
        cpu = node.allocatable.get(CPU, 0) - node.requested.get(CPU, 0) + back
        key = (gpus, *(bisect_right(outlook.cpus, free) for free in (cpu, cpu - shape.cpu_milli)))
        if key not in outlook.known:
            if len(outlook.known) >= _KEPT:
                outlook.known.clear()
            outlook.known[key] = descent(Room(cpu, gpus), shape, outlook.expected)
        return outlook.known[key]

    def _outlook(self, shape: Shape) -> _Outlook:
        known = self._outlooks.get(shape)
        if known is None or known.version != self._mix.version:
            expected = self._mix.expected()
            cpus = sorted({shape.cpu_milli, *(one.shape.cpu_milli for one in expected)})
            if len(self._outlooks) >= _KEPT:
                self._outlooks.clear()
            known = self._outlooks[shape] = _Outlook(self._mix.version, expected, tuple(cpus), {})
        return known


def shape_of(spec: state_shape.Shape) -> Shape | None:
    """What a pod asks of CPU and GPUs; None for one that asks for no GPU."""
    known = spec.memo.get(_NAME)
    if known is None:
        need = _need(spec)
        known = spec.memo[_NAME] = (None,) if need is None else (_shape(need, spec.requests.get(CPU, 0)),)
    found: Shape | None = known[0]
    return found


def _need(spec: state_shape.Shape) -> GpuNeed | None:
    asked = asks_for_devices(spec.requests)
    found = normalised(dict(asked)) if asked else None
    return gpu_need(found[wire.GPU]) if isinstance(found, dict) and wire.GPU in found else None


def _shape(need: GpuNeed, cpu_milli: int) -> Shape:
    ratio = need.each.get(GPU_MEMORY_RATIO)
    if ratio is None:
        ratio = min(need.each.get(GPU_MEMORY, 0) * WHOLE // _MEMORY_OF_A_CARD, WHOLE)
    return Shape(cpu_milli, max(ratio, 1) * CARD_MILLI // WHOLE, need.count)
