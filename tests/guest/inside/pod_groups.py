"""Groups of pods on cgroup v2 as the kubelet and the runtime make them, named by either driver, with real processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.host.cgroup.layout import CgroupLayout
from tools.nodeagent import until

CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = "+cpu +cpuset +memory +io +pids"
# Every file that koordlet may write in groups of pods on mainline kernels.
FILES = (
    *("cpu.weight", "cpu.max", "cpu.max.burst", "cpu.idle", "cpuset.cpus"),
    *("memory.min", "memory.low", "memory.high", "memory.max", "memory.oom.group", "io.max", "io.weight"),
)


class PodGroups:
    """The tree of one driver. Everything in it ends and goes with `remove`."""

    def __init__(self, driver: str) -> None:
        self.layout = CgroupLayout(driver)
        self._processes: list[subprocess.Popen[bytes]] = []
        for kube_qos in (GUARANTEED, BURSTABLE, BEST_EFFORT):
            self._make(self.layout.qos_dir(kube_qos))
        self.write(self.layout.qos_dir(BEST_EFFORT), "cpu.weight", "1")

    @property
    def best_effort(self) -> str:
        return self.layout.qos_dir(BEST_EFFORT)

    def pod(self, kube_qos: str, uid: str, container_ids: Sequence[str]) -> str:
        group = self.layout.pod_dir(kube_qos, uid)
        self._make(group)
        for one in container_ids:
            name = self.layout.container_name(f"containerd://{one}")
            assert name is not None
            self._make(f"{group}/{name}", leaf=True)
        return group

    def container(self, pod: str, container_id: str) -> str:
        return f"{pod}/{self.layout.container_name(f'containerd://{container_id}')}"

    def run(self, group: str, program: Sequence[str] = ("sleep", "3600")) -> subprocess.Popen[bytes]:
        """Start a process in the group: it is there before its program runs, as a runtime's is."""
        procs = str(CGROUPS / group / "cgroup.procs")
        command = ["sh", "-c", f'echo $$ >{procs} && exec "$@"', "sh", *program]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._processes.append(process)
        return process

    def processes(self, group: str) -> list[int]:
        return [int(pid) for pid in (CGROUPS / group / "cgroup.procs").read_text().split()]

    def read(self, group: str, file: str) -> str:
        return (CGROUPS / group / file).read_text().strip()

    def write(self, group: str, file: str, text: str) -> None:
        (CGROUPS / group / file).write_text(text)

    def snapshot(self) -> dict[str, str]:
        """Every file that may be written, of every group of pods."""
        top = CGROUPS / self.layout.kubepods
        folders = [Path(folder) for folder, _, _ in os.walk(top)]
        found = {str(one / file): one / file for one in folders for file in FILES}
        return {name: path.read_text() for name, path in found.items() if path.exists()}

    def remove(self) -> None:
        self.write(self.layout.kubepods, "cgroup.kill", "1")  # what processes started as well
        for process in self._processes:
            process.communicate()
        _remove(CGROUPS / self.layout.kubepods)

    def _make(self, group: str, *, leaf: bool = False) -> None:
        folder = CGROUPS / group
        if folder.is_dir():
            return
        folder.mkdir(parents=True)
        if not leaf:
            (folder / "cgroup.subtree_control").write_text(CONTROLLERS)


def _remove(folder: Path) -> None:
    for below in [one for one in folder.iterdir() if one.is_dir()]:
        _remove(below)
    until(lambda: _is_removed(folder), f"{folder} can be removed")


def _is_removed(folder: Path) -> bool:
    """Remove a group; one whose processes were killed a moment ago is busy until the kernel is done with them."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
