"""ImageLocality prefers nodes that already have the pod's images, the more bytes the better.

An image counts for its size times the fraction of all nodes that have it: an image on one node only would
draw every pod to that node. score = 100 · (sum - 23 MiB) / (1000 MiB · containers - 23 MiB), within 0..100.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Set
from functools import lru_cache

import numpy as np

from koord.api.kubernetes.node import ContainerImage
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeRows, NodeTable, RowList, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import MAX_SCORE, Plugin, Scores
from koord.scheduler.framework.verdict import CLUSTER

Images = tuple[ContainerImage, ...]
_NOWHERE: frozenset[int] = frozenset()


class ImageIndex:
    """The rows that have each container image, by the names that nodes report.

    `version` changes when a queried image appears on a node or disappears.
    """

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._position = -1
        self._seen: dict[int, Images] = {}
        self._rows: dict[str, set[int]] = {}
        self._queried: dict[str, RowList | None] = {}  # names that were asked for; their rows as an array once needed
        self.version = 0

    def refresh(self) -> None:
        changes = self._table.node_changes
        if self._position == changes.position:
            return
        rows = changes.since(self._position)
        self._position = changes.position
        nodes: NodeRows = self._table.nodes
        for row in range(len(nodes)) if rows is None else rows:
            info = nodes[row]
            self._set(row, info.node.status.images if info is not None and info.node is not None else ())

    def _set(self, row: int, images: Images) -> None:
        before = self._seen.get(row, ())
        if before == images:
            return
        old, new = _sizes(before), _sizes(images)
        for name in old.keys() - new.keys():
            holders = self._rows[name]
            holders.discard(row)
            if not holders:
                del self._rows[name]
        for name in new.keys() - old.keys():
            self._rows.setdefault(name, set()).add(row)
        for name in self._queried.keys() & {name for name, _ in old.items() ^ new.items()}:
            self._queried[name] = None
            self.version += 1
        if images:
            self._seen[row] = images
        else:
            self._seen.pop(row, None)

    def rows_with_image(self, name: str) -> Set[int]:
        """Return the rows of the nodes that have the image."""
        self._queried.setdefault(name)
        return self._rows.get(name, _NOWHERE)

    def row_array_with_image(self, name: str) -> RowList:
        """Return the same rows as an index array."""
        known = self._queried.get(name)
        if known is None:
            rows = self.rows_with_image(name)
            known = self._queried[name] = np.fromiter(rows, np.intp, len(rows))
        return known

    def size_bytes(self, name: str) -> int:
        """Return the image's size as reported by the node whose name sorts first, since nodes may disagree.

        Kubernetes believes the first node that it reads at start, and it reads them in that order.
        """
        nodes = self._table.nodes
        holders = (node for row in self._rows.get(name, ()) if (node := nodes[row]) is not None)
        first = min(holders, key=lambda node: node.name, default=None)
        return _sizes(self._seen[first.row])[name] if first is not None else 0


def _sizes(images: Images) -> dict[str, int]:
    """Return bytes by image name; of two images with one name the first counts."""
    return {name: image.size_bytes for image in reversed(images) for name in image.names}


@lru_cache(maxsize=4096)
def with_default_tag(image: str) -> str:
    """Return the image name with its tag, `latest` if it has none. Names that nodes report are taken as they are."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"


_MIB = 1024 * 1024
_MIN_THRESHOLD_BYTES = 23 * _MIB
_MAX_CONTAINER_THRESHOLD_BYTES = 1000 * _MIB  # per container


class ImageLocality(Plugin):
    name = "ImageLocality"
    scope = CLUSTER

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._index = ImageIndex(state.table)
        self._scaled_sizes: dict[str, int] = {}  # as long as the images and the number of nodes stay what they were
        self._scaled_sizes_version = (-1, -1)

    def epoch(self, cycle: CycleState) -> Hashable:
        self._index.refresh()
        return self._index.version, self._state.node_count

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        self._index.refresh()
        total = 0
        for image, times in self._images(pod):
            if node.row in self._index.rows_with_image(image):
                total += self._scaled_size_bytes(image) * times
        return _score(total, len(pod.shape.images))

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        self._index.refresh()
        total = np.zeros(table.size, np.int64)
        present = 0
        for image, times in self._images(pod):
            scaled_bytes = self._scaled_size_bytes(image) * times
            total[self._index.row_array_with_image(image)] += scaled_bytes
            present += scaled_bytes
        if present <= _MIN_THRESHOLD_BYTES:  # so little that it makes no difference anywhere
            return np.zeros(len(table.alive[rows]), np.int64)
        most = _MAX_CONTAINER_THRESHOLD_BYTES * len(pod.shape.images)
        return (
            (np.clip(total[rows], _MIN_THRESHOLD_BYTES, most) - _MIN_THRESHOLD_BYTES)
            * MAX_SCORE
            // (most - _MIN_THRESHOLD_BYTES)
        )

    def _images(self, pod: PodInfo) -> tuple[tuple[str, int], ...]:
        """Return each image with the number of the pod's containers that use it."""
        memo = pod.shape.memo
        known = memo.get(self.name)
        if known is None:
            known = memo[self.name] = tuple(Counter(with_default_tag(image) for image in pod.shape.images).items())
        assert isinstance(known, tuple)
        return known

    def _scaled_size_bytes(self, image: str) -> int:
        now = (self._index.version, self._state.node_count)
        if now != self._scaled_sizes_version:
            self._scaled_sizes_version = now
            self._scaled_sizes.clear()
        scaled_bytes = self._scaled_sizes.get(image)
        if scaled_bytes is None:
            spread = len(self._index.rows_with_image(image)) / self._state.node_count
            scaled_bytes = self._scaled_sizes[image] = int(self._index.size_bytes(image) * spread)
        return scaled_bytes


def _score(total_bytes: int, containers: int) -> int:
    most = _MAX_CONTAINER_THRESHOLD_BYTES * containers
    within = min(max(total_bytes, _MIN_THRESHOLD_BYTES), most)
    return MAX_SCORE * (within - _MIN_THRESHOLD_BYTES) // (most - _MIN_THRESHOLD_BYTES)
