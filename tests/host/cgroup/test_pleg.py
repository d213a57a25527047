"""Pod lifecycle events come from cgroup directories, also for pods from before the start."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.pleg import PodLifecycleEvent, PodLifecycleEventGenerator, PodLifecycleEventType
from koord.host.inotify import InotifyWatcher
from koord.host.io_error import OPEN, IoError
from tests.host.fake_machine import FakeMachine

ROOT = Path(__file__).resolve().parents[3]
PODS = [(GUARANTEED, "a"), (BURSTABLE, "b"), (BEST_EFFORT, "c")]


@pytest.fixture(params=["cgroupfs", "systemd"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path, 2, CgroupLayout(request.param))


@pytest.fixture
def lifecycle(machine: FakeMachine) -> Iterator[PodLifecycleEventGenerator]:
    found = PodLifecycleEventGenerator(machine.tree)
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
    found = PodLifecycleEventGenerator(machine.tree)
    try:
        found.scan()
        machine.pod(BURSTABLE, "b")
        assert _short(found.poll()) == [("podAdded", "b", "")]
    finally:
        found.close()


def _refused(found: PodLifecycleEventGenerator) -> int | None:
    return None if found.unwatched is None else found.unwatched.errno


class FewWatches(InotifyWatcher):
    """A watcher of a user who has as many watches left as `room` says; it refuses more as the kernel does."""

    room = 0

    def watch(self, folder: str) -> IoError | None:
        if folder not in self.folders and len(self.folders) >= self.room:
            return IoError(folder, OPEN, errno.ENOSPC)
        return super().watch(folder)


def _few_watches(room: int) -> FewWatches:
    opened = InotifyWatcher.open()
    assert isinstance(opened, InotifyWatcher), opened
    few = FewWatches(opened.fileno())
    few.room = room
    return few


@pytest.mark.parametrize("room", [0, 1, 3, 4])
def test_scans_find_what_cannot_be_watched(machine: FakeMachine, room: int) -> None:
    found = PodLifecycleEventGenerator(machine.tree, lambda: _few_watches(room))
    try:
        assert found.scan() == []
        assert (_refused(found) is None) == (room >= 3), "the three groups of QoS classes"
        for qos, uid in PODS:
            machine.pod(qos, uid, f"containerd://{uid}1")
        events = _short([*found.poll(), *found.scan()])
        assert _refused(found) == errno.ENOSPC
        both = [("podAdded", ""), ("containerAdded", "1")]
        assert sorted(events) == sorted((kind, uid, uid * bool(one) + one) for _, uid in PODS for kind, one in both)
        machine.remove(machine.layout.pod_dir(BURSTABLE, "b"))
        assert _short([*found.poll(), *found.scan()]) == [("containerDeleted", "b", "b1"), ("podDeleted", "b", "")]
    finally:
        found.close()


def test_without_an_instance_scans_do_it_until_there_is_one(machine: FakeMachine) -> None:
    answers: list[InotifyWatcher | IoError] = [IoError("inotify", OPEN, errno.EMFILE) for _ in range(3)]

    def open_watcher() -> InotifyWatcher | IoError:
        return answers.pop() if answers else InotifyWatcher.open()

    found = PodLifecycleEventGenerator(machine.tree, open_watcher)
    try:
        assert found.scan() == []
        assert found.fileno() is None
        machine.pod(BURSTABLE, "b")
        assert _short(found.poll()) == [("podAdded", "b", "")]
        assert _refused(found) == errno.EMFILE
        machine.remove(machine.layout.pod_dir(BURSTABLE, "b"))
        assert _short(found.scan()) == [("podDeleted", "b", "")]
        assert found.scan() == []
        assert _refused(found) is None
        assert found.fileno() is not None
        machine.pod(BURSTABLE, "c")
        assert _short(found.poll()) == [("podAdded", "c", "")]
    finally:
        found.close()


def test_the_kernels_own_limits_are_met(tmp_path: Path) -> None:
    """A user namespace has limits of its own, so that nobody else meets them."""
    machine = FakeMachine(tmp_path, 2, only=frozenset({"cpu.stat"}))
    machine.pod(BURSTABLE, "b")
    program = (
        "import errno\n"
        "from pathlib import Path\n"
        "from koord.host.cgroup.pleg import PodLifecycleEventGenerator\n"
        "from tests.host.fake_machine import FakeMachine\n"
        f"tree = FakeMachine(Path({str(tmp_path)!r}), 2, only=frozenset(('cpu.stat',))).tree\n"
        "for limit in ('instances', 'watches'):\n"
        "    Path(f'/proc/sys/user/max_inotify_{limit}').write_text('0')\n"
        "    found = PodLifecycleEventGenerator(tree)\n"
        "    print(limit, len(found.scan()), errno.errorcode[found.unwatched.errno])\n"
        "    found.close()\n"
        "    Path(f'/proc/sys/user/max_inotify_{limit}').write_text('100')\n"
    )
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if "unshare failed" in done.stderr:
        pytest.skip(f"no user namespace on this machine: {done.stderr.strip()}")
    assert done.stdout.splitlines() == ["instances 1 EMFILE", "watches 1 ENOSPC"], done.stderr


@given(
    steps=st.lists(st.tuples(st.sampled_from(["pod", "box", "drop", "poll", "scan"]), st.integers(0, 2)), max_size=20)
)
@settings(max_examples=40, deadline=None)
def test_the_picture_is_that_of_the_tree_whenever_it_is_looked_at(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    machine = FakeMachine(tmp_path_factory.mktemp("tree"), 2)
    found = PodLifecycleEventGenerator(machine.tree)
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
