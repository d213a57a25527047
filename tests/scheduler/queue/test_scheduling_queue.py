"""The paths of a pod through the queue, one table per part of it. Times are seconds."""

from __future__ import annotations

import pytest

from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.queue.backoff import QueueSettings
from koord.scheduler.queue.queued_pod import QueuedPod
from koord.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.queue.fake_plugins import ONE, TWO, QueuePlugins, SortPlugin, node, node_added, pod, pod_gone

FIT = frozenset({"Fit"})


def popped(queue: SchedulingQueue, now: float) -> QueuedPod:
    queued = queue.pop(now)
    assert queued is not None
    return queued


def part(queue: SchedulingQueue, name: str, now: float = 0.0) -> str | None:
    found = queue.status_of(f"uid-{name}", now)
    return found.part if found else None


def refused(queue: SchedulingQueue, name: str, now: float, by: frozenset[str] = FIT) -> QueuedPod:
    """Add a pod, try it, and reject it."""
    queue.add(pod(name), now)
    queued = queue.take(f"uid-{name}", now)
    assert queued is not None
    queue.attempt_failed(queued, now, rejected=by, message="0/1 nodes are available: 1 Insufficient cpu.")
    return queued


@pytest.fixture
def cast() -> QueuePlugins:
    return QueuePlugins()


@pytest.fixture
def queue(cast: QueuePlugins) -> SchedulingQueue:
    return SchedulingQueue(cast.profiles)


class TestOrder:
    def test_priority_then_time_then_arrival(self, queue: SchedulingQueue) -> None:
        queue.add(pod("late"), 2.0)
        queue.add(pod("early"), 1.0)
        queue.add(pod("also-early"), 1.0)
        queue.add(pod("urgent", priority=5), 3.0)
        order = [popped(queue, 4.0).pod.name for _ in range(4)]
        assert order == ["urgent", "early", "also-early", "late"]
        assert queue.pop(4.0) is None

    def test_profiles_share_one_line(self, queue: SchedulingQueue) -> None:
        queue.add(pod("a", scheduler=TWO), 0.0)
        queue.add(pod("b", scheduler=ONE, priority=1), 0.0)
        assert [popped(queue, 0.0).pod.scheduler for _ in range(2)] == [ONE, TWO]

    def test_a_failure_goes_behind_pods_that_came_before_it(self, queue: SchedulingQueue) -> None:
        first = refused(queue, "first", 0.0)
        queue.add(pod("second"), 1.0)
        queue.activate([first.uid], 100.0)
        queue.add(pod("third"), 2.0)
        assert [popped(queue, 100.0).pod.name for _ in range(3)] == ["first", "second", "third"]
        queue.attempt_failed(first, 3.0, rejected=FIT)
        queue.activate([first.uid], 100.0)
        queue.add(pod("fourth"), 2.5)
        assert [popped(queue, 100.0).pod.name for _ in range(2)] == ["fourth", "first"]

    def test_an_update_of_an_active_pod_takes_its_place(self, queue: SchedulingQueue) -> None:
        queue.add(pod("a"), 0.0)
        queue.add(pod("b"), 0.0)
        queue.update(pod("b", priority=9, labels={"x": "y"}), 1.0)
        first = popped(queue, 1.0)
        assert (first.pod.name, dict(first.pod.labels)) == ("b", {"x": "y"})

    def test_profiles_that_sort_differently_are_refused(self) -> None:
        class Backwards(SortPlugin):
            name = "Backwards"

        profiles = [
            SchedulerProfile(ONE, {Plugin.sort_key: (SortPlugin(),)}),
            SchedulerProfile(TWO, {Plugin.sort_key: (Backwards(),)}),
        ]
        with pytest.raises(ValueError, match="Backwards"):
            SchedulingQueue(profiles)

    def test_a_pod_of_a_stranger_is_refused(self, queue: SchedulingQueue) -> None:
        with pytest.raises(ValueError, match="nobody"):
            queue.add(pod("p", scheduler="nobody"), 0.0)


class TestFailures:
    def test_a_refused_pod_sleeps_and_remembers_why(self, queue: SchedulingQueue) -> None:
        refused(queue, "p", 10.5)
        found = queue.status_of("uid-p", 11.0)
        assert found is not None
        assert (found.part, found.attempts, found.rejected_by) == ("unschedulable", 1, ("Fit",))
        assert (found.queued_at, found.since, found.backing_off_until) == (10.5, 10.5, 12.0)
        assert found.last_failure == "0/1 nodes are available: 1 Insufficient cpu."
        assert found.moved_by == "ScheduleAttemptFailure"
        assert queue.pop(11.0) is None
        assert queue.next_wakeup() == 310.5

    def test_an_error_is_retried_on_growing_whole_seconds(self, queue: SchedulingQueue) -> None:
        """The moments at which kube-scheduler 1.35 was seen to try again a pod that met an error at 46.678."""
        queue.add(pod("p"), 46.678)
        now, seen = 46.678, []
        for _ in range(5):
            assert queue.attempt_failed(popped(queue, now), now, message="it broke") == "backoff"
            assert queue.pop(now) is None  # errors are not taken early
            wakeup = queue.next_wakeup()
            assert wakeup is not None
            seen.append(now := wakeup)
        assert seen == [48.0, 51.0, 56.0, 65.0, 76.0]

    def test_a_refusal_ends_a_row_of_errors(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p"), 0.0)
        for now in (0.0, 10.0, 20.0):
            queue.attempt_failed(popped(queue, now), now)
        queued = popped(queue, 30.0)
        assert queued.errors == 3
        queue.attempt_failed(queued, 30.0, rejected=FIT)
        assert (queued.errors, queued.refusals, queued.until) == (0, 1, 32.0)
        queue.activate([queued.uid], 30.0)
        queue.attempt_failed(popped(queue, 30.0), 30.0)
        assert (queued.errors, queued.refusals, queued.until) == (1, 1, 32.0)

    def test_five_minutes_of_sleep_are_enough(self, queue: SchedulingQueue) -> None:
        refused(queue, "p", 0.0, by=frozenset({"Deaf"}))
        assert queue.flush(299.0) == 0
        assert queue.flush(300.0) == 1
        assert part(queue, "p") == "active"
        assert queue.counters.incoming["active", "UnschedulableTimeout"] == 1
        assert queue.next_wakeup() is None

    def test_refusals_are_counted_per_plugin_until_the_next_attempt(self, queue: SchedulingQueue) -> None:
        refused(queue, "a", 0.0, by=frozenset({"Fit", "Taints"}))
        refused(queue, "b", 0.0)
        assert queue.counters.unschedulable == {("Fit", ONE): 2, ("Taints", ONE): 1}
        queue.delete("uid-b")
        queue.take("uid-a", 0.0)
        assert queue.counters.unschedulable == {}


class TestEvents:
    @pytest.mark.parametrize(
        ("by", "event", "woken"),
        [
            pytest.param("Fit", node_added(cpu="4"), True, id="a-node-with-room"),
            pytest.param("Fit", node_added(cpu="50m"), False, id="a-node-too-small"),
            pytest.param("Fit", pod_gone(), True, id="a-pod-left"),
            pytest.param("Taints", pod_gone(), False, id="nobody-who-refused-it-listens"),
            pytest.param("Deaf", node_added(cpu="4"), False, id="a-plugin-that-listens-to-nothing"),
            pytest.param("Unheard", node_added(cpu="4"), False, id="a-plugin-of-no-profile"),
            pytest.param(
                "Fit",
                ObjectEvent(ClusterEvent("Node", UPDATE, "labels"), node(), node()),
                False,
                id="another-part-of-the-node",
            ),
            pytest.param("Fit", ObjectEvent(ClusterEvent("Moon", ADD)), False, id="a-kind-that-nobody-knows"),
            pytest.param(
                "Fit",
                ObjectEvent(ClusterEvent("Node", UPDATE, "taints"), node(), node()),
                True,
                id="taints-turn-node-watchers",
            ),
            pytest.param(
                "Taints",
                ObjectEvent(ClusterEvent("Node", UPDATE, "taints"), node(), node(taints=("t",))),
                False,
                id="but-not-those-who-know-taints",
            ),
        ],
    )
    def test_who_is_woken(self, queue: SchedulingQueue, by: str, event: ObjectEvent, woken: bool) -> None:
        refused(queue, "p", 0.0, by=frozenset({by}))
        assert queue.on_event(event, 100.0) == woken
        assert part(queue, "p") == ("active" if woken else "unschedulable")

    def test_one_hopeful_plugin_of_many_is_enough(self, queue: SchedulingQueue) -> None:
        refused(queue, "p", 0.0, by=frozenset({"Fit", "Deaf", "Taints"}))
        assert queue.on_event(node_added(cpu="50m"), 100.0) == 1

    def test_other_profiles_sleep_on(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p", scheduler=TWO), 0.0)
        queue.attempt_failed(popped(queue, 0.0), 0.0, rejected=frozenset({"Taints"}))
        assert queue.on_event(node_added(), 100.0) == 0  # profile two has no such plugin

    def test_waking_during_the_back_off_waits_for_its_end(self, queue: SchedulingQueue) -> None:
        refused(queue, "p", 0.0)
        queue.add(pod("busy"), 0.0)
        assert queue.on_event(pod_gone(), 0.5) == 1
        assert part(queue, "p") == "backoff"
        assert popped(queue, 1.9).pod.name == "busy"
        queue.add(pod("busy-too", priority=-1), 1.9)
        assert queue.flush(2.0) == 1
        assert popped(queue, 2.0).pod.name == "p"

    def test_an_idle_scheduler_takes_it_early(self, queue: SchedulingQueue) -> None:
        refused(queue, "p", 0.0)
        queue.on_event(pod_gone(), 0.5)
        assert popped(queue, 0.5).pod.name == "p"
        assert queue.counters.incoming["active", "PopFromBackoffQ"] == 1

    def test_unless_that_is_switched_off(self, cast: QueuePlugins) -> None:
        queue = SchedulingQueue(cast.profiles, QueueSettings(pop_from_backoff=False))
        refused(queue, "p", 0.5)
        queue.on_event(pod_gone(), 0.6)
        assert queue.pop(1.4) is None
        assert queue.next_wakeup() == 1.5
        assert popped(queue, 1.5).pod.name == "p"

    @pytest.mark.parametrize("in_flight", [pytest.param(False, id="asleep"), pytest.param(True, id="in-flight")])
    @pytest.mark.parametrize(
        ("pending", "rejected", "event", "where"),
        [
            pytest.param("Fit", "Taints", node_added(cpu="50m"), "backoff", id="only-the-other-hopes"),
            pytest.param("Fit", "Taints", node_added(taints=("t",)), "active", id="only-the-pending-hopes"),
            pytest.param("Fit", "Taints", node_added(), "active", id="both-hope-pending-asked-first"),
            pytest.param("Taints", "Fit", node_added(), "active", id="both-hope-pending-asked-last"),
            pytest.param("Fit", "Taints", node_added(cpu="50m", taints=("t",)), "unschedulable", id="neither-hopes"),
        ],
    )
    def test_what_a_pending_plugin_waited_for_skips_the_back_off(
        self, queue: SchedulingQueue, pending: str, rejected: str, event: ObjectEvent, where: str, in_flight: bool
    ) -> None:
        queue.add(pod("p"), 0.0)
        queued = popped(queue, 0.0)
        if in_flight:
            queue.on_event(event, 0.0)
        queue.attempt_failed(queued, 0.0, rejected=frozenset({rejected}), pending=frozenset({pending}))
        if not in_flight:
            queue.on_event(event, 0.1)
        assert part(queue, "p") == where

    def test_a_lesser_hope_does_not_settle_the_matter(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p"), 0.0)
        queued = popped(queue, 0.0)
        for cpu in ("50m", "4", "50m"):
            queue.on_event(node_added(cpu=cpu), 0.0)
        assert queue.attempt_failed(queued, 0.0, rejected=frozenset({"Taints"}), pending=FIT) == "active"

    def test_a_plugin_of_the_same_name_in_another_profile_has_no_say(self, cast: QueuePlugins) -> None:
        class Eager(Plugin):
            name = "Fit"
            wakes_on = (ClusterEvent("Node", ADD), ClusterEvent("Pod", UPDATE))

        profiles = [
            SchedulerProfile(ONE, {Plugin.sort_key: (cast.sort,), Plugin.filter: (cast.fit,)}),
            SchedulerProfile(TWO, {Plugin.sort_key: (cast.sort,), Plugin.filter: (Eager(),)}),
        ]
        queue = SchedulingQueue(profiles)
        refused(queue, "p", 0.0)
        queue.add(pod("q"), 0.0)
        queued = popped(queue, 0.0)
        assert queue.on_event(node_added(cpu="10m"), 100.0) == 0
        assert queue.attempt_failed(queued, 100.0, rejected=FIT) == "unschedulable"
        queue.update(pod("p", labels={"a": "b"}), 100.0)
        assert part(queue, "p") == "unschedulable"

    def test_promised_room_that_is_free_again_is_for_equals_and_less(self, queue: SchedulingQueue) -> None:
        for name, priority in (("low", 1), ("equal", 5), ("high", 9)):
            queue.add(pod(name, priority=priority), 0.0)
            queue.attempt_failed(popped(queue, 0.0), 0.0, rejected=FIT)
        assert queue.on_event(pod_gone(), 100.0, at_most_priority=5) == 2
        assert [part(queue, name) for name in ("low", "equal", "high")] == ["active", "active", "unschedulable"]

    def test_a_pod_is_not_woken_by_its_own_retreat(self, queue: SchedulingQueue) -> None:
        refused(queue, "p", 0.0)
        refused(queue, "q", 0.0)
        assert queue.on_event(pod_gone("p"), 100.0, except_uid="uid-p") == 1
        assert (part(queue, "p"), part(queue, "q")) == ("unschedulable", "active")

    def test_like_pods_are_asked_about_once(self, cast: QueuePlugins, queue: SchedulingQueue) -> None:
        for number in range(50):
            queue.add(pod(f"p{number}", cpu="100m" if number % 2 else "200m"), 0.0)
            queue.attempt_failed(popped(queue, 0.0), 0.0, rejected=FIT)
        cast.fit.asked = 0
        assert queue.on_event(node_added(cpu="150m"), 100.0) == 25
        assert cast.fit.asked == 2
        assert queue.on_event(ObjectEvent(ClusterEvent("Wish", ADD), None, "moon"), 100.0) == 0
        assert cast.fit.asked == 2

    def test_a_plugin_that_does_not_say_what_it_reads_is_asked_about_each(self, queue: SchedulingQueue) -> None:
        for name, wish in (("p", "moon"), ("q", "sun")):
            queue.add(pod(name, annotations={"wish": wish}), 0.0)
            queue.attempt_failed(popped(queue, 0.0), 0.0, rejected=frozenset({"Wishes"}))
        assert queue.on_event(ObjectEvent(ClusterEvent("Wish", ADD), None, "sun"), 100.0) == 1
        assert (part(queue, "p"), part(queue, "q")) == ("unschedulable", "active")


class TestOwnUpdates:
    @pytest.mark.parametrize(
        ("by", "change", "where"),
        [
            pytest.param("Fit", {"cpu": "50m"}, "active", id="asks-for-less"),
            pytest.param("Fit", {"cpu": "500m"}, "unschedulable", id="asks-for-more"),
            pytest.param("Fit", {"labels": {"a": "b"}}, "unschedulable", id="labels-mean-nothing-to-fit"),
            pytest.param("Taints", {"tolerations": ("t",)}, "active", id="tolerates-more"),
            pytest.param("Deaf", {"cpu": "50m"}, "unschedulable", id="nobody-listens"),
            pytest.param("Fit", {"nominated": "n1"}, "unschedulable", id="only-its-status"),
        ],
    )
    def test_of_a_sleeping_pod(self, queue: SchedulingQueue, by: str, change: dict[str, str], where: str) -> None:
        refused(queue, "p", 0.0, by=frozenset({by}))
        queue.update(pod("p", **change), 100.0)  # type: ignore[arg-type]
        assert part(queue, "p") == where

    def test_it_is_filed_under_what_it_is_now(self, queue: SchedulingQueue) -> None:
        refused(queue, "p", 0.0)
        refused(queue, "q", 0.0)  # like p, and asked about through it
        queue.update(pod("p", cpu="3"), 1.0)
        assert queue.on_event(node_added(cpu="1"), 100.0) == 1
        assert (part(queue, "p"), part(queue, "q")) == ("unschedulable", "active")
        assert queue.on_event(node_added(cpu="3"), 100.0) == 1

    def test_the_same_revision_is_no_news(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p", revision="7"), 0.0)
        queue.attempt_failed(popped(queue, 0.0), 0.0, rejected=FIT)
        queue.update(pod("p", revision="7", cpu="50m"), 100.0)
        assert part(queue, "p") == "unschedulable"
        queue.update(pod("p", revision="8", cpu="50m"), 100.0)
        assert part(queue, "p") == "active"

    def test_a_pod_that_was_bound_by_others_leaves(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p", nominated="n1"), 0.0)
        queue.update(pod("p", node="n1"), 0.0)
        assert (part(queue, "p"), len(queue), queue.nominations.pods_on("n1")) == (None, 0, ())

    def test_another_scheduler_of_ours_starts_anew(self, queue: SchedulingQueue) -> None:
        refused(queue, "p", 0.0)
        queue.update(pod("p", scheduler=TWO), 1.0)
        found = queue.status_of("uid-p", 1.0)
        assert found is not None
        assert (found.part, found.attempts, found.queued_at) == ("active", 0, 1.0)
        assert queue.counters.unschedulable == {}


class TestGates:
    def test_scheduling_gates(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p", gates=("x", "y")), 0.0)
        found = queue.status_of("uid-p", 0.0)
        assert found is not None
        assert (found.part, found.gated_by, found.attempts) == ("gated", "Gates", 0)
        assert found.gate_reason == "waiting for scheduling gates: ['x', 'y']"
        assert found.first_attempt is None
        assert queue.counts() == {"active": 0, "backoff": 0, "unschedulable": 0, "gated": 1}
        queue.update(pod("p", gates=("y",)), 5.0)
        assert queue.pop(5.0) is None
        queue.update(pod("p"), 9.0)
        found = queue.status_of("uid-p", 9.0)
        assert found is not None
        assert (found.part, found.gated_by, found.first_attempt, found.queued_at) == ("active", "", 9.0, 0.0)
        assert found.moved_by == "UnschedulablePodUpdatePodSchedulingGatesEliminated"

    def test_time_alone_opens_no_gate(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p", gates=("x",)), 0.0)
        assert queue.next_wakeup() is None
        assert queue.flush(10_000.0) == 0

    def test_the_status_of_a_gated_pod_opens_nothing(self, cast: QueuePlugins, queue: SchedulingQueue) -> None:
        """Someone writes a condition to each waiting member of a gang: that must not start the gang over."""
        cast.gang.open = False
        queue.add(pod("p", labels={"gang": "g"}), 0.0)
        cast.gang.open = True
        queue.update(pod("p", labels={"gang": "g"}, nominated="n1"), 0.0)
        assert part(queue, "p") == "gated"
        queue.update(pod("p", labels={"gang": "g", "a": "b"}), 0.0)
        assert part(queue, "p") == "active"

    def test_activation_looks_again(self, cast: QueuePlugins, queue: SchedulingQueue) -> None:
        cast.gang.open = False
        queue.add(pod("p", labels={"gang": "g"}), 0.0)
        assert queue.activate(["uid-p"], 0.0) == 0
        cast.gang.open = True
        assert queue.activate(["uid-p", "uid-unknown"], 0.0) == 1
        assert part(queue, "p") == "active"

    def test_an_event_of_the_gate_looks_again(self, cast: QueuePlugins, queue: SchedulingQueue) -> None:
        queue.add(pod("p", claims=("c", "d")), 0.0)
        queue.add(pod("q", claims=("e",)), 0.0)
        cast.claims.made = {"c"}
        assert queue.on_event(ObjectEvent(ClusterEvent("ResourceClaim", ADD), None, "c"), 0.0) == 0
        found = queue.status_of("uid-p", 0.0)
        assert found is not None
        assert found.gate_reason == "waiting for ['d']"
        cast.claims.made = {"c", "d", "e"}
        assert queue.on_event(ObjectEvent(ClusterEvent("ResourceClaim", ADD), None, "d"), 0.0) == 1
        assert (part(queue, "p"), part(queue, "q")) == ("active", "gated")

    def test_a_gate_may_close_behind_a_pod_that_wakes(self, cast: QueuePlugins, queue: SchedulingQueue) -> None:
        queue.add(pod("p", labels={"gang": "g"}), 0.0)
        queue.attempt_failed(popped(queue, 0.0), 0.0, rejected=FIT)
        cast.gang.open = False
        assert queue.on_event(pod_gone(), 100.0) == 0
        assert part(queue, "p") == "gated"
        assert queue.on_event(pod_gone(), 100.0) == 0  # the gate does not listen: nobody can help but who closed it
        assert queue.counters.unschedulable == {("Fit", ONE): 1, ("Gang", ONE): 1}

    def test_who_leaves_the_back_off_is_not_asked_again(self, cast: QueuePlugins, queue: SchedulingQueue) -> None:
        queue.add(pod("p", labels={"gang": "g"}), 0.0)
        queue.attempt_failed(popped(queue, 0.0), 0.0)
        cast.gang.open = False
        assert popped(queue, 2.0).pod.name == "p"

    def test_without_early_pops_they_are_asked_when_they_leave_it(self, cast: QueuePlugins) -> None:
        queue = SchedulingQueue(cast.profiles, QueueSettings(pop_from_backoff=False))
        for name in ("p", "q"):
            queue.add(pod(name, labels={"gang": "g"}), 0.0)
            queue.attempt_failed(popped(queue, 0.0), 0.0)
        cast.gang.open = False
        assert queue.activate(["uid-p"], 0.5) == 0
        assert queue.flush(1.0) == 0
        assert (part(queue, "p"), part(queue, "q")) == ("gated", "gated")


class TestFlights:
    def test_an_event_during_the_attempt_is_not_missed(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p"), 0.0)
        queued = popped(queue, 0.0)
        assert queue.on_event(pod_gone(), 0.1) == 0
        assert queue.attempt_failed(queued, 0.2, rejected=FIT) == "backoff"

    def test_an_event_before_it_is_no_reason(self, queue: SchedulingQueue) -> None:
        queue.add(pod("other"), 0.0)
        popped(queue, 0.0)
        queue.on_event(pod_gone(), 0.1)
        queue.add(pod("p"), 0.2)
        assert queue.attempt_failed(popped(queue, 0.2), 0.3, rejected=FIT) == "unschedulable"

    def test_an_event_that_nobody_who_refused_it_hears_is_no_reason(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p"), 0.0)
        queued = popped(queue, 0.0)
        queue.on_event(pod_gone(), 0.1)
        queue.on_event(node_added(cpu="10m"), 0.1)
        assert queue.attempt_failed(queued, 0.2, rejected=frozenset({"Deaf", "Wishes"})) == "unschedulable"

    def test_its_own_update_counts_and_is_what_is_tried_next(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p"), 0.0)
        queued = popped(queue, 0.0)
        before = queued.pod
        queue.update(pod("p", cpu="50m"), 0.1)
        assert queued.pod is before  # the attempt goes on with what it began with
        assert queue.attempt_failed(queued, 0.2, rejected=FIT) == "backoff"
        assert popped(queue, 0.2).pod.requests["cpu"] == 50

    def test_the_update_of_another_pod_in_flight_is_not_its_own(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p"), 0.0)
        queue.add(pod("q"), 0.0)
        p, q = popped(queue, 0.0), popped(queue, 0.0)
        queue.update(pod("q", cpu="50m"), 0.1)
        assert queue.attempt_failed(p, 0.2, rejected=FIT) == "unschedulable"
        assert queue.attempt_failed(q, 0.2, rejected=FIT) == "backoff"

    def test_activation_during_the_attempt(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p"), 0.0)
        queued = popped(queue, 0.0)
        assert queue.activate(["uid-p"], 0.1) == 0
        assert queue.attempt_failed(queued, 0.2, rejected=frozenset({"Deaf"})) == "backoff"

    def test_events_are_forgotten_with_the_last_who_could_miss_them(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p"), 0.0)
        queue.add(pod("q"), 0.0)
        p = popped(queue, 0.0)
        for _ in range(3):
            queue.on_event(pod_gone(), 0.1)
        q = popped(queue, 0.1)
        queue.on_event(node_added(), 0.1)
        assert queue.in_flight_events() == {"AssignedPodDelete": 3, "NodeAdd": 1, "PodPopped": 2}
        queue.committed(p.uid)
        assert queue.in_flight_events() == {"NodeAdd": 1, "PodPopped": 1}
        assert queue.attempt_failed(p, 0.3) == "backoff"  # committed pods can still fail to bind
        queue.done(q.uid)
        assert queue.in_flight_events() == {}

    def test_deleted_during_the_attempt(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p", nominated="n1"), 0.0)
        queued = popped(queue, 0.0)
        queue.delete("uid-p")
        assert part(queue, "p") is None
        assert queue.attempt_failed(queued, 0.2, rejected=FIT) is None
        queue.nominate("uid-p", "n1")
        assert (len(queue), queue.nominations.pods_on("n1"), queue.pop(100.0)) == (0, (), None)

    def test_gone_and_back_during_one_attempt_is_still_one_attempt(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p"), 0.0)
        queued = popped(queue, 0.0)
        queue.delete("uid-p")
        queue.add(pod("p", labels={"a": "b"}), 0.1)
        assert queue.pop(0.1) is None
        assert queue.attempt_failed(queued, 0.2, rejected=frozenset({"Deaf"})) == "backoff"
        assert dict(popped(queue, 0.2).pod.labels) == {"a": "b"}

    def test_failing_twice_is_failing_once(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p"), 0.0)
        queued = popped(queue, 0.0)
        queue.attempt_failed(queued, 0.0, rejected=FIT)
        assert queue.attempt_failed(queued, 0.0, rejected=FIT) is None
        assert queued.refusals == 1

    def test_done_is_done(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p"), 0.0)
        queued = popped(queue, 0.0)
        queue.done("uid-p")
        assert queue.attempt_failed(queued, 0.0) is None
        assert len(queue) == 0


class TestTaking:
    """A plugin names the next pod, wherever it is."""

    def test_from_every_part(self, queue: SchedulingQueue) -> None:
        queue.add(pod("active"), 0.0)
        queue.add(pod("gated", gates=("x",)), 0.0)
        refused(queue, "asleep", 0.0)
        refused(queue, "kept-back", 0.0, by=frozenset())
        assert queue.counts() == {"active": 1, "backoff": 1, "unschedulable": 1, "gated": 1}
        for name in ("active", "gated", "asleep", "kept-back"):
            taken = queue.take(f"uid-{name}", 0.5)
            assert taken is not None
            assert taken.part == "in-flight"
            assert taken.first_attempt is not None
        assert sum(queue.counts().values()) == 0
        assert queue.take("uid-active", 0.5) is None
        assert queue.take("uid-unknown", 0.5) is None

    def test_promises_survive(self, queue: SchedulingQueue) -> None:
        queue.add(pod("p", nominated="n1"), 0.0)
        queue.take("uid-p", 0.0)
        assert [p.name for p in queue.nominations.pods_on("n1")] == ["p"]


def test_moves_have_the_names_that_kubernetes_gives_them(queue: SchedulingQueue) -> None:
    """Recorded from kube-scheduler 1.35 for the same story."""
    queue.add(pod("a"), 0.0)
    for now in (0.0, 2.0):
        queue.attempt_failed(popped(queue, now), now)  # no nodes yet
    queue.done(popped(queue, 10.0).uid)
    queue.add(pod("g", gates=("x",)), 10.0)
    queue.update(pod("g"), 11.0)
    queue.done(popped(queue, 11.0).uid)
    queue.add(pod("b", cpu="5"), 12.0)
    queue.attempt_failed(popped(queue, 12.0), 12.0, rejected=FIT)
    queue.on_event(pod_gone(), 20.0)
    queue.attempt_failed(popped(queue, 20.0), 20.0, rejected=FIT)
    queue.on_event(ObjectEvent(ClusterEvent("Node", UPDATE, "unschedulable"), node(), node()), 21.0)
    queue.attempt_failed(popped(queue, 21.0), 21.0, rejected=FIT)
    assert queue.counters.incoming == {
        ("active", "UnschedulablePodAdd"): 2,
        ("backoff", "ScheduleAttemptFailure"): 2,
        ("active", "BackoffComplete"): 2,
        ("unschedulable", "UnschedulablePodAdd"): 1,
        ("active", "UnschedulablePodUpdatePodSchedulingGatesEliminated"): 1,
        ("unschedulable", "ScheduleAttemptFailure"): 3,
        ("active", "AssignedPodDelete"): 1,
        ("backoff", "NodeUpdateNodeTaint"): 1,
        ("active", "PopFromBackoffQ"): 1,
    }


def test_a_plugin_may_listen_to_a_whole_kind(cast: QueuePlugins) -> None:
    class Any(Plugin):
        name = "Any"
        wakes_on = (ClusterEvent("Node", UPDATE),)

    queue = SchedulingQueue([SchedulerProfile(ONE, {Plugin.sort_key: (cast.sort,), Plugin.filter: (Any(),)})])
    for change in ("labels", "taints", ""):
        refused(queue, f"p-{change}", 0.0, by=frozenset({"Any"}))
        assert queue.on_event(ObjectEvent(ClusterEvent("Node", UPDATE, change), node(), node()), 100.0) == 1
