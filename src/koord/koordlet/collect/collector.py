"""This module holds what collectors share: settings, a timer, statuses, and the base of those that read
cgroups every tick.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import msgspec

from koord.host.cgroup.tree import CgroupTree
from koord.host.cgroup.usage import FdBudget
from koord.host.io_error import IoError
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.series.store import SeriesStore
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)


class CollectSettings(msgspec.Struct, frozen=True, kw_only=True):
    """CollectSettings says what to collect and how often."""

    interval_s: float = 1.0  # between two calls of `sample`
    info_s: float = 60.0
    psi_s: float = 10.0
    cpi_s: float = 60.0
    cpi_window_s: float = 10.0
    cold_pages_s: float = 5.0
    resctrl_s: float = 10.0
    storage_s: float = 60.0
    # Switches
    psi: bool = False
    cpi: bool = False
    cold_pages: bool = False  # also switches the kernel's scanner on
    page_cache: bool = False
    resctrl: bool = False
    storage: bool = False
    gpu: bool = False

    @property
    def longest_gap_s(self) -> float:
        """Return the longest time between two reads whose difference still says something about now."""
        return 20 * self.interval_s


@runtime_checkable
class CollectorPlugin(Protocol):
    """A collector of another package: it adds samples to the store each `period_s` seconds."""

    name: str
    period_s: float

    def sample(self, now_s: float, pods: Sequence[PodMeta], store: SeriesStore) -> None: ...


class CollectorStatus(msgspec.Struct, frozen=True, gc=False):
    """The status of one collector: `problem` is "" while it works; `answered`: it worked, or never will."""

    problem: str = ""
    answered: bool = False


class CollectorStatuses:
    """The statuses of all enabled collectors by name."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """`names` are the enabled collectors."""
        self._now = dict.fromkeys(names, CollectorStatus())
        self._logs: dict[str, ProblemLog] = {}

    @property
    def current(self) -> Mapping[str, CollectorStatus]:
        return MappingProxyType(self._now)

    @property
    def all_answered(self) -> bool:
        return all(one.answered for one in self._now.values())

    def works(self, name: str) -> None:
        if self._now.get(name) != _OK:
            self._now[name] = _OK
            if name in self._logs:
                self._logs[name].works()

    def fails(self, name: str, io_error: IoError | str, *, permanent: bool = False) -> None:
        """Record that a collector fails; with `permanent` this machine cannot support it, so nobody
        needs to wait for it.

        The same kind of error of another file is not logged again: one pod after the other would fill the log.
        """
        kind = f"{io_error.stage} {io_error.code}" if isinstance(io_error, IoError) else io_error
        text = str(io_error)
        before = self._now.get(name, CollectorStatus())
        self._now[name] = CollectorStatus(text, before.answered or permanent)
        if name not in self._logs:
            self._logs[name] = ProblemLog(_LOG, f"collector {name}", f"collector {name} works again")
        self._logs[name].fails(f"{'it stays off' if permanent else 'no samples'}: {text}", kind)


_OK = CollectorStatus("", True)


class IntervalTimer:
    """A timer tells when periodic work is due; a late call does not make the next one early."""

    __slots__ = ("_every_s", "_next_s")

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next_s: float | None = None

    def due(self, at_s: float) -> bool:
        """Return whether the work is due at `at_s` (monotonic). The first call is due; slightly early calls count."""
        if self._next_s is not None and at_s < self._next_s - 0.05:
            return False
        self._next_s = at_s + self._every_s
        return True


class PluginCollectors:
    """The collectors of other packages in one agent; one that raises fails by itself and is named."""

    def __init__(self, plugins: Sequence[CollectorPlugin], store: SeriesStore, statuses: CollectorStatuses) -> None:
        self._store = store
        self._statuses = statuses
        self._timers = tuple((one, IntervalTimer(one.period_s)) for one in plugins)

    def sample(self, at_s: float, now_s: float, pods: Sequence[PodMeta]) -> None:
        """Take the samples that are due at `at_s`, which never goes back; `now_s` is the time of day."""
        for plugin, timer in self._timers:
            if timer.due(at_s):
                self._sample(plugin, now_s, pods)

    def _sample(self, plugin: CollectorPlugin, now_s: float, pods: Sequence[PodMeta]) -> None:
        try:
            plugin.sample(now_s, pods, self._store)
        except Exception as error:  # noqa: BLE001 - a stranger's mistake must not stop the agent's own samples
            self._statuses.fails(plugin.name, f"{type(error).__name__}: {error}")
        else:
            self._statuses.works(plugin.name)


class CollectContext(msgspec.Struct, frozen=True):
    """CollectContext is all that collectors work with; `longest_gap_s` bounds the time between two reads
    whose difference is still a rate.
    """

    tree: CgroupTree
    store: SeriesStore
    clock: Clock
    statuses: CollectorStatuses
    budget: FdBudget
    longest_gap_s: float


class UsageCollector:
    """The base of collectors that sample every tick."""

    def __init__(self, context: CollectContext) -> None:
        self._tree = context.tree
        self._store = context.store
        self._clock = context.clock
        self._statuses = context.statuses
        self._budget = context.budget
        self._counters = CounterRates(context.longest_gap_s)

    def expire(self, at_s: float) -> None:
        """Forget the counters of groups that are gone."""
        self._counters.expire(at_s)

    def _set_status(self, name: str, io_error: IoError | None, *, permanent: bool = False) -> None:
        if io_error is None:
            self._statuses.works(name)
        else:
            self._statuses.fails(name, io_error, permanent=permanent)


class CounterRates:
    """Rates of monotonic counters, by key. What makes a difference meaningless gives no rate and restarts the counter:
    the first read, a counter or a clock that went back, a long gap, and a rate that the machine cannot reach.
    """

    def __init__(self, longest_gap_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self._seen: dict[Hashable, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def rate(self, key: Hashable, at_s: float, total: float, ceiling: float | None = None) -> float | None:
        """Return the units per second since the last call; None when there is no meaningful rate."""
        before = self._seen.get(key)
        self._seen[key] = (at_s, total)
        if before is None:
            return None
        gap_s, grown = at_s - before[0], total - before[1]
        if not 0 < gap_s <= self._longest_gap_s or grown < 0:
            return None
        found = grown / gap_s
        return None if ceiling is not None and found > ceiling else found

    def share(self, key: Hashable, at_s: float, part: float, whole: float) -> float | None:
        """Return the growth of `part` by that of `whole`, such as throttled periods of all periods; 0 of nothing."""
        parts = self.rate((key, "part"), at_s, part)
        wholes = self.rate((key, "whole"), at_s, whole)
        if parts is None or wholes is None:
            return None
        return min(parts / wholes, 1.0) if wholes > 0 else 0.0

    def expire(self, now_s: float) -> int:
        """Forget counters that were not read for the longest gap, or were read in the future; return how many."""
        quiet = [key for key, (at_s, _) in self._seen.items() if not 0 <= now_s - at_s <= self._longest_gap_s]
        for key in quiet:
            del self._seen[key]
        return len(quiet)
