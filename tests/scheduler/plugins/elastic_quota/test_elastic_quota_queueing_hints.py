"""ElasticQuota: what wakes a pod that its quota refused, and what does not."""

from __future__ import annotations

from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.plugins.queueing_and_binding import PrioritySort
from koord.scheduler.queue.queueing_hints import QueueingHints
from koord.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.builders import make_node
from tests.scheduler.plugins.elastic_quota.quota_cluster import QuotaCluster, make_quota, of_quota
from tests.scheduler.preemption.cluster_fixture import running

_GONE = ClusterEvent("Pod", DELETE)
_NODE = ClusterEvent("Node", ADD)
_QUOTA = ClusterEvent("ElasticQuota", UPDATE)


def family() -> QuotaCluster:
    """q1 and q2 share a parent of 8; q1 uses all of it."""
    scene = QuotaCluster({"a": "8"})
    scene.quotas(
        make_quota("root", {"cpu": "8"}, {"cpu": "8"}, is_parent="true"),
        make_quota("q1", {"cpu": "4"}, {"cpu": "8"}, parent="root"),
        make_quota("q2", {"cpu": "4"}, {"cpu": "8"}, parent="root"),
        make_quota("far", {"cpu": "2"}, {"cpu": "2"}),
    )
    return scene


def test_each_release_wakes_whom_it_admits() -> None:
    """R25: freed quota wakes a waiter exactly when it passes now."""
    scene = family()
    runs = [of_quota(f"r{n}", "q1", cpu="2") for n in range(4)]
    for pod in runs:
        scene.place(pod)
    small, large = of_quota("small", "q1", cpu="2"), of_quota("large", "q1", cpu="5")
    for pod in (small, large):
        assert "Insufficient" in scene.refusal(pod)
    gone = scene.state.placed_pod(runs[0].metadata.uid)
    scene.gone(runs[0])
    object_event = ObjectEvent(_GONE, old=gone)
    assert scene.hopes(small, object_event)
    assert not scene.hopes(large, object_event)


def test_a_release_elsewhere_wakes_nobody() -> None:
    scene = family()
    for n in range(4):
        scene.place(of_quota(f"r{n}", "q1", cpu="2"))
    waiting = of_quota("waiting", "q1", cpu="2")
    assert "Insufficient" in scene.refusal(waiting)
    far = of_quota("far", "far", cpu="1", node="a")
    scene.seen(far)
    gone = scene.state.placed_pod(far.metadata.uid)
    scene.gone(far)
    assert not scene.hopes(waiting, ObjectEvent(_GONE, old=gone))


def test_a_larger_max_a_new_node_and_a_bind_that_failed_wake() -> None:
    scene = QuotaCluster({"a": "4"})
    scene.quotas(make_quota("q", {}, {"cpu": "4"}))
    first, waiting = of_quota("first", "q", cpu="4"), of_quota("waiting", "q", cpu="2")
    scene.place(first)
    assert "Insufficient" in scene.refusal(waiting)
    assert not scene.hopes(waiting, ObjectEvent(_QUOTA))
    scene.quotas(make_quota("q", {}, {"cpu": "8"}))
    assert not scene.hopes(waiting, ObjectEvent(_QUOTA))  # there are still only 4 in all
    scene.state.set_node(make_node("b", cpu="4"))
    assert scene.hopes(waiting, ObjectEvent(_NODE))
    scene.state.drop_node("b")
    assert not scene.hopes(waiting, ObjectEvent(_NODE))
    scene.state.forget(first.metadata.uid)
    assert scene.hopes(waiting, ObjectEvent(_GONE))
    scene.agrees_with_a_new_ledger()


def test_a_waiting_pod_that_leaves_gives_its_siblings_their_share_back() -> None:
    """R24: what a quota is entitled to does not wait for anybody's attempt. Nothing else tells of such a pod."""
    scene = QuotaCluster({"a": "8"})
    scene.quotas(
        make_quota("root", {"cpu": "8"}, {"cpu": "8"}, is_parent="true"),
        make_quota("q1", {}, {"cpu": "8"}, parent="root"),
        make_quota("q2", {}, {"cpu": "8"}, parent="root"),
    )
    asking = of_quota("asking", "q2", cpu="8")
    scene.seen(asking)
    waiting = of_quota("waiting", "q1", cpu="6")
    assert "runtime: cpu:4" in scene.refusal(waiting) or "runtime: cpu:3" in scene.refusal(waiting)
    scene.handle.counter.told.clear()
    scene.gone(asking)
    assert [told.event for told in scene.handle.counter.told] == [_QUOTA]
    assert scene.hopes(waiting, ObjectEvent(_QUOTA))


def test_taints_wake_nobody_blindly() -> None:
    scene = QuotaCluster({"a": "8"})
    profile = SchedulerProfile("test", {Plugin.admit: [scene.quota]})
    for part in ("taints", "unschedulable"):
        (listener,) = QueueingHints([profile]).listeners(ClusterEvent("Node", UPDATE, part))
        scene.quotas(make_quota("q", {}, {"cpu": "1"}))
        assert not listener.may_help(scene.seen(of_quota("p", "q", cpu="2")), ObjectEvent(_NODE))


def asleep(scene: QuotaCluster, queue: SchedulingQueue, pod: Pod) -> None:
    info = scene.seen(pod)
    queue.add(info, 0.0)
    popped = queue.pop(0.0)
    assert popped is not None
    queue.attempt_failed(popped, 0.0, rejected=frozenset(("ElasticQuota",)))


def test_one_question_is_asked_for_all_equal_pods_of_a_quota() -> None:
    scene = QuotaCluster({"a": "8"})
    scene.quotas(make_quota("q", {}, {"cpu": "4"}), make_quota("other", {}, {"cpu": "1"}))
    blocker = running("blocker", "a", cpu="4", labels=of_quota("x", "q").metadata.labels)
    scene.seen(blocker)
    profile = SchedulerProfile("", {Plugin.sort_key: [PrioritySort()], Plugin.admit: [scene.quota]})
    queue = SchedulingQueue([profile])
    for n in range(5):
        asleep(scene, queue, of_quota(f"p{n}", "q", cpu="1"))
    asleep(scene, queue, of_quota("stays", "other", cpu="2"))
    gone = scene.state.placed_pod(blocker.metadata.uid)
    scene.gone(blocker)
    assert queue.on_event(ObjectEvent(_GONE, old=gone), 100.0) == 5
