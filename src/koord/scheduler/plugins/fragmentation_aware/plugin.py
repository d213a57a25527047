"""FragmentationAware places pods where they leave the least capacity that the typical pods could not use.

It is off unless a profile enables it at score. Pods without GPUs are scored too: the CPU that they take may
be what the GPUs beside it need. If DeviceShare allocates the card, this plugin also chooses which card a
share is taken from.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from koord.api import device as wire
from koord.api.custom import DEVICES
from koord.api.resource_name import CPU
from koord.policy.device.fragmentation import Choice
from koord.policy.device.prospect import is_share
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin, Scores
from koord.scheduler.framework.verdict import CLUSTER
from koord.scheduler.plugins.device_share.book import Book
from koord.scheduler.plugins.device_share.site import Site
from koord.scheduler.plugins.fragmentation_aware.asked import NAME, shape_of
from koord.scheduler.plugins.fragmentation_aware.ground import Left, Outlook, percents_of
from koord.scheduler.plugins.fragmentation_aware.mix import Mix
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, Rows
from koord.scheduler.state.wire import PODS


class FragmentationAware(Plugin):
    name = NAME
    scope = CLUSTER  # scores are kept by row until other pods are expected

    def __init__(self, handle: Handle) -> None:
        self._table = handle.state.table
        self._book = handle.state.derived(Book)
        handle.lister(DEVICES).on_change(self._book.device_changed)
        self._mix = handle.state.derived(Mix)
        if self._mix.claim():
            handle.lister(PODS).on_change(self._mix.pod_changed)
        self._left = Left(self._table, self._book)
        self._version = -1
        self._known = Outlook(self._table, (), {})

    def epoch(self, cycle: Cycle) -> Hashable:
        return self._mix.version

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        found = self._choice(pod, self._book.of(node), node)
        return 0 if found is None else found.score

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        outlook = self._outlook()
        if not outlook.expected:
            return np.zeros(len(table.alive[rows]), np.int64)
        shape = shape_of(pod.shape)
        percents, cpu = self._left.percents(), table.allocatable(CPU) - table.requested(CPU)
        before = outlook.worths(cpu, percents)[rows]
        percents, cpu = percents[rows], cpu[rows]
        codes, prospects = outlook.kinds()
        if len(prospects) == 1:
            scores = prospects[0].scores(cpu, percents, shape, before)
        else:
            codes = codes[rows]
            scores = np.zeros(len(codes), np.int64)
            for code, prospect in enumerate(prospects):
                places = np.flatnonzero(codes == code)
                scores[places] = prospect.scores(cpu[places], percents[places], shape, before[places])
        return np.maximum(scores, 0) * table.alive[rows]

    def best_card(self, pod: PodInfo, site: Site, node: NodeInfo) -> int | None:
        """Return the minor of the card that a GPU share should be taken from."""
        if not is_share(shape_of(pod.shape)):
            return None
        placed = node.pods.get(pod.uid)  # it is counted on the node already
        found = self._choice(pod, site, node, back=0 if placed is None else placed.requests.get(CPU, 0))
        return None if found is None else list(site.inventory.of(wire.GPU))[found.cards[0]]

    def _choice(self, pod: PodInfo, site: Site | None, node: NodeInfo, back: int = 0) -> Choice | None:
        outlook = self._outlook()
        if not outlook.expected:
            return None
        cpu = node.allocatable.get(CPU, 0) - node.requested.get(CPU, 0) + back
        return outlook.of(node).choice(cpu, percents_of(site), shape_of(pod.shape))

    def _outlook(self) -> Outlook:
        if self._version != self._mix.version:
            self._version = self._mix.version
            self._known = Outlook(self._table, self._mix.expected(), self._mix.constraints())
        return self._known
