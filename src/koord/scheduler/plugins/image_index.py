"""ImageLocality prefers nodes that already have the pod's images, the more bytes the better.

An image counts for its size times the fraction of all nodes that have it: an image on one node only would
draw every pod to that node. score = 100 · (sum - 23 MiB) / (1000 MiB · containers - 23 MiB), within 0..100.
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache

import numpy as np

from koord.api.node import ContainerImage
from koord.scheduler.state.column import Nodes
from koord.scheduler.state.table import NodeTable, RowList

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
        self._asked: dict[str, RowList | None] = {}  # names that were asked for; their rows as an array once needed
        self.version = 0

    def refresh(self) -> None:
        changes = self._table.node_changes
        if self._position == changes.position:
            return
        rows = changes.since(self._position)
        self._position = changes.position
        nodes: Nodes = self._table.nodes
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
        for name in self._asked.keys() & {name for name, _ in old.items() ^ new.items()}:
            self._asked[name] = None
            self.version += 1
        if images:
            self._seen[row] = images
        else:
            self._seen.pop(row, None)

    def rows(self, name: str) -> Set[int]:
        """Return the rows of the nodes that have the image."""
        self._asked.setdefault(name)
        return self._rows.get(name, _NOWHERE)

    def row_list(self, name: str) -> RowList:
        """Return the same rows as an index array."""
        known = self._asked.get(name)
        if known is None:
            rows = self.rows(name)
            known = self._asked[name] = np.fromiter(rows, np.intp, len(rows))
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
def tagged(image: str) -> str:
    """Return the image name with its tag, `latest` if it has none. Names that nodes report are taken as they are."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"
