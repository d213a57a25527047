"""The node agent's collectors on this machine's own cgroups, in a subtree of their own that is removed again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE
from koord.host.cgroup.detection import cgroup_version
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.cgroup.usage import FdBudget
from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.koordlet.collect.collector_set import CollectorSet
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.telemetry.clock import WallClock

pytestmark = [pytest.mark.real, pytest.mark.machine]

PREFIX = f"koord-collect-{os.getpid()}"
LAYOUT = CgroupLayout("cgroupfs", (PREFIX,))
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")
BUSY = "import time\nwhile True: pass"
HOLDS = "held = bytearray(64 << 20)\nimport sys, time\nprint('held', flush=True)\ntime.sleep(60)"


class Node:
    def __init__(self, tree: CgroupTree) -> None:
        self.tree = tree
        self.roots = (
            [tree.group_path(name, "") for name in CONTROLLERS] if tree.version == 1 else [tree.group_path("", "")]
        )
        self.made: list[str] = []
        self.running: list[subprocess.Popen[str]] = []
        for group in (PREFIX, LAYOUT.kubepods, LAYOUT.qos_dir(BURSTABLE), LAYOUT.qos_dir(BEST_EFFORT)):
            self.make(group)

    def make(self, group: str) -> None:
        for root in self.roots:
            folder = Path(root) / group
            folder.mkdir(exist_ok=True)
            self.made.append(str(folder))
            if self.tree.version == 2:
                (folder / "cgroup.subtree_control").write_text("+cpu +cpuset +memory")
            for name in ("cpuset.cpus", "cpuset.mems"):
                if self.tree.version == 1 and (folder / name).exists():
                    (folder / name).write_text((folder.parent / name).read_text())

    def pod(self, uid: str, qos: str = BURSTABLE) -> PodMeta:
        group = LAYOUT.pod_dir(qos, uid)
        box = LAYOUT.container_dir(group, f"containerd://{uid}-box") or ""
        self.make(group)
        self.make(box)
        view = ContainerMeta(name="box", id=f"containerd://{uid}-box", group=box, running=True)
        return PodMeta(uid=uid, name=uid, group=group, kube_qos=qos, containers=(view,))

    def start(self, group: str, program: str) -> subprocess.Popen[str]:
        """A process that is in the group before it does anything."""
        child = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.stdin.readline()\n{program}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.running.append(child)
        for root in self.roots:
            (Path(root) / group / "cgroup.procs").write_text(str(child.pid))
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        return child

    def clean(self) -> None:
        for child in self.running:
            child.kill()
            child.communicate()
        for folder in reversed(self.made):
            for _ in range(100):  # a killed process leaves its group a moment later
                try:
                    Path(folder).rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.02)


@pytest.fixture
def node() -> Iterator[Node]:
    host = Host.local()
    version = cgroup_version(host)
    tree = CgroupTree(host, version, LAYOUT)
    roots = [tree.group_path(name, "") for name in CONTROLLERS] if version == 1 else [tree.group_path("", "")]
    closed = [root for root in roots if not os.access(root, os.W_OK)]
    if closed:
        pytest.skip(f"cgroup v{version} is not writable here: {', '.join(closed)}")
    if version == 2:
        text = tree.host.read(f"{tree.group_path('', '')}/cgroup.subtree_control")
        if isinstance(text, IoError) or not {"cpu", "cpuset", "memory"} <= set(text.split()):
            pytest.skip("the root of cgroup v2 does not hand down cpu, cpuset and memory")
    made = Node(tree)
    try:
        yield made
    finally:
        made.clean()


def collect(node: Node, pods: tuple[PodMeta, ...], seconds: float) -> SeriesStore:
    """Two looks, so far apart."""
    store, clock = SeriesStore(metric_kind.retention_s()), WallClock()
    collection = CollectorSet(node.tree, store, clock)
    collection.sample(clock.time(), pods)
    time.sleep(seconds)
    collection.sample(clock.time(), pods)
    collection.close()
    return store


def test_a_busy_pod_uses_about_what_its_process_does(node: Node) -> None:
    pod, idle = node.pod("busy"), node.pod("idle")
    child = node.start(pod.containers[0].group, BUSY)
    store = collect(node, (pod, idle), 1.0)
    used = store.window((metric_kind.POD_CPU, "busy"), time.time(), 60).last
    inside = store.window((metric_kind.CONTAINER_CPU, pod.containers[0].id), time.time(), 60).last
    assert child.poll() is None
    assert used is not None
    assert inside is not None
    assert 0.05 < used <= 1.2, "one thread, on a machine that others use too"
    assert inside == pytest.approx(used, rel=0.5)
    assert store.window((metric_kind.POD_CPU, "idle"), time.time(), 60).last == 0
    node_used = store.window((metric_kind.NODE_CPU,), time.time(), 60).last
    assert node_used is not None
    assert node_used >= 0.5 * used


def test_held_memory_is_seen(node: Node) -> None:
    pod = node.pod("holder")
    child = node.start(pod.containers[0].group, HOLDS)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    store = collect(node, (pod,), 0.2)
    held = store.window((metric_kind.POD_MEMORY, "holder"), time.time(), 60).last
    assert held is not None
    assert 60 << 20 < held < 200 << 20


def test_best_effort_use_is_that_of_its_group(node: Node) -> None:
    pod = node.pod("batch", BEST_EFFORT)
    node.start(pod.containers[0].group, BUSY)
    store = collect(node, (pod,), 0.6)
    used = store.window((metric_kind.NODE_BE, metric_kind.BE_USAGE), time.time(), 60).last
    limit = store.window((metric_kind.NODE_BE, metric_kind.BE_REAL_LIMIT), time.time(), 60).last
    assert used is not None
    assert 50 < used <= 1200
    assert limit is not None
    assert limit >= 1000


def test_a_group_that_is_removed_and_made_again_between_looks(node: Node) -> None:
    pod = node.pod("again")
    store, clock = SeriesStore(metric_kind.retention_s()), WallClock()
    collection = CollectorSet(node.tree, store, clock, budget=FdBudget(1000))
    for _ in range(2):
        collection.sample(clock.time(), (pod,))
        time.sleep(0.05)
    groups = (pod.containers[0].group, pod.group)
    for group in groups:
        for root in node.roots:
            (Path(root) / group).rmdir()
    collection.sample(clock.time(), (pod,))
    assert not collection.statuses["pods"].problem, "a pod that is gone is no trouble"
    for group in reversed(groups):
        node.make(group)
    before = store.window((metric_kind.POD_CPU, "again"), time.time(), 60).count
    for _ in range(3):
        time.sleep(0.05)
        collection.sample(clock.time(), (pod,))
    assert store.window((metric_kind.POD_CPU, "again"), time.time(), 60).count > before, "its new files are read"
    collection.close()


def test_groups_that_come_and_go_all_the_time(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Another thread removes and makes groups again while they are read: at any step, a file may answer ENODEV."""
    pods = tuple(node.pod(f"churn-{number}") for number in range(6))
    stop = threading.Event()
    rounds = 0

    def churn() -> None:
        nonlocal rounds
        while not stop.is_set():
            for pod in pods[1:]:
                groups = (pod.containers[0].group, pod.group)
                for group in groups:
                    for root in node.roots:
                        (Path(root) / group).rmdir()
                for group in reversed(groups):
                    for root in node.roots:
                        (Path(root) / group).mkdir()
            rounds += 1

    store, clock = SeriesStore(metric_kind.retention_s()), WallClock()
    collection = CollectorSet(node.tree, store, clock, budget=FdBudget(1000))
    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(150):
            collection.sample(clock.time(), pods)
            time.sleep(0.002)
    finally:
        stop.set()
        thread.join()
        collection.close()
    assert rounds > 3
    assert not [line for line in caplog.messages if "pods" in line or "throttled" in line]
    assert store.window((metric_kind.POD_CPU, "churn-0"), time.time(), 60).count > 100, "the one that stays is measured"
    for pod in pods:
        used = store.window((metric_kind.POD_CPU, pod.uid), time.time(), 60)
        assert used.last is None or 0 <= used.last <= collection.info.cpus
