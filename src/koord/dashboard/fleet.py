"""This module keeps what the pages show of all nodes and waiting pods as rows with versions, and their sums over time.

A row is replaced when its node changes, and sums follow by the difference, so a second costs what changed in it. Pages
ask for what is newer than the version that they have.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

RECENT_EVERY_S, RECENT_KEPT = 5.0, 720  # an hour
DAY_EVERY_S, DAY_KEPT = 60.0, 1440  # a day
DAY_S = 86_400
_EXAMPLES = 5
_REMOVED_KEPT = 10_000


class ResourceUse(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """CPU in milli-cores or memory in bytes. Lent is what mid and batch pods may request."""

    capacity: int = 0
    used: int = 0
    prod_requested: int = 0
    prod_used: int = 0
    mid_lent: int = 0
    mid_requested: int = 0
    mid_used: int = 0
    batch_lent: int = 0
    batch_requested: int = 0
    batch_used: int = 0
    system_used: int = 0  # outside of pods

    @property
    def values(self) -> tuple[int, ...]:
        return msgspec.structs.astuple(self)


class NodeRow(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One node. `reported_s` is the time of its last NodeMetric, None without one."""

    name: str
    cpu: ResourceUse = ResourceUse()
    memory: ResourceUse = ResourceUse()
    pods: int = 0
    reported_s: float | None = None
    ready: bool = True
    schedulable: bool = True
    pool: str = ""
    labels: tuple[str, ...] = ()  # as key=value


class FleetSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sums at one time: CPU in milli-cores, memory in bytes."""

    time_s: float
    cpu: ResourceUse
    memory: ResourceUse
    pending: int


class FleetHistory(msgspec.Struct, frozen=True, kw_only=True):
    """FleetHistory is the past as it is kept over restarts. `missed_s` of today nobody watched."""

    saved_s: float
    recent: tuple[FleetSample, ...] = ()
    day: tuple[FleetSample, ...] = ()
    reclaimed_core_seconds: float = 0.0
    reclaimed_since_s: float
    missed_s: float = 0.0


class PendingPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod without a node: what the scheduler last said of it, and since when it waits."""

    namespace: str
    name: str
    reason: str
    created_s: float


_UNAVAILABLE = re.compile(r"\d+/\d+ nodes are available: (?P<why>.*)", re.DOTALL)
_PREEMPTION = re.compile(r"\s*preemption: .*", re.DOTALL | re.IGNORECASE)
_COUNT = re.compile(r"^\d+ ")
NOT_TRIED = "no scheduler has reported on them yet, as on members of a gang that is not complete"


def pending_reason(condition_reason: str, message: str, gang: str = "") -> str:
    """Return a scheduler's message without the numbers of nodes in it, so that pods refused alike fall together.

    Nothing is written about a member of a gang that is held back until the others are there, or has a node and waits.
    """
    if not message:
        return condition_reason or (f"waits for the other members of gang {gang}" if gang else NOT_TRIED)
    found = _UNAVAILABLE.match(message)
    if found is None:
        return message
    parts = (_COUNT.sub("", part.strip()) for part in _PREEMPTION.sub("", found["why"]).rstrip(". ").split(", "))
    return ", ".join(sorted({part for part in parts if part})) or message


class FleetTable:
    """FleetTable is the rows, their sums and the recent past. `tick` closes a second: what changed has its version."""

    def __init__(self, epoch: str, started_s: float) -> None:
        """Create an empty table. `epoch` tells two runs of the server apart; `started_s` is the time of now."""
        self.epoch = epoch
        self.version = 0
        self.ready = False  # the first state of the cluster is in
        self.problem = ""  # why the rows may be old
        self.notes: tuple[str, ...] = ()  # what this cluster lacks
        self._rows: dict[str, NodeRow] = {}
        self._versions: dict[str, int] = {}
        self._removed: deque[tuple[int, str]] = deque(maxlen=_REMOVED_KEPT)
        self._forgotten = 0  # removals up to this version are no longer known
        self._sums = {"cpu": [*ResourceUse().values], "memory": [*ResourceUse().values]}
        self._pods = 0
        self._pending: dict[tuple[str, str], PendingPod] = {}
        self._recent: deque[tuple[int, FleetSample]] = deque(maxlen=RECENT_KEPT)
        self._day: deque[tuple[int, FleetSample]] = deque(maxlen=DAY_KEPT)
        self._dirty = False
        self._status: tuple[object, ...] = ()
        self._ticked_s = started_s
        self._reclaimed_since_s = started_s
        self._reclaimed_core_seconds = 0.0
        self._missed_s = 0.0
        self.history_problem = ""  # why the past is not kept, or not there

    def __len__(self) -> int:
        return len(self._rows)

    def put_node(self, row: NodeRow) -> None:
        old = self._rows.get(row.name)
        if old == row:
            return
        self._add(old, -1)
        self._add(row, 1)
        self._rows[row.name] = row
        self._versions[row.name] = self.version + 1
        self._dirty = True

    def remove_node(self, name: str) -> None:
        old = self._rows.pop(name, None)
        if old is None:
            return
        self._add(old, -1)
        del self._versions[name]
        if len(self._removed) == _REMOVED_KEPT:
            self._forgotten = self._removed[0][0]
        self._removed.append((self.version + 1, name))
        self._dirty = True

    def put_pending(self, pod: PendingPod) -> None:
        key = (pod.namespace, pod.name)
        if self._pending.get(key) != pod:
            self._pending[key] = pod
            self._dirty = True

    def remove_pending(self, namespace: str, name: str) -> None:
        if self._pending.pop((namespace, name), None) is not None:
            self._dirty = True

    def sums(self, resource: str) -> ResourceUse:
        return ResourceUse(*self._sums[resource])

    def tick(self, now_s: float) -> bool:
        """Close the second that ends now. Return whether pages have something to fetch."""
        self._count_reclaimed(now_s)
        due = self._sample_due(self._recent, RECENT_EVERY_S, now_s), self._sample_due(self._day, DAY_EVERY_S, now_s)
        status = (self.ready, self.problem, self.notes, self.history_problem)
        if not (self._dirty or any(due) or status != self._status):
            return False
        self._dirty, self._status = False, status
        self.version += 1
        sample = FleetSample(now_s, self.sums("cpu"), self.sums("memory"), len(self._pending))
        for wanted, kept in zip(due, (self._recent, self._day)):
            if wanted:
                kept.append((self.version, sample))
        return True

    def history(self) -> FleetHistory:
        """Return the past, to be kept over a restart."""
        return FleetHistory(
            saved_s=self._ticked_s,
            recent=tuple(sample for _, sample in self._recent),
            day=tuple(sample for _, sample in self._day),
            reclaimed_core_seconds=self._reclaimed_core_seconds,
            reclaimed_since_s=self._reclaimed_since_s,
            missed_s=self._missed_s,
        )

    def restore(self, past: FleetHistory) -> None:
        """Begin with what an earlier run has seen, as far as it is not too old. Call it before the first tick."""
        now_s = self._ticked_s
        for kept, samples, length_s in (
            (self._recent, past.recent, RECENT_EVERY_S * RECENT_KEPT),
            (self._day, past.day, DAY_EVERY_S * DAY_KEPT),
        ):
            kept.extend((1, one) for one in samples if now_s - length_s <= one.time_s <= now_s)
        if past.saved_s <= now_s and past.saved_s // DAY_S == now_s // DAY_S:
            self._reclaimed_core_seconds, self._reclaimed_since_s = past.reclaimed_core_seconds, past.reclaimed_since_s
            self._missed_s = past.missed_s + now_s - past.saved_s

    def update(self, epoch: str, since: int) -> dict[str, Any]:
        """Return what a page lacks that has the state of `since`, or everything where that is of another run."""
        whole = epoch != self.epoch or since <= self._forgotten or since > self.version
        after = 0 if whole else since
        versions = self._versions
        rows = [row for name, row in self._rows.items() if versions[name] > after]
        labels: dict[str, int] = {}
        return {
            "epoch": self.epoch,
            "version": self.version,
            "whole": whole,
            "time": self._ticked_s,
            "ready": self.ready,
            "problem": self.problem,
            "notes": (*self.notes, *([self.history_problem] if self.history_problem else [])),
            "nodes": [_encode_row(row, labels) for row in rows],
            "labels": list(labels),
            "removed": [] if whole else [name for version, name in self._removed if version > after],
            "sums": self._sums,
            "pods": self._pods,
            "pending": self._pending_groups(),
            "pendingCount": len(self._pending),
            "reclaimed": {
                "coreSeconds": self._reclaimed_core_seconds,
                "since": self._reclaimed_since_s,
                "missedSeconds": self._missed_s,
            },
            "recent": _newer(self._recent, after),
            "day": _newer(self._day, after),
        }

    def _add(self, row: NodeRow | None, sign: int) -> None:
        if row is None:
            return
        self._pods += sign * row.pods
        for resource, use in (("cpu", row.cpu), ("memory", row.memory)):
            sums = self._sums[resource]
            for place, value in enumerate(use.values):
                sums[place] += sign * value

    def _count_reclaimed(self, now_s: float) -> None:
        """Add what mid and batch pods used since the last second; begin again at midnight UTC."""
        if int(now_s // DAY_S) != int(self._ticked_s // DAY_S):
            self._reclaimed_core_seconds, self._reclaimed_since_s, self._missed_s = 0.0, now_s - now_s % DAY_S, 0.0
        used = self.sums("cpu")
        self._reclaimed_core_seconds += max(0.0, now_s - self._ticked_s) * (used.mid_used + used.batch_used) / 1000
        self._ticked_s = now_s

    def _sample_due(self, kept: deque[tuple[int, FleetSample]], every_s: float, now_s: float) -> bool:
        return self.ready and (not kept or now_s - kept[-1][1].time_s >= every_s)

    def _pending_groups(self) -> list[dict[str, Any]]:
        groups: dict[str, list[PendingPod]] = {}
        for pod in self._pending.values():
            groups.setdefault(pod.reason, []).append(pod)
        return [
            {
                "reason": reason,
                "count": len(pods),
                "oldest": min(pod.created_s for pod in pods),
                "examples": [f"{pod.namespace}/{pod.name}" for pod in pods[:_EXAMPLES]],
            }
            for reason, pods in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
        ]


def _newer(kept: Iterable[tuple[int, FleetSample]], after: int) -> list[FleetSample]:
    return [sample for version, sample in kept if version > after]


def _encode_row(row: NodeRow, labels: dict[str, int]) -> tuple[Any, ...]:
    """Return the row with numbers for its labels: most labels are those of many nodes."""
    numbers = [labels.setdefault(label, len(labels)) for label in row.labels]
    return (
        row.name,
        row.cpu,
        row.memory,
        row.pods,
        row.reported_s,
        int(row.ready),
        int(row.schedulable),
        row.pool,
        numbers,
    )


def label_texts(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return labels as texts. A host's name is that of its node and tells nothing more."""
    return tuple(f"{key}={value}" for key, value in sorted(labels.items()) if key != "kubernetes.io/hostname")
