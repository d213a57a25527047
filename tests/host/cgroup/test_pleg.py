"""Pod lifecycle events come from cgroup directories, also for pods from before the start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.qos_class import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.pleg import PodLifecycleEvent, PodLifecycleEventGenerator, PodLifecycleEventType
from tests.host.fake_machine import FakeMachine

PODS = [(GUARANTEED, "a"), (BURSTABLE, "b"), (BEST_EFFORT, "c")]


@pytest.fixture(params=["cgroupfs", "systemd"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path, 2, CgroupLayout(request.param))


@pytest.fixture
def lifecycle(machine: FakeMachine) -> Iterator[PodLifecycleEventGenerator]:
    found = PodLifecycleEventGenerator.open(machine.tree)
    assert isinstance(found, PodLifecycleEventGenerator), found
    yield found
    found.close()


def _short(events: list[PodLifecycleEvent]) -> list[tuple[str, str, str]]:
    return [(event.kind.value, event.pod, event.container) for event in events]


def test_pods_from_before_the_start(machine: FakeMachine, lifecycle: PodLifecycleEventGenerator) -> None:
    for qos, uid in PODS:
        machine.pod(qos, uid, f"containerd://{uid}1")
    events = _short(lifecycle.scan())
    assert sorted(events) == sorted(
        event for _, uid in PODS for event in [("podAdded", uid, ""), ("containerAdded", uid, f"{uid}1")]
    )
    assert lifecycle.scan() == []


def test_pods_and_containers_that_come_and_go(machine: FakeMachine, lifecycle: PodLifecycleEventGenerator) -> None:
    assert lifecycle.scan() == []
    pod = machine.pod(BURSTABLE, "b")
    assert _short(lifecycle.poll()) == [("podAdded", "b", "")]
    machine.pod(BURSTABLE, "b", "containerd://one")
    assert _short(lifecycle.poll()) == [("containerAdded", "b", "one")]
    machine.remove(pod)
    assert _short(lifecycle.poll()) == [("containerDeleted", "b", "one"), ("podDeleted", "b", "")]
    machine.make("kubepods/other" if machine.layout.driver == "cgroupfs" else "kubepods.slice/other.slice")
    assert lifecycle.poll() == []


def test_a_container_made_before_its_pod_was_watched_is_found(
    machine: FakeMachine, lifecycle: PodLifecycleEventGenerator
) -> None:
    lifecycle.scan()
    machine.pod(GUARANTEED, "a", "containerd://one")
    assert sorted(_short(lifecycle.poll())) == [("containerAdded", "a", "one"), ("podAdded", "a", "")]


def test_tiers_that_the_kubelet_makes_later(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, 2)
    top = machine.layout.qos_dir(BURSTABLE)
    machine.remove(top)
    found = PodLifecycleEventGenerator.open(machine.tree)
    assert isinstance(found, PodLifecycleEventGenerator)
    try:
        found.scan()
        machine.pod(BURSTABLE, "b")
        assert _short(found.poll()) == [("podAdded", "b", "")]
    finally:
        found.close()


@given(
    steps=st.lists(st.tuples(st.sampled_from(["pod", "box", "drop", "poll", "scan"]), st.integers(0, 2)), max_size=20)
)
@settings(max_examples=40, deadline=None)
def test_the_picture_is_that_of_the_tree_whenever_it_is_looked_at(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    machine = FakeMachine(tmp_path_factory.mktemp("tree"), 2)
    found = PodLifecycleEventGenerator.open(machine.tree)
    assert isinstance(found, PodLifecycleEventGenerator)
    events = found.scan()
    there: set[str] = set()
    try:
        for action, number in steps:
            qos, uid = PODS[number]
            if action == "pod":
                there.add(machine.pod(qos, uid))
            elif action == "box":
                pod = machine.pod(qos, uid, f"containerd://{uid}1")
                there |= {pod, f"{pod}/{uid}1"}
            elif action == "drop":
                pod = machine.layout.pod_dir(qos, uid)
                machine.remove(pod)
                there -= {pod, f"{pod}/{uid}1"}
            else:
                events += found.poll() if action == "poll" else found.scan()
        events += found.poll()
    finally:
        found.close()
    seen: set[str] = set()
    for event in events:
        if event.kind in (PodLifecycleEventType.POD_ADDED, PodLifecycleEventType.CONTAINER_ADDED):
            assert event.group not in seen
            seen.add(event.group)
        else:
            assert event.group in seen
            seen.remove(event.group)
    assert seen == there
