"""Groups of pods in the kernel's own cgroups, with a kubelet's weights but no kubelet, in a subtree of their own.

The top of the subtree stands for the machine: a limit of its memory makes the kernel reclaim and kill inside of it, and
nowhere else. Whatever ends the block, processes that are left in the groups are killed and the groups removed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE
from koord.host.cgroup import usage
from koord.host.cgroup.detection import cgroup_version
from koord.host.cgroup.layout import CGROUPFS, CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.filesystem import Host
from koord.host.io_error import IoError

CPUS = os.cpu_count() or 1
_NAME = "koord-colocation-"
LAYOUT = CgroupLayout(CGROUPFS, (f"{_NAME}{os.getpid()}",))
MACHINE = LAYOUT.prefix[0]
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "blkio")
V2_CONTROLLERS = ("cpu", "cpuset", "memory", "io")
MOST_SHARES = 262_144  # for all of them together, so that other work on this machine counts little
REMOVE_S = 10.0  # that killed processes have to leave their groups


class Pod:
    """A pod of one container, as far as the kernel knows it."""

    def __init__(self, name: str, kube_qos: str, milli: int = 0, uid: str = "") -> None:
        self.name = name
        self.kube_qos = kube_qos
        self.milli = milli
        self.uid = uid or f"0000-{name}"  # as in the names of its groups
        self.group = LAYOUT.pod_dir(kube_qos, self.uid)
        self.container = f"{self.group}/{name}"


def tell(process: subprocess.Popen[str]) -> None:
    """Let a process go on that waits for a line."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"{process.args!r} did not start")


class Ground:
    """The groups, with the weights that a kubelet gives them."""

    def __init__(self, pods: Sequence[Pod], memory_bytes: int = 0) -> None:
        """`memory_bytes` is all the memory that the pods have together; 0 is no limit."""
        self._pods = pods
        self._memory_bytes = memory_bytes
        host = Host.local()
        self.tree = CgroupTree(host, cgroup_version(host), LAYOUT)
        self._made: list[Path] = []

    @contextlib.contextmanager
    def laid(self) -> Iterator[None]:
        try:
            self._make(MACHINE)
            if self._memory_bytes:
                self._limit_memory()
            for group in (LAYOUT.kubepods, LAYOUT.qos_dir(BURSTABLE), LAYOUT.qos_dir(BEST_EFFORT)):
                self._make(group)
            for pod in self._pods:
                self._make(pod.group)
                self._make(pod.container)
            self.weigh()
            yield
        finally:
            self._remove()

    def weigh(self) -> None:
        asked = sum(pod.milli for pod in self._pods)
        shares = {MACHINE: MOST_SHARES, LAYOUT.kubepods: 1024 * CPUS}
        shares[LAYOUT.qos_dir(BURSTABLE)] = max(2, asked * 1024 // 1000)
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

    def start(self, pod: Pod, command: Sequence[str], oom_score_adj: int = 0, **pipes: Any) -> subprocess.Popen[str]:
        """Start a process that is in its pod's group, with a kubelet's score, before it takes any memory."""
        gate = ["sh", "-c", 'read go && exec "$@"', "sh", *command]
        process = subprocess.Popen(gate, stdin=subprocess.PIPE, text=True, **pipes)
        self.join(process.pid, pod.container)
        Path(f"/proc/{process.pid}/oom_score_adj").write_text(str(oom_score_adj))
        tell(process)
        return process

    def cpu_s(self, group: str) -> float:
        found = usage.cpu_usage_ns(self.tree, group)
        if isinstance(found, IoError):
            raise RuntimeError(str(found))
        return found / 1e9

    def memory_stat(self, group: str) -> dict[str, int]:
        """The group's memory.stat with all groups below, by the names of cgroup v2."""
        folder = Path(self.tree.group_path("memory", group))
        rows = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        if self.tree.version == 2:
            return {name: int(value) for name, value in rows.items()}
        names = {"anon": "total_rss", "file": "total_cache", "shmem": "total_shmem"}
        names |= {one: f"total_{one}" for one in ("unevictable", "inactive_file", "active_file")}
        return {name: int(rows.get(old, 0)) for name, old in names.items()}

    def _limit_memory(self) -> None:
        folder = Path(self.tree.group_path("memory", MACHINE))
        (folder / ("memory.limit_in_bytes" if self.tree.version == 1 else "memory.max")).write_text(
            str(self._memory_bytes)
        )
        # A machine without swap: what does not fit is reclaimed or killed.
        swap, value = ("memory.swappiness", 0) if self.tree.version == 1 else ("memory.swap.max", 0)
        if (folder / swap).exists():
            (folder / swap).write_text(str(value))

    def _roots(self) -> Sequence[str]:
        if self.tree.version == 2:
            return ("",)
        return [root for root in CONTROLLERS if Path(self.tree.group_path(root, "")).is_dir()]

    def _make(self, group: str) -> None:
        for root in self._roots():
            folder = Path(self.tree.group_path(root, group))
            if folder.exists():
                continue  # two controllers that are mounted together
            if self.tree.version == 2:
                known = (folder.parent / "cgroup.controllers").read_text().split()
                wanted = " ".join(f"+{one}" for one in V2_CONTROLLERS if one in known)
                (folder.parent / "cgroup.subtree_control").write_text(wanted)
            folder.mkdir()
            self._made.append(folder)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if self.tree.version == 1 and (folder / name).exists():
                    (folder / name).write_text((folder.parent / name).read_text())

    def _remove(self) -> None:
        for folder in reversed(self._made):
            remove_group(folder)
        self._made.clear()


def remove_group(folder: Path) -> None:
    """Remove a group without groups below it, and kill what is still in it."""
    deadline = time.monotonic() + REMOVE_S
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            for pid in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)


def remove_stale_groups() -> None:
    """Remove the groups of benchmarks that were killed before they could do it themselves."""
    host = Host.local()
    tree = CgroupTree(host, cgroup_version(host), LAYOUT)
    for root in CONTROLLERS if tree.version == 1 else ("",):
        for folder in Path(tree.group_path(root, "")).glob(f"{_NAME}*"):
            if not Path("/proc", folder.name.removeprefix(_NAME)).exists():
                for below in sorted((one for one in folder.rglob("*") if one.is_dir()), reverse=True):
                    remove_group(below)
                remove_group(folder)
