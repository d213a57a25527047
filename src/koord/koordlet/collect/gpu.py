"""Measure what the node, its pods and their containers use of NVIDIA GPUs, by card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from koord.host.cgroup.tree import CgroupTree
from koord.host.cgroup.usage import processes
from koord.host.hardware import LOST, GpuCard, GpuHealth, GpuProcessUsage
from koord.host.io_error import IoError
from koord.host.nvml import Nvml
from koord.koordlet.collect.collector import CollectorStatuses, IntervalTimer
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore

GPU = "gpu"
_LIST_S = 60.0


class GpuLibrary(Protocol):
    """The interface of `koord.host.nvml.Nvml`."""

    def driver(self) -> str: ...

    def cards(self) -> list[GpuCard] | IoError: ...

    def uses(self, card: GpuCard) -> list[GpuProcessUsage] | IoError: ...

    def health(self) -> Mapping[str, GpuHealth]: ...

    @property
    def unidentified(self) -> int: ...

    def close(self) -> None: ...


class GpuCollector:
    """Samples GPU usage; the library is opened at the first sample when it is not given."""

    def __init__(
        self, tree: CgroupTree, store: SeriesStore, statuses: CollectorStatuses, cards: GpuLibrary | None = None
    ) -> None:
        self._tree = tree
        self._store = store
        self._statuses = statuses
        self._source = cards
        self._refused = False
        self._listing = IntervalTimer(_LIST_S)
        self.cards: tuple[GpuCard, ...] = ()
        self.health: Mapping[str, GpuHealth] = {}  # by uuid
        self.driver = ""
        self.unidentified = 0  # cards that do not say who they are
        self._executor = ThreadPoolExecutor(1, "gpu-list")  # its thread is started when it is needed
        self._listed: Future[list[GpuCard] | IoError] | None = None
        self.known = False  # whether it is settled which cards there are

    def sample(self, at_s: float, now_s: float, pods: Sequence[PodMeta]) -> None:
        source = self._open()
        if source is None:
            return
        listed = self._list(source, at_s)
        self.health = source.health()
        if isinstance(listed, IoError):
            self._statuses.fails(GPU, listed)
            return
        if listed is not None:
            self.cards, self.driver, self.known = tuple(listed), source.driver(), True
            self.unidentified = source.unidentified
        if self._listed is not None:
            return  # no card can be asked while the driver is opened anew
        uses: list[tuple[GpuCard, list[GpuProcessUsage]]] = []
        for card in self.cards:
            if self.health.get(card.uuid) == LOST:
                continue  # it is reported as such, and the others are sampled on
            found = source.uses(card)
            if isinstance(found, IoError):
                self._statuses.fails(GPU, found)
                return
            uses.append((card, found))
        self._node(now_s, uses)
        if any(found for _, found in uses):
            for pod in pods:
                self._pod(now_s, pod, uses)
        self._statuses.works(GPU)

    def _list(self, source: GpuLibrary, at_s: float) -> list[GpuCard] | IoError | None:
        """List the cards when it is time for that; None while nothing is new.

        With a lost card the driver is opened anew, which takes seconds: that is left to a thread.
        """
        if self._listed is None:
            if not self._listing.due(at_s):
                return None
            if not self.unidentified and LOST not in self.health.values():
                return source.cards()
            self._listed = self._executor.submit(source.cards)
        if not self._listed.done():
            return None
        listed, self._listed = self._listed.result(), None
        return listed

    def close(self) -> None:
        self._executor.shutdown()
        if self._source is not None:
            self._source.close()
            self._source = None

    def _open(self) -> GpuLibrary | None:
        if self._source is None and not self._refused:
            opened = Nvml.open()
            if isinstance(opened, IoError):
                self._refused = True
                self.known = True
                self._statuses.fails(GPU, opened, permanent=True)
            else:
                self._source = opened
        return self._source

    def _node(self, now_s: float, uses: Sequence[tuple[GpuCard, list[GpuProcessUsage]]]) -> None:
        for card, found in uses:
            which = (str(card.minor), card.uuid)
            self._store.add((metric_kind.NODE_GPU_CORE, *which), now_s, sum(one.core_percent for one in found))
            self._store.add((metric_kind.NODE_GPU_MEMORY, *which), now_s, sum(one.memory_bytes for one in found))
            self._store.add((metric_kind.NODE_GPU_MEMORY_TOTAL, *which), now_s, card.total_bytes)

    def _pod(self, now_s: float, pod: PodMeta, uses: Sequence[tuple[GpuCard, list[GpuProcessUsage]]]) -> None:
        """Sample one pod: its usage is that of its containers; cards that none of them uses have no series."""
        total: dict[tuple[str, str], tuple[int, int]] = {}
        for container in pod.containers:
            if not container.running or not container.group:
                continue
            inside = processes(self._tree, container.group)
            if isinstance(inside, IoError):
                continue  # it ended meanwhile
            mine = frozenset(inside)
            for card, found in uses:
                own = [one for one in found if one.pid in mine]
                if not own:
                    continue
                which = (str(card.minor), card.uuid)
                core, memory = sum(one.core_percent for one in own), sum(one.memory_bytes for one in own)
                self._store.add((metric_kind.CONTAINER_GPU_CORE, container.id, *which), now_s, core)
                self._store.add((metric_kind.CONTAINER_GPU_MEMORY, container.id, *which), now_s, memory)
                before = total.get(which, (0, 0))
                total[which] = (before[0] + core, before[1] + memory)
        for which, (core, memory) in total.items():
            self._store.add((metric_kind.POD_GPU_CORE, pod.uid, *which), now_s, core)
            self._store.add((metric_kind.POD_GPU_MEMORY, pod.uid, *which), now_s, memory)
