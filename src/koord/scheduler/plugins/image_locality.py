"""Prefer nodes that already have the pod's images, the more bytes the better.

An image counts for its size times the part of all nodes that have it: an image on one node only would draw every pod
to that node. score = 100 · (sum - 23 MiB) / (1000 MiB · containers - 23 MiB), within 0..100.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import numpy as np

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.plugin import MAX_SCORE, Plugin, Scores
from koord.scheduler.framework.verdict import CLUSTER
from koord.scheduler.plugins.image_index import ImageIndex, tagged
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, Rows

_MIB = 1024 * 1024
_LEAST_BYTES = 23 * _MIB
_MOST_BYTES = 1000 * _MIB  # per container


class ImageLocality(Plugin):
    name = "ImageLocality"
    scope = CLUSTER

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._index = ImageIndex(state.table)
        self._worth: dict[str, int] = {}  # as long as the images and the number of nodes stay what they were
        self._worth_at = (-1, -1)

    def epoch(self, cycle: Cycle) -> Hashable:
        self._index.refresh()
        return self._index.version, self._state.node_count

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        self._index.refresh()
        total = 0
        for image, times in self._images(pod):
            if node.row in self._index.rows(image):
                total += self._worth_bytes(image) * times
        return _score(total, len(pod.shape.images))

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        self._index.refresh()
        total = np.zeros(table.size, np.int64)
        present = 0
        for image, times in self._images(pod):
            worth = self._worth_bytes(image) * times
            total[self._index.row_list(image)] += worth
            present += worth
        if present <= _LEAST_BYTES:  # so little that it makes no difference anywhere
            return np.zeros(len(table.alive[rows]), np.int64)
        most = _MOST_BYTES * len(pod.shape.images)
        return (np.clip(total[rows], _LEAST_BYTES, most) - _LEAST_BYTES) * MAX_SCORE // (most - _LEAST_BYTES)

    def _images(self, pod: PodInfo) -> tuple[tuple[str, int], ...]:
        """Return each image with the number of the pod's containers that use it."""
        memo = pod.shape.memo
        known = memo.get(self.name)
        if known is None:
            known = memo[self.name] = tuple(Counter(tagged(image) for image in pod.shape.images).items())
        assert isinstance(known, tuple)
        return known

    def _worth_bytes(self, image: str) -> int:
        now = (self._index.version, self._state.node_count)
        if now != self._worth_at:
            self._worth_at = now
            self._worth.clear()
        worth = self._worth.get(image)
        if worth is None:
            spread = len(self._index.rows(image)) / self._state.node_count
            worth = self._worth[image] = int(self._index.size_bytes(image) * spread)
        return worth


def _score(total_bytes: int, containers: int) -> int:
    most = _MOST_BYTES * containers
    within = min(max(total_bytes, _LEAST_BYTES), most)
    return MAX_SCORE * (within - _LEAST_BYTES) // (most - _LEAST_BYTES)
