"""The groups of containers on this machine's own cgroups: memory follows CPU, and what ended is removed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.telemetry.clock import WallClock
from koord.wire.yarn_copilot import NodeManagerContainer
from koord.yarn.copilot.container_group import ContainerGroups, NotKilled
from tests.real.yarn.yarn_node import GROUP, make_groups, needs_cgroups, remove_groups, tree

pytestmark = [pytest.mark.real, needs_cgroups()]
ENDED, STARTING, RUNNING = (f"container_1_0001_01_{number:06d}" for number in (1, 2, 3))
MIB = 2**20


def path(controller: str, name: str = "") -> Path:
    return Path("/sys/fs/cgroup", controller, GROUP, name)


@pytest.fixture
def groups() -> Iterator[ContainerGroups]:
    make_groups()
    yield ContainerGroups(tree(), GROUP, WallClock())
    remove_groups()


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child in a session of its own."""
    script = "read; setsid sleep 300 & echo started; wait"
    with subprocess.Popen(["bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def live(name: str, memory_mb: int = 64) -> NodeManagerContainer:
    return NodeManagerContainer(id=name, state="RUNNING", vcores=2, memory_mb=memory_mb)


async def test_memory_follows_cpu_and_a_kill_leaves_no_process(
    groups: ContainerGroups, sleeping: subprocess.Popen[bytes]
) -> None:
    assert groups.synchronize([]) == []  # makes the group of all containers
    for name in (ENDED, STARTING, RUNNING):
        path("cpu", name).mkdir()
    assert sleeping.stdin is not None
    assert sleeping.stdout is not None
    (path("cpu", RUNNING) / "cgroup.procs").write_text(str(sleeping.pid))
    sleeping.stdin.write(b"\n")  # its child starts in the group
    sleeping.stdin.flush()
    assert sleeping.stdout.readline() == b"started\n"
    assert groups.synchronize([live(STARTING), live(RUNNING)]) == []
    assert not path("cpu", ENDED).exists()
    assert path("cpu", STARTING).is_dir()  # its process comes later
    assert (path("memory", RUNNING) / "memory.limit_in_bytes").read_text() == f"{64 * MIB}\n"
    assert str(sleeping.pid) in (path("memory", RUNNING) / "cgroup.procs").read_text().split()
    assert (path("cpu") / "cpu.shares").read_text() == "4096\n"
    killed = await groups.kill(RUNNING)
    assert not isinstance(killed, NotKilled), killed
    assert killed == 2
    assert (path("cpu", RUNNING) / "cgroup.procs").read_text() == ""
    assert sleeping.wait() == -9
    assert groups.synchronize([]) == []
    assert [one.name for one in path("memory").iterdir() if one.is_dir()] == []
