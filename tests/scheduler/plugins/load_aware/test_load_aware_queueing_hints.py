"""What wakes a pod that LoadAwareScheduling refused: only what turns the refusal."""

from __future__ import annotations

from typing import Any

import pytest

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from koord.scheduler.plugins.queueing_and_binding import PrioritySort
from koord.scheduler.queue.backoff import QueueSettings
from koord.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.builders import make_pod
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.load_aware.load_cluster import NOW, LoadCluster, big_node, pod_on, refusal, report

COOL, WARM, HOT = report(cpu="10"), report(cpu="20"), report(cpu="70")
PLACED = pod_on("big", "n0", cpu="40")  # estimated at 34 cores


def reported(world: LoadCluster, old: Any, new: Any) -> ObjectEvent:
    if new is None:
        world.reports.drop(old.metadata.name)
    else:
        world.put(new)
    action = ADD if old is None else DELETE if new is None else UPDATE
    return ObjectEvent(ClusterEvent("NodeMetric", action), old, new)


@pytest.mark.parametrize(
    ("old", "new", "helps"),
    [
        pytest.param(HOT, COOL, True, id="falls-below-the-ceiling"),
        pytest.param(HOT, report(cpu="71"), False, id="stays-above"),
        pytest.param(COOL, WARM, False, id="was-below-before"),
        pytest.param(COOL, HOT, False, id="rises-above"),
        pytest.param(HOT, None, True, id="deleted-while-above"),
        pytest.param(COOL, None, False, id="deleted-while-below"),
        pytest.param(None, COOL, False, id="the-first-report-of-a-node-that-refused-nobody"),
        pytest.param(report(cpu="10", age=999), COOL, True, id="fresh-again"),
        pytest.param(report(cpu="10", age=999), HOT, False, id="fresh-again-and-above"),
    ],
)
def test_reports(old: Any, new: Any, helps: bool) -> None:
    world = LoadCluster(big_node(), *([old] if old is not None else []))
    plugin = world.plugin()
    pod = world.info(name="waiting")
    before = refusal(plugin, world, pod)
    object_event = reported(world, old, new)
    assert plugin.queueing_hint(pod, object_event) is helps
    assert helps == (before is not None and refusal(plugin, world, pod) is None)


def test_a_report_of_an_unknown_node_helps_nobody() -> None:
    world = LoadCluster(big_node())
    plugin = world.plugin()
    gone = report("gone", cpu="10")
    assert not plugin.queueing_hint(world.info(), reported(world, None, gone))


@pytest.mark.parametrize(
    ("used", "helps"),
    [
        pytest.param("40", True, id="its-estimate-was-too-much"),
        pytest.param("70", False, id="the-node-is-above-without-it"),
        pytest.param("1", False, id="the-node-was-below-with-it"),
    ],
)
def test_pods_that_leave(used: str, helps: bool) -> None:
    world = LoadCluster(big_node(), report(cpu=used), PLACED)
    plugin = world.plugin()
    old = world.state.placed_pod(PLACED.metadata.uid)
    world.state.drop_pod(PLACED.metadata.uid)
    assert plugin.queueing_hint(world.info(name="waiting"), ObjectEvent(ClusterEvent("Pod", DELETE), old=old)) is helps


def test_a_pod_that_shrinks() -> None:
    world = LoadCluster(big_node(), report(cpu="40"), PLACED)
    plugin = world.plugin()
    old = world.state.placed_pod(PLACED.metadata.uid)
    world.put(pod_on("big", "n0", cpu="4"))
    new = world.state.placed_pod(PLACED.metadata.uid)
    event = ClusterEvent("Pod", UPDATE, "scale-down")
    assert plugin.queueing_hint(world.info(name="waiting"), ObjectEvent(event, old, new))
    assert not plugin.queueing_hint(world.info(name="waiting"), ObjectEvent(event, new, new))


@pytest.mark.parametrize(
    ("old", "new", "helps"),
    [
        pytest.param(None, big_node("n1"), True, id="a-new-node"),
        pytest.param(big_node(), big_node(cpu="128"), True, id="larger"),
        pytest.param(big_node(), big_node(cpu="97"), False, id="not-larger-enough"),
        pytest.param(
            big_node(), big_node(thresholds={"usageThresholds": {"cpu": 90}}), True, id="with-a-higher-ceiling"
        ),
        pytest.param(
            big_node(thresholds={"usageThresholds": {"cpu": 90}}),
            big_node(thresholds={"usageThresholds": {"cpu": 95}}),
            False,
            id="with-a-ceiling-that-was-high-enough",
        ),
    ],
)
def test_nodes(old: Any, new: Any, helps: bool) -> None:
    world = LoadCluster(*([old] if old is not None else []), HOT)
    plugin = world.plugin()
    world.put(new)
    event = ClusterEvent("Node", ADD) if old is None else ClusterEvent("Node", UPDATE, "annotations")
    assert plugin.queueing_hint(world.info(name="waiting"), ObjectEvent(event, old, new)) is helps


def test_the_pod_itself_asks_for_less() -> None:
    world = LoadCluster(big_node(), report(cpu="60"))
    plugin = world.plugin()
    before, after = world.info(cpu="20"), world.info(cpu="1")
    event = ClusterEvent("Pod", UPDATE, "scale-down")
    assert plugin.queueing_hint(before, ObjectEvent(event, before, after))
    assert not plugin.queueing_hint(before, ObjectEvent(ClusterEvent("Pod", UPDATE, "labels"), before, before))


def test_a_waiting_pod_wakes_when_load_falls() -> None:
    """The whole way through the queue, the report being in the ledger before the queue hears of it."""
    world = LoadCluster(big_node(), HOT)
    plugin = world.plugin()
    queue = SchedulingQueue((profile_of([PrioritySort(), plugin]),), QueueSettings())
    pod = _waiting(world)
    queue.add(pod, NOW)
    queued = queue.pop(NOW)
    assert queued is not None
    assert refusal(plugin, world, pod) is not None
    queue.attempt_failed(
        queued, NOW, rejected=frozenset({LoadAwareScheduling.name}), pending=frozenset(), message="hot"
    )
    assert not queue.on_event(reported(world, HOT, report(cpu="71")), NOW + 100)
    assert queue.on_event(reported(world, report(cpu="71"), COOL), NOW + 100)
    assert queue.pop(NOW + 100) is not None


def _waiting(world: LoadCluster) -> PodInfo:
    pod: Pod = make_pod("waiting", schedulerName="test")
    return world.state.pod_info(pod)
