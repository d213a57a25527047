"""Groups of pods in the kernel's own cgroups, with a kubelet's weights but no kubelet, in a subtree of their own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from koord.api.koordinator.qos_class import BEST_EFFORT, BURSTABLE
from koord.host.cgroup import usage
from koord.host.cgroup.detection import cgroup_version
from koord.host.cgroup.layout import CGROUPFS, CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.filesystem import Host
from koord.host.io_error import IoError

CPUS = os.cpu_count() or 1
LAYOUT = CgroupLayout(CGROUPFS, (f"koord-colocation-{os.getpid()}",))
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "blkio")
MOST_SHARES = 262_144  # for all of them together, so that other work on this machine counts little


class Pod:
    """A pod of one container, as far as the kernel knows it."""

    def __init__(self, name: str, kube_qos: str, milli: int) -> None:
        self.name = name
        self.kube_qos = kube_qos
        self.milli = milli
        self.uid = f"0000-{name}"  # as in the names of its groups
        self.group = LAYOUT.pod_dir(kube_qos, self.uid)
        self.container = f"{self.group}/{name}"


class Ground:
    """The groups, with the weights that a kubelet gives them."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._pods = pods
        host = Host.local()
        self.tree = CgroupTree(host, cgroup_version(host), LAYOUT)
        self._made: list[Path] = []

    @contextlib.contextmanager
    def laid(self) -> Iterator[None]:
        try:
            self._make(LAYOUT.prefix[0])
            for group in (LAYOUT.kubepods, LAYOUT.qos_dir(BURSTABLE), LAYOUT.qos_dir(BEST_EFFORT)):
                self._make(group)
            for pod in self._pods:
                self._make(pod.group)
                self._make(pod.container)
            self.weigh()
            yield
        finally:
            for folder in reversed(self._made):
                folder.rmdir()

    def weigh(self) -> None:
        asked = sum(pod.milli for pod in self._pods)
        shares = {LAYOUT.prefix[0]: MOST_SHARES, LAYOUT.kubepods: 1024 * CPUS}
        shares[LAYOUT.qos_dir(BURSTABLE)] = asked * 1024 // 1000
        shares[LAYOUT.qos_dir(BEST_EFFORT)] = 2
        for pod in self._pods:
            shares[pod.group] = shares[pod.container] = max(2, pod.milli * 1024 // 1000)
        for group, value in shares.items():
            folder = Path(self.tree.group_path("cpu", group))
            if self.tree.version == 1:
                (folder / "cpu.shares").write_text(str(value))
            else:  # as runc turns one into the other
                (folder / "cpu.weight").write_text(str(1 + (value - 2) * 9999 // 262142))

    def join(self, pid: int, group: str) -> None:
        for root in self._roots():
            (Path(self.tree.group_path(root, group)) / "cgroup.procs").write_text(str(pid))

    def cpu_s(self, group: str) -> float:
        found = usage.cpu_usage_ns(self.tree, group)
        if isinstance(found, IoError):
            raise RuntimeError(str(found))
        return found / 1e9

    def _roots(self) -> Sequence[str]:
        return CONTROLLERS if self.tree.version == 1 else ("",)

    def _make(self, group: str) -> None:
        for root in self._roots():
            folder = Path(self.tree.group_path(root, group))
            if folder.exists():
                continue  # two controllers that are mounted together
            if self.tree.version == 2:
                (folder.parent / "cgroup.subtree_control").write_text("+cpu +cpuset +memory")
            folder.mkdir()
            self._made.append(folder)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if self.tree.version == 1 and (folder / name).exists():
                    (folder / name).write_text((folder.parent / name).read_text())
