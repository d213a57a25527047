"""Measure memory that nobody touched for a while, where the kernel's kidled reports it, and what remains without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.host import procfs
from koord.host.capability import check_kidled, kidled_folder
from koord.host.cgroup import usage
from koord.host.cgroup.tree import CgroupTree
from koord.host.io_error import IoError
from koord.koordlet.collect.collector import CollectorStatuses, IntervalTimer
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore

COLD_MEMORY = "cold-memory"
_SCAN_S = "5"


class ColdMemoryCollector:
    def __init__(self, tree: CgroupTree, store: SeriesStore, statuses: CollectorStatuses, every_s: float) -> None:
        self._tree = tree
        self._store = store
        self._statuses = statuses
        self._timer = IntervalTimer(every_s)
        self.is_on = False  # whether the kernel's scanner runs for us

    def sample(self, at_s: float, now_s: float, pods: Sequence[PodMeta], applications: Mapping[str, str]) -> None:
        """Take one sample of the node, the pods and the host applications. `applications` are groups by name."""
        if not self._timer.due(at_s) or not self._switched_on():
            return
        io_error = self._node(now_s)
        for pod in pods:
            if pod.is_alive and pod.group:
                keys = (metric_kind.POD_MEMORY_COLD_PAGES, metric_kind.POD_MEMORY_WITH_HOT_PAGES)
                io_error = self._group(now_s, pod.group, keys, pod.uid) or io_error
                keys = (metric_kind.CONTAINER_MEMORY_COLD_PAGES, metric_kind.CONTAINER_MEMORY_WITH_HOT_PAGES)
                for one in pod.containers:
                    if one.id and one.group:
                        io_error = self._group(now_s, one.group, keys, one.id) or io_error
        keys = (metric_kind.APPLICATION_MEMORY_COLD_PAGES, metric_kind.APPLICATION_MEMORY_WITH_HOT_PAGES)
        for name, group in applications.items():
            io_error = self._group(now_s, group, keys, name) or io_error
        if io_error is None:
            self._statuses.works(COLD_MEMORY)
        else:
            self._statuses.fails(COLD_MEMORY, io_error)

    def _switched_on(self) -> bool:
        if self.is_on:
            return True
        missing = check_kidled(self._tree.host)
        if missing is not None:
            self._statuses.fails(COLD_MEMORY, missing, permanent=True)
            return False
        for name, value in (("scan_period_in_seconds", _SCAN_S), ("use_hierarchy", "1")):
            refused = self._tree.host.write(f"{kidled_folder(self._tree.host)}/{name}", value)
            if refused is not None:
                self._statuses.fails(COLD_MEMORY, refused, permanent=True)
                return False
        self.is_on = True
        return True

    def _node(self, now_s: float) -> IoError | None:
        cold, memory = usage.cold_bytes(self._tree, ""), procfs.meminfo(self._tree.host)
        if isinstance(cold, IoError):
            return cold
        if isinstance(memory, IoError):
            return memory
        self._store.add((metric_kind.NODE_MEMORY_COLD_PAGES,), now_s, cold)
        self._store.add((metric_kind.NODE_MEMORY_WITH_HOT_PAGES,), now_s, max(memory.used_with_page_cache - cold, 0))
        return None

    def _group(self, now_s: float, group: str, keys: tuple[str, str], subject: str) -> IoError | None:
        """Sample one group; a group that is gone is no error."""
        cold, held = usage.cold_bytes(self._tree, group), usage.memory_stat(self._tree, group)
        if isinstance(cold, IoError):
            return None if cold.vanished else cold
        if isinstance(held, IoError):
            return None if held.vanished else held
        self._store.add((keys[0], subject), now_s, cold)
        # Two files, read one after the other: what was freed in between must not become a huge number.
        self._store.add((keys[1], subject), now_s, max(held.usage_with_page_cache - cold, 0))
        return None
