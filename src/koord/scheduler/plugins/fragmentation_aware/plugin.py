"""FragmentationAware places pods where they leave the least capacity that the typical pods could not use.

It is off unless a profile enables it at score. Pods without GPUs are scored too: the CPU that they take may
be what the GPUs beside it need. If DeviceShare allocates the card, this plugin also chooses which card a
share is taken from. The free percentage of each GPU is kept as columns.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from koord.api.koordinator import scheduling as wire
from koord.api.koordinator.custom_kinds import DEVICES
from koord.api.koordinator.resource_name import CPU, GPU_MEMORY_RATIO
from koord.policy.node_match import RequiredNodeAffinity
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import ALL_ROWS, NodeTable, Rows, grow_array
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin, Scores
from koord.scheduler.framework.verdict import CLUSTER
from koord.scheduler.plugins.device_share.cache import NodeDeviceCache
from koord.scheduler.plugins.device_share.node_devices import NodeDevices
from koord.scheduler.plugins.fragmentation_aware import fragmentation
from koord.scheduler.plugins.fragmentation_aware.fragmentation import FgdScorer, GpuPodShape, Ints, TypicalPod
from koord.scheduler.plugins.node_affinity import node_affinity_mask

_INITIAL_CARD_SLOTS = 8
# Percent. CPU without GPUs or GPUs without CPU are of use to fewer pods than either fragmentation alone would tell.
BALANCE_PERCENT = 10
MetConstraints = tuple[bool, ...]  # which constraints a node meets, in their order


def free_gpu_percents(node_devices: NodeDevices | None) -> tuple[int, ...]:
    """Return the free percentage of each GPU, in the order of their minors."""
    if node_devices is None:
        return ()
    found: tuple[int, ...] = node_devices.memoized(
        "percents",
        lambda: tuple(left.get(GPU_MEMORY_RATIO, 0) for left in node_devices.free_by_minor(wire.GPU).values()),
    )
    return found


class FreeGpuColumns:
    """The free GPU percentages by row and card slot, 0 where no card is; it follows the table's log of changes."""

    def __init__(self, table: NodeTable, cache: NodeDeviceCache) -> None:
        self._table = table
        self._cache = cache
        self._position = -1
        self._seen: list[NodeDevices | None] = []
        self._percents: Ints = np.zeros((0, _INITIAL_CARD_SLOTS), np.int64)

    def percents(self) -> Ints:
        table = self._table
        rows = table.changed_since(self._position)
        self._position = table.position
        if len(self._seen) != table.size:
            self._seen += [None] * (table.size - len(self._seen))
            self._percents = enlarged_matrix(self._percents, table.size, self._percents.shape[1])
        for row in range(table.size) if rows is None else rows:
            node = table.nodes[row]
            node_devices = None if node is None or node.node is None else self._cache.for_node(node)
            if node_devices is not self._seen[row]:
                self._seen[row] = node_devices
                self._write(row, free_gpu_percents(node_devices))
        return self._percents

    def _write(self, row: int, percents: Sequence[int]) -> None:
        if len(percents) > self._percents.shape[1]:
            self._percents = enlarged_matrix(self._percents, len(self._percents), len(percents))
        self._percents[row] = 0
        self._percents[row, : len(percents)] = percents


def enlarged_matrix(matrix: Ints, rows: int, places: int) -> Ints:
    larger = np.zeros((rows, places), np.int64)
    larger[: matrix.shape[0], : matrix.shape[1]] = matrix
    return larger


class FragmentationModel:
    """The usable capacity of all classes of nodes for one mix of expected pods."""

    def __init__(
        self, table: NodeTable, expected: tuple[TypicalPod, ...], constraints: Mapping[str, RequiredNodeAffinity]
    ) -> None:
        self._table = table
        self.expected = expected
        self._constraints = constraints
        self._prospects: dict[MetConstraints, FgdScorer] = {}
        self._seen = (-1, -1)
        self._codes: Ints = np.zeros(0, np.int64)
        self._node_classes: list[MetConstraints] = []
        self._position = -1
        self._usable_amounts: Ints = np.zeros(0, np.int64)

    def for_node(self, node: NodeInfo) -> FgdScorer:
        if not self._constraints:
            return self._prospect(())
        table = self._table
        live = table.nodes[node.row] if node.row < table.size else None
        if live is not None and live.node is node.node:
            self._refresh()
            return self._prospect(self._node_classes[self._codes[node.row]])
        assert node.node is not None
        return self._prospect(tuple(one.matches(node.node) for one in self._constraints.values()))

    def node_classes(self) -> tuple[Ints, list[FgdScorer]]:
        """Return a class number per row, and the evaluation of each class."""
        self._refresh()
        return self._codes, [self._prospect(kind) for kind in self._node_classes]

    def usable_amounts(self, cpu_milli: Ints, percents: Ints) -> Ints:
        """Return the usable capacity of every row, from columns of all rows. Unchanged rows are cached."""
        table = self._table
        changed = table.changed_since(self._position) if len(self._usable_amounts) == table.size else None
        self._position = table.position
        if changed is None:
            self._usable_amounts = np.zeros(table.size, np.int64)
        rows = np.arange(table.size) if changed is None else np.asarray(changed, np.intp)
        codes, prospects = self.node_classes()
        for code in np.unique(codes[rows]).tolist():
            of_kind = rows[codes[rows] == code]
            self._usable_amounts[of_kind] = prospects[code].worth_column(cpu_milli[of_kind], percents[of_kind])
        return self._usable_amounts

    def _prospect(self, kind: MetConstraints) -> FgdScorer:
        found = self._prospects.get(kind)
        if found is None:
            met = {key for key, meets in zip(self._constraints, kind, strict=True) if meets}

            def takes(shape: GpuPodShape) -> bool:
                return not shape.gpu_spec or shape.gpu_spec in met

            found = self._prospects[kind] = FgdScorer(self.expected, takes, BALANCE_PERCENT)
        return found

    def _refresh(self) -> None:
        table = self._table
        now = (table.size, table.node_changes.position)
        if now == self._seen:
            return
        self._seen = now
        codes = grow_array(np.zeros(0, np.int64), table.size)
        columns = [node_affinity_mask(one, table, ALL_ROWS) for one in self._constraints.values()]
        for column in columns:  # numbered anew each time, so that many constraints do not overflow
            codes = np.unique(codes * 2 + column, return_inverse=True)[1].astype(np.int64)
        first = np.unique(codes, return_index=True)[1]
        self._codes = codes
        self._node_classes = [tuple(bool(column[row]) for column in columns) for row in first.tolist()]


class FragmentationAware(Plugin):
    name = fragmentation.PLUGIN_NAME
    scope = CLUSTER  # scores are kept by row until other pods are expected

    def __init__(self, handle: Handle) -> None:
        self._table = handle.state.table
        self._device_cache = handle.state.derived(NodeDeviceCache)
        handle.lister(DEVICES).on_change(self._device_cache.device_changed)
        self._mix = handle.state.derived(fragmentation.TypicalPodMix)
        if self._mix.claim_feed():
            handle.lister(PODS).on_change(self._mix.pod_changed)
        self._free_gpus = FreeGpuColumns(self._table, self._device_cache)
        self._version = -1
        self._model = FragmentationModel(self._table, (), {})

    def epoch(self, cycle: CycleState) -> Hashable:
        return self._mix.version

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        found = self._choice(pod, self._device_cache.for_node(node), node)
        return 0 if found is None else found.score

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        model = self._current_model()
        if not model.expected:
            return np.zeros(len(table.alive[rows]), np.int64)
        shape = fragmentation.gpu_shape_of(pod.shape)
        percents, cpu = self._free_gpus.percents(), table.allocatable(CPU) - table.requested(CPU)
        before = model.usable_amounts(cpu, percents)[rows]
        percents, cpu = percents[rows], cpu[rows]
        codes, prospects = model.node_classes()
        if len(prospects) == 1:
            scores = prospects[0].score_column(cpu, percents, shape, before)
        else:
            codes = codes[rows]
            scores = np.zeros(len(codes), np.int64)
            for code, prospect in enumerate(prospects):
                places = np.flatnonzero(codes == code)
                scores[places] = prospect.score_column(cpu[places], percents[places], shape, before[places])
        return np.maximum(scores, 0) * table.alive[rows]

    def best_card(self, pod: PodInfo, node_devices: NodeDevices, node: NodeInfo) -> int | None:
        """Return the minor of the card that a GPU share should be taken from."""
        if not fragmentation.is_gpu_share(fragmentation.gpu_shape_of(pod.shape)):
            return None
        placed = node.pods.get(pod.uid)  # it is counted on the node already
        found = self._choice(pod, node_devices, node, back=0 if placed is None else placed.requests.get(CPU, 0))
        return None if found is None else list(node_devices.inventory.of_type(wire.GPU))[found.cards[0]]

    def _choice(
        self, pod: PodInfo, node_devices: NodeDevices | None, node: NodeInfo, back: int = 0
    ) -> fragmentation.GpuChoice | None:
        model = self._current_model()
        if not model.expected:
            return None
        cpu = node.allocatable.get(CPU, 0) - node.requested.get(CPU, 0) + back
        return model.for_node(node).choose(cpu, free_gpu_percents(node_devices), fragmentation.gpu_shape_of(pod.shape))

    def _current_model(self) -> FragmentationModel:
        if self._version != self._mix.version:
            self._version = self._mix.version
            self._model = FragmentationModel(self._table, self._mix.expected(), self._mix.constraints())
        return self._model
