"""Any sequence of calls leaves the queue as a model without indexes, heaps or groups would be.

From the model follow the promises that matter: nobody is lost or kept after deletion, a woken pod was refused by one
who listens and hopes, and no event of a flight is missed.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.queue.backoff import QueueSettings
from koord.scheduler.queue.queued_pod import QueuedPod
from koord.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.queue.fake_plugins import ONE, TWO, QueuePlugins, node, pod
from tests.scheduler.queue.queue_model import QueueModel
from tests.soak_budget import soak_runs

NAMES = tuple("abcdef")
CPUS = ("50m", "100m", "2")
CLAIMS = ("c1", "c2")
looks = st.fixed_dictionaries(
    {
        "cpu": st.sampled_from(CPUS),
        "labels": st.sampled_from([{}, {"app": "x"}, {"app": "y"}, {"gang": "g"}]),
        "annotations": st.sampled_from([{}, {"wish": "moon"}]),
        "tolerations": st.sampled_from([(), ("t",)]),
        "gates": st.sampled_from([(), (), ("g",)]),
        "claims": st.sampled_from([(), (), ("c1",), ("c1", "c2")]),
        "nominated": st.sampled_from(["", "", "n1", "n2"]),
    }
)
events = st.one_of(
    st.builds(
        lambda cpu, taints: ObjectEvent(ClusterEvent("Node", ADD), None, node(cpu=cpu, taints=taints)),
        st.sampled_from(CPUS),
        st.sampled_from([(), ("t",)]),
    ),
    st.builds(
        lambda part, cpu, taints: ObjectEvent(ClusterEvent("Node", UPDATE, part), node(), node(cpu=cpu, taints=taints)),
        st.sampled_from(["allocatable", "labels", "taints", "unschedulable"]),
        st.sampled_from(CPUS),
        st.sampled_from([(), ("t",)]),
    ),
    st.builds(
        lambda labels: ObjectEvent(ClusterEvent("Pod", DELETE), pod("other", node="n1", labels=labels)),
        st.sampled_from([{}, {"app": "x"}]),
    ),
    st.builds(
        lambda part, app: ObjectEvent(
            ClusterEvent("Pod", UPDATE, part), pod("other", node="n1"), pod("other", node="n1", labels={"app": app})
        ),
        st.sampled_from(["labels", "scale-down", ""]),
        st.sampled_from(["x", "y"]),
    ),
    st.builds(lambda wish: ObjectEvent(ClusterEvent("Wish", ADD), None, wish), st.sampled_from(["moon", "sun"])),
    st.just(ObjectEvent(ClusterEvent("Moon", ADD))),
)


class QueueMachine(RuleBasedStateMachine):
    @initialize(early=st.booleans())
    def begin(self, early: bool) -> None:
        self.cast = QueuePlugins()
        chosen = QueueSettings(max_unschedulable_s=20.0, pop_from_backoff=early)
        self.queue = SchedulingQueue(self.cast.profiles, chosen)
        self.model = QueueModel(self.cast, chosen)
        self.now = 1000.0
        self.priority = {name: index % 3 for index, name in enumerate(NAMES)}
        self.scheduler = {name: TWO if name in "ef" else ONE for name in NAMES}
        self.attempts: dict[str, QueuedPod] = {}

    def pod(self, name: str, look: dict[str, Any]) -> Any:
        return pod(name, priority=self.priority[name], scheduler=self.scheduler[name], **look)

    def uids(self, *parts: str) -> list[str]:
        return [uid for uid, entry in self.model.live.items() if entry.part in parts]

    @rule(name=st.sampled_from(NAMES), look=looks)
    def show(self, name: str, look: dict[str, Any]) -> None:
        """Let the watch show a pod, new or not."""
        seen = self.pod(name, look)
        if seen.uid in self.model.live:
            self.model.update(seen, self.now)
            self.queue.update(seen, self.now)
        else:
            self.model.add(seen, self.now)
            self.queue.add(seen, self.now)

    @rule(name=st.sampled_from(NAMES), bound=st.booleans())
    def leave(self, name: str, bound: bool) -> None:
        """Delete a pod, or let somebody else bind it, at any moment."""
        uid = f"uid-{name}"
        self.model.delete(uid)
        if bound and uid in self.queue:
            self.queue.update(pod(name, node="n1", scheduler=self.scheduler[name]), self.now)
        else:
            self.queue.delete(uid)

    @rule()
    def pop(self) -> None:
        expected = self.model.pop(self.now)
        queued = self.queue.pop(self.now)
        assert (queued.uid if queued else None) == expected
        if queued is not None:
            self.attempts[queued.uid] = queued

    @rule(name=st.sampled_from(NAMES))
    def take(self, name: str) -> None:
        uid = f"uid-{name}"
        entry = self.model.live.get(uid)
        queued = self.queue.take(uid, self.now)
        assert (queued is not None) == (entry is not None and entry.part != "in-flight")
        if queued is not None and entry is not None:
            self.model.start(entry)
            self.attempts[uid] = queued

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), kind=st.sampled_from(["error", "refused", "refused", "refused", "pending"]))
    def fail(self, data: st.DataObject, kind: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.attempts)))
        queued = self.attempts.pop(uid)
        names = [plugin.name for plugin in self.cast.filters(queued.pod.scheduler)]
        some = st.sets(st.sampled_from(names), min_size=1)
        rejected = frozenset(data.draw(some)) if kind != "error" else frozenset()
        pending = frozenset(data.draw(some)) if kind == "pending" else frozenset()
        gone = uid in self.model.orphans
        self.model.failed(uid, self.now, rejected, pending)
        where = self.queue.attempt_failed(queued, self.now, rejected=rejected, pending=pending, message=kind)
        assert where == (None if gone else self.model.live[uid].part)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.attempts)))
        del self.attempts[uid]
        self.model.done(uid)
        self.queue.done(uid)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.attempts)))
        if uid in self.model.live and self.model.live[uid].listening:
            entry = self.model.live[uid]
            entry.listening = False
            entry.missed = [h for h in entry.missed if h.new is not None and getattr(h.new, "uid", "") == uid]
        self.queue.committed(uid)

    @rule(object_event=events)
    def happen(self, object_event: ObjectEvent) -> None:
        before = {uid: self.model.live[uid].part for uid in self.uids("unschedulable", "gated")}
        self.model.on_event(object_event, self.now)
        moved = sum(self.model.live[uid].part in ("active", "backoff") for uid in before)
        assert self.queue.on_event(object_event, self.now) == moved

    @rule(claim=st.sampled_from(CLAIMS))
    def make_claim(self, claim: str) -> None:
        self.cast.claims.made.add(claim)
        self.happen(ObjectEvent(ClusterEvent("ResourceClaim", ADD), None, claim))

    @rule(is_open=st.booleans())
    def turn_gang(self, is_open: bool) -> None:
        self.cast.gang.open = is_open

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def activate(self, names: set[str]) -> None:
        for name in sorted(names):
            self.model.activate(f"uid-{name}")
        self.queue.activate([f"uid-{name}" for name in sorted(names)], self.now)

    @rule(name=st.sampled_from(NAMES), where=st.sampled_from(["", "n1", "n2"]))
    def nominate(self, name: str, where: str) -> None:
        uid = f"uid-{name}"
        if uid in self.model.live:
            self.model.nominate(uid, where)
        self.queue.nominate(uid, where)

    @rule(seconds=st.sampled_from([0.25, 0.7, 1.0, 3.0, 21.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def wait_for_wakeup(self) -> None:
        wakeup = self.queue.next_wakeup()
        if wakeup is not None:
            self.now = max(self.now, wakeup)
            assert self.queue.flush(self.now) >= 0
            self.model.flush(self.now)
            later = self.queue.next_wakeup()
            assert later is None or later > self.now  # or a timer would spin

    @invariant()
    def agrees(self) -> None:
        live = self.model.live
        assert {queued.uid for queued in self.queue.pods()} == set(live)
        for uid, entry in live.items():
            found = self.queue.status_of(uid, self.now)
            assert found is not None
            assert (found.part, found.since, found.attempts) == (entry.part, entry.since, entry.attempts)
            assert set(found.rejected_by) == entry.rejected
            assert set(found.pending_on) == entry.pending
            assert found.gated_by == entry.gate
            assert found.nominated_node == self.model.promised.get(uid, "")
        counts = self.queue.counts()
        assert counts == {part: len(self.uids(part)) for part in counts}
        assert self.queue.next_wakeup() == self.model.next_wakeup()
        assert self.queue.counters.unschedulable == self.model.refused()
        for name in ("n1", "n2"):
            promised = {p.uid for p in self.queue.nominations.pods_on(name)}
            assert promised == {uid for uid, where in self.model.promised.items() if where == name}
            assert promised <= set(live)
        if not self.attempts:
            assert not self.queue.in_flight_events()


QueueMachine.TestCase.settings = settings(max_examples=soak_runs(150, 60), stateful_step_count=60, deadline=None)
TestQueueMachine = QueueMachine.TestCase
