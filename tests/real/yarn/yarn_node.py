"""A node for YARN's containers on this machine: cgroups of their own, a NodeManager that uses them, an application
with a master and tasks, and a copilot beside it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from koord.host.cgroup import usage
from koord.host.cgroup.detection import cgroup_version
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.telemetry.http_routing import HttpReply
from koord.telemetry.plain_http import request
from tests.real.yarn.real_yarn import JAVA, PATIENCE_S, RealYarn
from tools.assets import yarn_folder

PREFIX = f"koord-yarn-{os.getpid()}"
KUBEPODS = f"{PREFIX}/kubepods"
BESTEFFORT = f"{KUBEPODS}/besteffort"
GROUP = f"{BESTEFFORT}/hadoop-yarn"
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")
EXECUTOR = Path(__file__).with_name("container_executor.sh")
MASTER_MB, TASK_MB = 768, 256
MASTER = Path(__file__).with_name("ShellMaster.java")  # Java runs it from its source
# A task sleeps, and holds as much memory as a file with its name tells.
TASK = """\
import os, sys, time
wanted, held = os.path.join(sys.argv[1], os.environ["CONTAINER_ID"]), b""
while True:
    if not held and os.path.exists(wanted):
        held = bytearray(os.urandom(1 << 20) * int(open(wanted).read()))
    time.sleep(0.2)
"""


def needs_cgroups() -> pytest.MarkDecorator:
    """Skip where containers cannot have groups of their own here."""
    if os.geteuid() != 0:
        return pytest.mark.skip(reason="not root: cgroups cannot be made")
    if cgroup_version(Host.local()) != 1:
        return pytest.mark.skip(
            reason="this machine has cgroup v2, for which the stand-in of container-executor has no way"
        )
    missing = [name for name in CONTROLLERS if not os.path.isdir(f"/sys/fs/cgroup/{name}")]
    return pytest.mark.skipif(bool(missing), reason=f"no cgroup controllers {', '.join(missing)}")


def tree() -> CgroupTree:
    return CgroupTree(Host.local(), 1, CgroupLayout("cgroupfs", (PREFIX,)))


def make_groups() -> None:
    for controller in CONTROLLERS:
        for group in (PREFIX, KUBEPODS, BESTEFFORT, f"{KUBEPODS}/burstable"):
            path = Path("/sys/fs/cgroup", controller, group)
            path.mkdir(exist_ok=True)
            if controller == "cpuset":  # a new group has no CPUs and no memory
                for name in ("cpuset.mems", "cpuset.cpus"):
                    (path / name).write_text((path.parent / name).read_text())


def remove_groups() -> None:
    """Kill what is left in the groups, and remove them."""
    for controller in CONTROLLERS:
        top = Path("/sys/fs/cgroup", controller, PREFIX)
        deadline = time.monotonic() + 20
        while top.is_dir() and time.monotonic() < deadline:
            for folder in sorted((one for one in top.rglob("*") if one.is_dir()), reverse=True):
                for pid in (folder / "cgroup.procs").read_text().split() if folder.is_dir() else ():
                    _kill(int(pid))
                _rmdir(folder)
            _rmdir(top)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _rmdir(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:
        return  # a process in it has not ended yet


class YarnNode(RealYarn):
    """A YARN cluster whose NodeManager runs containers in cgroups."""

    def __init__(self, folder: Path) -> None:
        executor = "yarn.nodemanager.linux-container-executor"
        handlers = "org.apache.hadoop.yarn.server.nodemanager"
        properties = {
            "yarn.nodemanager.container-executor.class": f"{handlers}.LinuxContainerExecutor",
            f"{executor}.resources-handler.class": f"{handlers}.util.CgroupsLCEResourcesHandler",
            f"{executor}.path": str(EXECUTOR),
            f"{executor}.group": "root",
            f"{executor}.nonsecure-mode.local-user": "root",
            f"{executor}.cgroups.hierarchy": f"/{GROUP}",
            f"{executor}.cgroups.mount": "false",
            f"{executor}.cgroups.mount-path": "/sys/fs/cgroup",
            "yarn.nodemanager.resource.memory.enabled": "true",
            "yarn.nodemanager.resource.memory-mb": "2048",
            "yarn.nodemanager.resource.cpu-vcores": "8",
        }
        super().__init__(folder, 1, properties)
        self.memory_folder = folder / "memory"
        self.memory_folder.mkdir()

    @property
    def web_port(self) -> int:
        return self._web_ports[0]

    def submit_tasks(self, tasks: int) -> None:
        """Start an application: a master, and so many tasks."""
        (self.folder / "task.py").write_text(TASK)
        task = f"{sys.executable} {self.folder}/task.py {self.memory_folder}"
        classpath = f"{self.folder}/conf-nm:{yarn_folder()}/*"
        master = f"{' '.join(JAVA)} -cp '{classpath}' {MASTER} {tasks} {TASK_MB} '{task}'"
        self.submit(f"{master} >{self.folder}/master.log 2>&1", MASTER_MB)

    def exit_code(self, container: str) -> str:
        """Return what the NodeManager's executor saw the container end with; "" while it runs."""
        found = list((self.folder / "local" / "nmPrivate").glob(f"*/{container}/*.exitcode"))
        return found[0].read_text().strip() if found else ""


class Copilot:
    """A copilot process, and calls of its API."""

    def __init__(self, yarn: YarnNode, *flags: str) -> None:
        self.socket = str(yarn.folder / "yc.sock")
        self.log = yarn.folder / "copilot.log"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "koord.cli.daemons.koord_yarn_copilot"),
                f"--server-endpoint={self.socket}",
                f"--node-manager-endpoint=127.0.0.1:{yarn.web_port}",
                f"--yarn-container-cgroup-path={GROUP}",
                "--addr=0",
                *flags,
            ],
            stderr=self.log.open("wb"),
        )

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        sent = b"" if body is None else json.dumps(body).encode()
        answer = await request(self.socket, method, path, sent, timeout_s=60.0)
        if not isinstance(answer, HttpReply):
            return 0, str(answer)
        return answer.status, json.loads(answer.body)

    async def names(self) -> list[str]:
        """Return the containers that the copilot lists, and have processes in their groups."""
        status, listed = await self.call("GET", "/v1/containers")
        if status != 200:
            return []
        found = []
        for one in listed:
            pids = usage.processes_below(tree(), one["cgroupDir"])
            if not isinstance(pids, IoError) and pids:
                found.append(one["name"])
        return sorted(found)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def java_home() -> str:
    java = shutil.which("java")
    assert java is not None
    return str(Path(java).resolve().parents[1])


@asynccontextmanager
async def yarn_node(folder: Path, tasks: int) -> AsyncIterator[tuple[YarnNode, Copilot]]:
    """Run a master and tasks on a NodeManager beside a copilot."""
    os.environ.setdefault("JAVA_HOME", java_home())  # by which the script of the master finds it
    make_groups()
    yarn = YarnNode(folder)
    copilot: Copilot | None = None
    try:
        yarn.start_resource_manager()
        yarn.start_node_manager()
        await yarn.until_running()
        copilot = Copilot(yarn)
        yarn.submit_tasks(tasks)
        yield yarn, copilot
    finally:
        if copilot is not None:
            copilot.stop()
        yarn.stop()
        remove_groups()


async def eventually(is_true: Callable[[], Awaitable[bool]], tell: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await is_true():
        assert time.monotonic() < deadline, tell()
        await asyncio.sleep(0.2)
