"""FragmentationAware places pods where they leave the least capacity that the typical pods could not use.

It is off unless a profile enables it at score. Pods without GPUs are scored too: the CPU that they take may
be what the GPUs beside it need. If DeviceShare allocates the card, this plugin also chooses which card a
share is taken from.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from koord.api.koordinator import device as wire
from koord.api.koordinator.custom_kinds import DEVICES
from koord.api.koordinator.resource_name import CPU
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin, Scores
from koord.scheduler.framework.verdict import CLUSTER
from koord.scheduler.plugins.device_share.cache import NodeDeviceCache
from koord.scheduler.plugins.device_share.node_devices import NodeDevices
from koord.scheduler.plugins.fragmentation_aware import fragmentation
from koord.scheduler.plugins.fragmentation_aware.free_gpu_columns import (
    FragmentationModel,
    FreeGpuColumns,
    free_gpu_percents,
)


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
