"""A memory stream beside a service in this machine's own cgroups: koordlet's loop finds it, names it and throttles it.

Without hardware counters, as in most virtual machines, the service is judged by its stalls, so the two share a CPU.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koord.api.koordinator.protocol import BE, BEST_EFFORT, BURSTABLE, L_QOS_CLASS, LS
from koord.api.koordinator.slo import Extensions, NodeSLOSpec
from koord.host import perf
from koord.host.cgroup.detection import cgroup_version
from koord.host.cgroup.knob import CPU_PRESSURE, CPU_QUOTA
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.filesystem import Host
from koord.koordlet.agent_status import InterferenceStatus
from koord.koordlet.collect.collector import CollectSettings
from koord.koordlet.control_loop import ControlLoop
from koord.koordlet.inputs.effective_slo import effective_slo
from koord.koordlet.inputs.node_inputs import NodeInputs, NodeProperties
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.metrics import KoordletMetrics
from koord.koordlet.series.metric_kind import retention_s
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.settings import KoordletSettings
from koord.koordlet.strategies.interference_view import GATE
from koord.koordlet.strategies.strategy import run_steps
from koord.telemetry.clock import WallClock
from tools.controlplane import patience_s

pytestmark = [pytest.mark.real, pytest.mark.machine]

TREES = ("cpu", "cpuacct", "cpuset", "memory", "unified")  # of cgroup v1
PREFIX = f"koord-interference-{os.getpid()}"
LAYOUT = CgroupLayout("cgroupfs", (PREFIX,))
SERVICE = """
import os, time
os.sched_setaffinity(0, {cpu})
table = list(range(200_000))
while True:
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        sum(table[::17])
    time.sleep(0.02)
"""
STREAM = """
import os
os.sched_setaffinity(0, {cpu})
here, there = bytearray(64 << 20), bytearray(64 << 20)
while True:
    there[:] = here
"""
SLO = NodeSLOSpec(
    extensions=Extensions(object={"interference": {"action": "throttle", "sampleSeconds": 1, "throttleSeconds": 60}})
)


def _pod(name: str, qos: str, kube_qos: str) -> PodMeta:
    group = LAYOUT.pod_dir(kube_qos, name)
    box = ContainerMeta(name="main", id=f"containerd://{name}", group=f"{group}/{name}", running=True)
    return PodMeta(uid=name, name=name, group=group, kube_qos=kube_qos, labels={L_QOS_CLASS: qos}, containers=(box,))


WEB, JOB = _pod("web", LS, BURSTABLE), _pod("job", BE, BEST_EFFORT)


class RealNode:
    """Two pods as groups of the kernel, and koordlet's loop over them."""

    def __init__(self, tree: CgroupTree, roots: list[Path], state: Path) -> None:
        self._roots = roots
        self._processes: list[subprocess.Popen[bytes]] = []
        collect = CollectSettings(psi=True, psi_s=1.0, cpi=True, cpi_s=1.0, cpi_window_s=0.5)
        settings = KoordletSettings(node="n", gates=frozenset({GATE}), state_dir=str(state), collect=collect)
        clock = WallClock()
        store = SeriesStore(retention_s(), interval_s=1.0)
        self.loop = ControlLoop(tree, store, clock, settings, KoordletMetrics("n"), None)
        self._inputs = NodeInputs(node=NodeProperties(name="n"), slo=effective_slo(SLO), pods=(WEB, JOB))

    def start(self, pod: PodMeta, program: str, cpu: int) -> None:
        """Start a program in the pod's container: it waits for its input to be closed until it is in its groups."""
        code = f"import sys; sys.stdin.read()\n{program.format(cpu={cpu})}"
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        self._processes.append(process)
        for root in self._roots:
            (root / pod.containers[0].group / "cgroup.procs").write_text(str(process.pid))
        assert process.stdin is not None
        process.stdin.close()

    def until(self, condition: Callable[[InterferenceStatus], object], what: str) -> InterferenceStatus:
        """Run the loop once a second, as koordlet does, until the condition holds."""
        for _ in range(int(patience_s(45))):
            run_steps(self.loop.tick_steps(self._inputs))
            status = self.status()
            if condition(status):
                return status
            time.sleep(1)
        pytest.fail(f"{what}: {self.status()}")

    def status(self, pod: str = "") -> InterferenceStatus:
        return self.loop.interference_status((WEB, JOB), "default" if pod else "", pod)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self.loop.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RealNode]:
    host = Host.local()
    version = cgroup_version(host)
    tree = CgroupTree(host, version, LAYOUT)
    roots = [Path(tree.group_path(name, "")) for name in (TREES if version == 1 else ("",))]
    closed = [str(root) for root in roots if not os.access(root, os.W_OK)]
    if closed:
        pytest.skip(f"cgroup v{version} is not writable here: {', '.join(closed)}")
    qos = [LAYOUT.qos_dir(BURSTABLE), LAYOUT.qos_dir(BEST_EFFORT)]
    groups = [PREFIX, LAYOUT.kubepods, *qos, *(group for pod in (WEB, JOB) for group in (pod.group, _box(pod)))]
    made: list[Path] = []
    running: RealNode | None = None
    try:
        for root in dict.fromkeys(root.resolve() for root in roots):
            for group in groups:
                (root / group).mkdir()
                made.append(root / group)
                for name in ("cpuset.cpus", "cpuset.mems"):
                    if version == 1 and (root / group / name).exists():
                        (root / group / name).write_text((root / group / ".." / name).resolve().read_text())
                if version == 2 and group not in (_box(WEB), _box(JOB)):
                    (root / group / "cgroup.subtree_control").write_text("+cpu +cpuset +memory")
        # The groups outweigh all else on the machine, and the batch pod outweighs the service.
        for group, shares in ((PREFIX, 200_000), (qos[1], 50_000)):
            name, value = ("cpu.shares", shares) if version == 1 else ("cpu.weight", 10_000)
            (roots[0] / group / name).write_text(str(value))
        if not tree.is_supported(CPU_PRESSURE):
            pytest.skip("this kernel tells no pressure of groups")
        running = RealNode(tree, roots, tmp_path)
        yield running
    finally:
        if running is not None:
            running.stop()
        for folder in reversed(made):
            with contextlib.suppress(FileNotFoundError):
                _remove(folder)


def _box(pod: PodMeta) -> str:
    return pod.containers[0].group


def _remove(folder: Path) -> None:
    """Remove a group once the kernel has let go of its last process."""
    for _ in range(50):
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.1)
    folder.rmdir()


def test_a_stream_beside_a_service_is_named_throttled_and_let_go(node: RealNode) -> None:
    cpu = min(os.sched_getaffinity(0))
    node.start(WEB, SERVICE, cpu)
    known = node.until(lambda status: status.watched == 1, "the service has a baseline")
    counters = perf.available()
    assert ("cpi" in known.metrics) == (counters is None)
    assert (counters is None) == ("no samples of cycles" not in known.why)
    for _ in range(4):
        node.start(JOB, STREAM, cpu)
    found = node.until(lambda status: status.throttled, "the stream is throttled")
    (incident, *_) = found.incidents
    assert (incident.full_name, incident.culprit) == ("default/web", "default/job")
    (throttled,) = found.throttled
    held = node.loop.tree.value(CPU_QUOTA, _box(JOB))
    assert held == str(throttled.milli * 100)
    assert node.status("job").incidents == found.incidents
    node.loop.executor.restore()
    assert node.loop.tree.value(CPU_QUOTA, _box(JOB)) == "-1"


def test_cycles_are_the_evidence_where_they_can_be_counted(node: RealNode) -> None:
    refused = perf.available()
    if refused is not None:
        pytest.skip(f"this machine counts no cycles: {refused}")
    first, *others = sorted(os.sched_getaffinity(0))
    node.start(WEB, SERVICE, first)
    node.until(
        lambda status: status.metrics == ("cpi",) and status.watched == 1, "the service has a baseline of cycles"
    )
    for cpu in others:
        node.start(JOB, STREAM, cpu)
    (baseline,) = node.status("web").baselines
    assert baseline.metric == "cpi"
    assert 0.1 < baseline.mean < 100
