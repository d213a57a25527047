"""Model the queue without caring for speed: a dictionary, and a look at every pod for everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ClusterEvent, ObjectEvent, may_open_gate, pod_update_events
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.queue.backoff import QueueSettings, backoff_end
from tests.scheduler.queue.fake_plugins import QueuePlugins

NODE_ADD = ClusterEvent("Node", "add")
TAINTED = (ClusterEvent("Node", "update", "taints"), ClusterEvent("Node", "update", "unschedulable"))


class ModelEntry:
    def __init__(self, pod: PodInfo, number: int, now: float) -> None:
        self.pod = pod
        self.number = number
        self.part = ""
        self.since = now
        self.until = 0.0
        self.attempts = self.refusals = self.errors = 0
        self.rejected: set[str] = set()
        self.pending: set[str] = set()
        self.gate = ""
        self.missed: list[ObjectEvent] = []
        self.listening = False
        self.activated = False
        self.latest = pod

    @property
    def order(self) -> tuple[Any, ...]:
        return (-self.pod.priority, self.since, self.number)


class QueueModel:
    def __init__(self, cast: QueuePlugins, settings: QueueSettings) -> None:
        self.cast = cast
        self.settings = settings
        self.live: dict[str, ModelEntry] = {}
        self.orphans: dict[str, ModelEntry] = {}  # attempts whose pod is gone
        self.promised: dict[str, str] = {}
        self.arrivals = 0

    # Who refuses, who hears --------------------------------------------------------------------------------------

    def plugins(self, entry: ModelEntry) -> tuple[Plugin, ...]:
        return next(p.plugins() for p in self.cast.profiles if p.scheduler_name == entry.pod.scheduler)

    def gates(self, entry: ModelEntry) -> list[Plugin]:
        profile = next(p for p in self.cast.profiles if p.scheduler_name == entry.pod.scheduler)
        plugins = list(profile.plugins_at(Plugin.pre_enqueue))
        return [p for p in plugins if p.name == entry.gate] + [p for p in plugins if p.name != entry.gate]

    @staticmethod
    def listens(plugin: Plugin, event: ClusterEvent) -> bool:
        return any(own.covers(event) for own in plugin.wakes_on)

    def may_help(self, plugin: Plugin, pod: PodInfo, object_event: ObjectEvent) -> bool:
        if self.listens(plugin, object_event.event):
            return plugin.queueing_hint(pod, object_event)
        return self.listens_always(plugin, object_event.event)

    def listens_always(self, plugin: Plugin, event: ClusterEvent) -> bool:
        knows_taints = any(self.listens(plugin, part) for part in TAINTED)
        return event in TAINTED and self.listens(plugin, NODE_ADD) and not knows_taints

    def strategy_for(self, entry: ModelEntry, object_event: ObjectEvent) -> int:
        worth = 0
        for plugin in self.plugins(entry):
            if plugin.name in entry.pending and self.may_help(plugin, entry.pod, object_event):
                worth = 2
            if plugin.name in entry.rejected and self.may_help(plugin, entry.pod, object_event):
                worth = max(worth, 1)
        return worth

    # Moves -------------------------------------------------------------------------------------------------------

    def enqueue(self, entry: ModelEntry, part: str, *, checked: bool = False) -> None:
        if (part == "active" or self.settings.pop_from_backoff) and not checked:
            for plugin in self.gates(entry):
                if plugin.pre_enqueue(entry.pod) is not None:
                    entry.part, entry.gate = "gated", plugin.name
                    entry.rejected.add(plugin.name)
                    return
            entry.gate = ""
        entry.part = part

    def requeue(self, entry: ModelEntry, worth: int, now: float) -> None:
        self.enqueue(entry, "backoff" if worth == 1 and now < entry.until else "active")

    def update_nomination(self, old: PodInfo | None, new: PodInfo) -> None:
        if new.gates:
            self.promised.pop(new.uid, None)
        elif old is None or old.nominated_node or new.nominated_node:
            self.nominate(new.uid, new.nominated_node)

    def nominate(self, uid: str, node: str) -> None:
        self.promised.pop(uid, None)
        if node:
            self.promised[uid] = node

    # The same calls as the queue's -------------------------------------------------------------------------------

    def add(self, pod: PodInfo, now: float) -> None:
        self.update_nomination(None, pod)
        if pod.uid in self.orphans:
            entry = self.live[pod.uid] = self.orphans.pop(pod.uid)
            entry.latest, entry.activated = pod, True
            return
        self.arrivals += 1
        entry = self.live[pod.uid] = ModelEntry(pod, self.arrivals, now)
        self.enqueue(entry, "active")

    def update(self, pod: PodInfo, now: float) -> None:
        entry = self.live[pod.uid]
        old = entry.latest if entry.part == "in-flight" else entry.pod
        changes = [ObjectEvent(event, old, pod) for event in pod_update_events(old, pod)]
        if entry.part == "in-flight":
            entry.latest = pod
            entry.missed += changes
            return
        self.update_nomination(old, pod)
        entry.pod = pod
        if entry.part == "gated" and may_open_gate(old, pod):
            self.requeue(entry, 1, now)
        elif entry.part == "unschedulable":
            for change in changes:
                if (worth := self.strategy_for(entry, change)) > 0:
                    self.requeue(entry, worth, now)
                    break

    def delete(self, uid: str) -> None:
        self.promised.pop(uid, None)
        entry = self.live.pop(uid, None)
        if entry is not None and entry.part == "in-flight":
            entry.missed, entry.listening = [], False
            self.orphans[uid] = entry

    def on_event(self, object_event: ObjectEvent, now: float) -> None:
        of_interest = any(
            self.listens(plugin, object_event.event) or self.listens_always(plugin, object_event.event)
            for profile in self.cast.profiles
            for plugin in profile.plugins()
        )
        woken: list[tuple[ModelEntry, int]] = []
        for entry in self.live.values():
            if entry.part == "in-flight" and entry.listening and of_interest:
                entry.missed.append(object_event)
            if entry.part == "gated":
                gate = next(p for p in self.plugins(entry) if p.name == entry.gate)
                if not self.listens(gate, object_event.event) and not self.listens_always(gate, object_event.event):
                    continue
            if entry.part in ("gated", "unschedulable") and (worth := self.strategy_for(entry, object_event)) > 0:
                woken.append((entry, worth))
        for entry, worth in woken:
            self.requeue(entry, worth, now)

    def flush(self, now: float) -> None:
        for entry in self.live.values():
            if entry.part == "backoff" and entry.until <= now:
                self.enqueue(entry, "active", checked=self.settings.pop_from_backoff)
            elif entry.part == "unschedulable" and entry.since + self.settings.max_unschedulable_s <= now:
                self.requeue(entry, 1, now)

    def pop(self, now: float) -> str | None:
        self.flush(now)
        active = [e for e in self.live.values() if e.part == "active"]
        if active:
            return self.start(min(active, key=lambda e: e.order))
        kept = [e for e in self.live.values() if e.part == "backoff" and (e.rejected or e.pending)]
        if kept and self.settings.pop_from_backoff:
            return self.start(min(kept, key=lambda e: (e.until, *e.order)))
        return None

    def start(self, entry: ModelEntry) -> str:
        entry.part, entry.gate = "in-flight", ""
        entry.attempts += 1
        entry.rejected, entry.pending, entry.missed = set(), set(), []
        entry.listening, entry.activated, entry.latest = True, False, entry.pod
        return entry.pod.uid

    def failed(self, uid: str, now: float, rejected: Iterable[str], pending: Iterable[str]) -> None:
        if self.orphans.pop(uid, None) is not None:
            return
        entry = self.live[uid]
        if entry.pod.nominated_node != entry.latest.nominated_node:
            self.nominate(uid, entry.latest.nominated_node)
        entry.pod, entry.since = entry.latest, now
        entry.rejected, entry.pending = set(rejected), set(pending)
        if entry.rejected or entry.pending:
            entry.refusals, entry.errors = entry.refusals + 1, 0
            worth = max([self.strategy_for(entry, h) for h in entry.missed] + [1 if entry.activated else 0])
        else:
            entry.errors += 1
            worth = 1
        entry.until = backoff_end(now, entry.errors or entry.refusals, self.settings)
        if worth:
            self.requeue(entry, worth, now)
        else:
            entry.part = "unschedulable"

    def activate(self, uid: str) -> None:
        entry = self.live.get(uid)
        if entry is None or entry.part == "active":
            return
        if entry.part == "in-flight":
            entry.activated = True
        else:
            self.enqueue(entry, "active", checked=entry.part == "backoff" and self.settings.pop_from_backoff)

    def done(self, uid: str) -> None:
        if self.orphans.pop(uid, None) is None:
            del self.live[uid]
            self.promised.pop(uid, None)

    # What it should look like ------------------------------------------------------------------------------------

    def next_wakeup(self) -> float | None:
        ends = [e.until for e in self.live.values() if e.part == "backoff"]
        dues = [e.since + self.settings.max_unschedulable_s for e in self.live.values() if e.part == "unschedulable"]
        return min(ends + dues, default=None)

    def refused(self) -> Counter[tuple[str, str]]:
        return Counter(
            (plugin, entry.pod.scheduler) for entry in self.live.values() for plugin in entry.rejected | entry.pending
        )
