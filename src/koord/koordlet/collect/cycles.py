"""Measure how well containers run: cycles and instructions (CPI) from perf events, and stalls (PSI) from cgroup files.

CPI is counted for a window every minute. Each container needs two counters per CPU; when there are more containers than
descriptors, they take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from koord.host import perf
from koord.host.cgroup.tree import Tree
from koord.host.fault import Fault
from koord.host.host import Host
from koord.host.perf import Cpi
from koord.koordlet.collect.condition import Conditions
from koord.koordlet.collect.settings import Timer
from koord.koordlet.pod import PodView
from koord.koordlet.series import kind
from koord.koordlet.series.store import Store

CYCLES = "cycles"
MOST_DESCRIPTORS = 4096


class Counter(Protocol):
    """An open pair of perf counters of one container."""
    def read(self) -> Cpi | Fault: ...

    def close(self) -> None: ...


class Counting(Protocol):
    """The interface of `koord.host.perf`."""

    def available(self) -> Fault | None: ...

    def open_cpi(self, host: Host, folder: str, cpus: list[int]) -> Counter | Fault: ...


class CyclesCollector:
    """Counts cycles and instructions of running containers over a window."""
    def __init__(
        self,
        tree: Tree,
        store: Store,
        conditions: Conditions,
        every_s: float,
        window_s: float,
        most_descriptors: int = MOST_DESCRIPTORS,
        counting: Counting = perf,
    ) -> None:
        self._tree = tree
        self._store = store
        self._conditions = conditions
        self._timer = Timer(every_s)
        self._window_s = window_s
        self._most = most_descriptors
        self._counting = counting
        self._open: dict[str, Counter] = {}
        self._opened_s = 0.0
        self._turn = 0  # where the next round begins when not all fit

    def sample(self, at_s: float, now_s: float, pods: Sequence[PodView], cpus: Sequence[int]) -> None:
        if self._open and at_s - self._opened_s >= self._window_s:
            self._finish(now_s)
        if not self._open and self._timer.due(at_s):
            self._begin(at_s, pods, cpus)

    def close(self) -> None:
        for counter in self._open.values():
            counter.close()
        self._open = {}

    def _begin(self, at_s: float, pods: Sequence[PodView], cpus: Sequence[int]) -> None:
        refused = self._counting.available()
        if refused is not None:
            self._conditions.fails(CYCLES, refused, for_good=True)
            return
        running = [one for pod in pods for one in pod.containers if one.running and one.group]
        room = max(self._most // max(2 * len(cpus), 1), 1)
        if len(running) > room:
            start = self._turn % len(running)
            self._turn = start + room
            running = (running[start:] + running[:start])[:room]
        trouble: Fault | None = None
        for one in running:
            folder = self._tree.group("perf_event", one.group)
            counter = self._counting.open_cpi(self._tree.host, folder, list(cpus))
            if isinstance(counter, Fault):
                trouble = trouble if counter.vanished else counter
            else:
                self._open[one.id] = counter
        self._opened_s = at_s
        if trouble is None:
            self._conditions.works(CYCLES)
        else:
            self._conditions.fails(CYCLES, trouble)

    def _finish(self, now_s: float) -> None:
        for identity, counter in self._open.items():
            counted = counter.read()
            if not isinstance(counted, Fault):
                self._store.add((kind.CONTAINER_CPI, identity, "cycle"), now_s, counted.cycles)
                self._store.add((kind.CONTAINER_CPI, identity, "instruction"), now_s, counted.instructions)
        self.close()
