"""Measure memory that nobody touched for a while, where the kernel's kidled reports it, and what remains without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.host import procfs
from koord.host.cgroup import usage
from koord.host.cgroup.tree import Tree
from koord.host.cold_memory import kidled, kidled_folder
from koord.host.fault import Fault
from koord.koordlet.collect.condition import Conditions
from koord.koordlet.collect.settings import Timer
from koord.koordlet.pod import PodView
from koord.koordlet.series import kind
from koord.koordlet.series.store import Store

COLD_MEMORY = "cold-memory"
_SCAN_S = "5"


class ColdMemoryCollector:
    def __init__(self, tree: Tree, store: Store, conditions: Conditions, every_s: float) -> None:
        self._tree = tree
        self._store = store
        self._conditions = conditions
        self._timer = Timer(every_s)
        self.is_on = False  # whether the kernel's scanner runs for us

    def sample(self, at_s: float, now_s: float, pods: Sequence[PodView], applications: Mapping[str, str]) -> None:
        """Take one sample of the node, the pods and the host applications. `applications` are groups by name."""
        if not self._timer.due(at_s) or not self._switched_on():
            return
        fault = self._node(now_s)
        for pod in pods:
            if pod.is_alive and pod.group:
                keys = (kind.POD_MEMORY_COLD_PAGES, kind.POD_MEMORY_WITH_HOT_PAGES)
                fault = self._group(now_s, pod.group, keys, pod.uid) or fault
                keys = (kind.CONTAINER_MEMORY_COLD_PAGES, kind.CONTAINER_MEMORY_WITH_HOT_PAGES)
                for one in pod.containers:
                    if one.id and one.group:
                        fault = self._group(now_s, one.group, keys, one.id) or fault
        keys = (kind.APPLICATION_MEMORY_COLD_PAGES, kind.APPLICATION_MEMORY_WITH_HOT_PAGES)
        for name, group in applications.items():
            fault = self._group(now_s, group, keys, name) or fault
        if fault is None:
            self._conditions.works(COLD_MEMORY)
        else:
            self._conditions.fails(COLD_MEMORY, fault)

    def _switched_on(self) -> bool:
        if self.is_on:
            return True
        missing = kidled(self._tree.host)
        if missing is not None:
            self._conditions.fails(COLD_MEMORY, missing, for_good=True)
            return False
        for name, value in (("scan_period_in_seconds", _SCAN_S), ("use_hierarchy", "1")):
            refused = self._tree.host.write(f"{kidled_folder(self._tree.host)}/{name}", value)
            if refused is not None:
                self._conditions.fails(COLD_MEMORY, refused, for_good=True)
                return False
        self.is_on = True
        return True

    def _node(self, now_s: float) -> Fault | None:
        cold, memory = usage.cold_bytes(self._tree, ""), procfs.memory(self._tree.host)
        if isinstance(cold, Fault):
            return cold
        if isinstance(memory, Fault):
            return memory
        self._store.add((kind.NODE_MEMORY_COLD_PAGES,), now_s, cold)
        self._store.add((kind.NODE_MEMORY_WITH_HOT_PAGES,), now_s, max(memory.used_with_page_cache - cold, 0))
        return None

    def _group(self, now_s: float, group: str, keys: tuple[str, str], subject: str) -> Fault | None:
        """Sample one group; a group that is gone is no error."""
        cold, held = usage.cold_bytes(self._tree, group), usage.memory_stat(self._tree, group)
        if isinstance(cold, Fault):
            return None if cold.vanished else cold
        if isinstance(held, Fault):
            return None if held.vanished else held
        self._store.add((keys[0], subject), now_s, cold)
        # Two files, read one after the other: what was freed in between must not become a huge number.
        self._store.add((keys[1], subject), now_s, max(held.usage_with_page_cache - cold, 0))
        return None
