"""The memory groups of containers follow their CPU groups, on both cgroup versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koord.host.cgroup.knob import CPU_IDLE, CPU_SHARES, MEMORY_LIMIT
from koord.host.cgroup.layout import CgroupLayout
from koord.telemetry.clock import WallClock
from koord.wire.yarn_copilot import NodeManagerContainer
from koord.yarn.copilot.container_group import ContainerGroups
from koord.yarn.copilot.program import CopilotSettings, YarnCopilot
from tests.host.fake_machine import FakeMachine
from tests.yarn.copilot.fake_node_manager import FakeNodeManager, container_id

PARENT = "kubepods/besteffort/hadoop-yarn"
ONE, TWO = container_id(1), container_id(2)
MIB = 2**20


def live(name: str, vcores: int = 1, memory_mb: int = 100) -> NodeManagerContainer:
    return NodeManagerContainer(id=name, state="RUNNING", vcores=vcores, memory_mb=memory_mb)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> FakeMachine:
    made = FakeMachine(tmp_path, request.param, CgroupLayout("cgroupfs"), vendor=True)
    made.make(PARENT)
    return made


@pytest.fixture
def groups(machine: FakeMachine) -> ContainerGroups:
    return ContainerGroups(machine.tree, PARENT, WallClock())


def cpu_only(machine: FakeMachine, name: str, *pids: int) -> None:
    """Make the group of a container as a NodeManager of Hadoop 2 does, in the CPU controller alone."""
    group = machine.make(f"{PARENT}/{name}")
    memory = Path(machine.tree.group_path("memory", group))
    for file in memory.iterdir():
        file.unlink()
    memory.rmdir()
    (Path(machine.tree.group_path("cpu", group)) / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def test_limits_and_shares_follow_the_containers(machine: FakeMachine, groups: ContainerGroups) -> None:
    for name in (ONE, TWO):
        machine.make(f"{PARENT}/{name}")
    assert groups.synchronize([live(ONE, 2, 100), live(TWO, 1, 300)]) == []
    assert machine.text(MEMORY_LIMIT, f"{PARENT}/{ONE}") == str(100 * MIB)
    assert machine.text(MEMORY_LIMIT, f"{PARENT}/{TWO}") == str(300 * MIB)
    assert machine.text("memory.oom.group", f"{PARENT}/{ONE}") == "1"
    shares = machine.tree.value(CPU_SHARES, PARENT)
    assert isinstance(shares, str)
    assert abs(int(shares) - 3072) < 30  # of cgroup v2 there are fewer steps


def test_a_group_that_is_idle_keeps_its_shares(machine: FakeMachine, groups: ContainerGroups) -> None:
    before = machine.text(CPU_SHARES, PARENT)
    path = Path(machine.tree.group_path("cpu", PARENT)) / CPU_IDLE
    path.write_text("1\n")
    assert groups.synchronize([live(ONE)]) == []
    assert machine.text(CPU_SHARES, PARENT) == before


@pytest.mark.parametrize("machine", [1], indirect=True)
def test_groups_of_containers_that_ended_are_removed_and_those_that_start_are_not(
    machine: FakeMachine, groups: ContainerGroups
) -> None:
    cpu = Path(machine.tree.group_path("cpu", PARENT))
    for name in (ONE, TWO):
        (cpu / name).mkdir()
    Path(machine.tree.group_path("memory", f"{PARENT}/{container_id(9)}")).mkdir()
    groups.synchronize([live(TWO)])
    assert sorted(path.name for path in cpu.iterdir() if path.is_dir()) == [ONE, TWO]  # no cgroup.procs: left alone
    memory = Path(machine.tree.group_path("memory", PARENT))
    assert sorted(path.name for path in memory.iterdir() if path.is_dir()) == [
        TWO
    ]  # 9 had no CPU group, 1 is no live container


@pytest.mark.parametrize("machine", [1], indirect=True)
def test_processes_are_moved_to_the_memory_group(machine: FakeMachine, groups: ContainerGroups) -> None:
    cpu_only(machine, ONE, 4711)
    memory = Path(machine.tree.group_path("memory", f"{PARENT}/{ONE}"))
    groups.synchronize([live(ONE)])
    (memory / "cgroup.procs").write_text("")
    (memory / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert groups.synchronize([live(ONE)]) == []
    assert (memory / "cgroup.procs").read_text() == "4711"
    assert (memory / "memory.limit_in_bytes").read_text() == str(100 * MIB)


async def running(machine: FakeMachine, folder: Path) -> AsyncIterator[tuple[YarnCopilot, FakeNodeManager]]:
    manager = FakeNodeManager(machine, PARENT)
    await manager.start()
    settings = CopilotSettings(
        endpoint=str(folder / "s"),
        cgroup_root=machine.paths.cgroup,
        node_manager=("127.0.0.1", manager.port),
        kubelet=None,
        address=None,
        sync_memory=True,
        sync_s=3600.0,  # so that only the new group can be the reason
    )
    copilot = await YarnCopilot.start(settings, WallClock())
    assert isinstance(copilot, YarnCopilot)
    yield copilot, manager
    await copilot.stop()
    await manager.stop()


async def test_a_new_group_is_noticed_at_once(machine: FakeMachine, tmp_path: Path) -> None:
    async for copilot, manager in running(machine, tmp_path):
        async with asyncio.timeout(30):
            while not copilot.is_watching:  # noqa: ASYNC110 - the kernel is asked, and tells nobody
                await asyncio.sleep(0.01)
        await manager.run_container(ONE, memory_mb=64)
        async with asyncio.timeout(30):
            while machine.text(MEMORY_LIMIT, f"{PARENT}/{ONE}") != str(64 * MIB):
                (Path(machine.tree.group_path("cpu", PARENT)) / "container_again").mkdir(exist_ok=True)
                await asyncio.sleep(0.02)
                (Path(machine.tree.group_path("cpu", PARENT)) / "container_again").rmdir()
