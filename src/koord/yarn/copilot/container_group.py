"""The cgroups of YARN's containers: the processes in them, how they are killed, and their memory limits.

A NodeManager of Hadoop 2 makes a group for CPU alone. With the synchronization of memory groups each container has one
in the memory controller too, with the container's memory as its limit. On cgroup v2 both are the same group.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence, Set

import msgspec

from koord.api.koordinator.yarn import CONTAINER_PREFIX
from koord.host.cgroup import usage
from koord.host.cgroup.knob import CPU_IDLE, CPU_SHARES, MEMORY_LIMIT, MEMORY_OOM_GROUP, CgroupFile
from koord.host.cgroup.tree import CgroupTree
from koord.host.io_error import IoError
from koord.telemetry.clock import Clock
from koord.wire.yarn_copilot import NodeManagerContainer

_LOG = logging.getLogger(__name__)

KILL_ROUNDS, KILL_ROUND_S = 100, 0.05
SHARES_PER_VCORE = 1024
_MAX_SHARES = 262_144  # the kernel's
_GROUP_MODE = 0o777  # the NodeManager makes groups below, as the user that it runs as
_MOVE_CHARGES = "memory.move_charge_at_immigrate"  # of cgroup v1: anonymous pages and page cache move with a process


class NotKilled(msgspec.Struct, frozen=True):
    """NotKilled says why a container may still run."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class ContainerGroups:
    """The groups below `parent`, which is relative to the cgroup root as the group of all containers of YARN."""

    def __init__(self, tree: CgroupTree, parent: str, clock: Clock) -> None:
        self._tree = tree
        self.parent = parent
        self._clock = clock

    @property
    def cpu_path(self) -> str:
        return self._tree.group_path("cpu", self.parent)

    def group_of(self, container_id: str) -> str:
        return f"{self.parent}/{container_id}"

    async def kill(self, container_id: str) -> int | NotKilled:
        """Kill all processes of the container, and return how many there were. Returns when none is left.

        The NodeManager sees the exit code 137, as after a kill of its own.
        """
        group = self.group_of(container_id)
        killed: set[int] = set()
        for _ in range(KILL_ROUNDS):
            pids = usage.processes_below(self._tree, group)
            if isinstance(pids, IoError) and not (pids.vanished and killed):
                return NotKilled(f"the processes of {container_id} are not known: {pids}")
            if isinstance(pids, IoError) or not pids:
                if not killed:
                    return NotKilled(f"{container_id} has no process in {self._tree.group_path('cpu', group)}")
                return len(killed)
            refused = self._signal(group, pids)
            if refused is not None:
                return refused
            killed.update(pids)
            await self._clock.sleep(KILL_ROUND_S)
        return NotKilled(f"processes of {container_id} are there {KILL_ROUNDS * KILL_ROUND_S:.0f}s after SIGKILL")

    def _signal(self, group: str, pids: Sequence[int]) -> NotKilled | None:
        if min(pids) <= 1:  # 0 stands for processes of another PID namespace
            return NotKilled(
                f"{group} holds process {min(pids)}: koord-yarn-copilot must run in the host's PID namespace"
            )
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except OSError as error:
                return NotKilled(f"process {pid} of {group} cannot be killed: {error.strerror}")
        return None

    # Memory groups -------------------------------------------------------------------------------------------------

    def synchronize(self, containers: Sequence[NodeManagerContainer]) -> list[str]:
        """Bring the memory groups, and the CPU shares of all containers together, to the live containers.

        Returns what went wrong; the next call tries again.
        """
        problems = [str(refused) for path in self._parents() if (refused := _make_parents(path)) is not None]
        names = self._tree.host.list_folders(self.cpu_path)
        if isinstance(names, IoError):
            return [*problems, str(names)]
        live = {one.id: one for one in containers}
        kept: set[str] = set()
        for name in names:
            if not name.startswith(CONTAINER_PREFIX) or (name not in live and self._remove_if_empty(name)):
                continue
            kept.add(name)
            problems += self._bring_memory_group(name, live.get(name))
        if self._tree.version == 1:
            problems += self._remove_memory_groups_without(kept)
        shares = min(sum(max(0, one.vcores) for one in containers) * SHARES_PER_VCORE, _MAX_SHARES)
        # The kernel refuses shares of a group that runs only when the CPU is idle, as koordlet may have made it.
        if shares > 0 and self._tree.value(CPU_IDLE, self.parent) != "1":
            problems += self._write(CPU_SHARES, self.parent, str(shares))
        return problems

    def _parents(self) -> list[str]:
        subsystems = ("cpu", "memory") if self._tree.version == 1 else ("",)
        return [self._tree.group_path(subsystem, self.parent) for subsystem in subsystems]

    def _remove_if_empty(self, name: str) -> bool:
        """Remove the CPU group of a container that the NodeManager does not have any more. Return whether it is gone.

        One that it has is left: its process may not be in it yet.
        """
        group = self.group_of(name)
        pids = usage.processes_below(self._tree, group)
        if isinstance(pids, IoError):
            return pids.vanished
        return not pids and self._tree.host.remove_folder(self._tree.group_path("cpu", group)) is None

    def _bring_memory_group(self, name: str, container: NodeManagerContainer | None) -> list[str]:
        group, host = self.group_of(name), self._tree.host
        problems: list[str] = []
        path = self._tree.group_path("memory", group)
        if self._tree.version == 1 and not host.is_folder(path):
            refused = host.make_folder(path)
            if refused is not None:
                return [str(refused)]
            host.write(f"{path}/{_MOVE_CHARGES}", "3")  # absent from kernels since 6.12: pages stay where they were
        if self._tree.is_supported(MEMORY_OOM_GROUP, group):
            problems += self._write(MEMORY_OOM_GROUP, group, "1")
        if container is not None and container.memory_bytes:
            problems += self._write(MEMORY_LIMIT, group, str(container.memory_bytes))
        if self._tree.version == 1:
            problems += self._move_processes(group, path)
        return problems

    def _move_processes(self, group: str, memory_path: str) -> list[str]:
        wanted = usage.processes_below(self._tree, group)
        inside = self._tree.host.read(f"{memory_path}/cgroup.procs")
        if isinstance(wanted, IoError) or isinstance(inside, IoError):
            return []  # it ended meanwhile
        there = {int(word) for word in inside.split() if word.isdecimal()}
        for pid in wanted:
            refused = None if pid in there else self._tree.host.write_each(f"{memory_path}/cgroup.procs", (str(pid),))
            if refused is not None and not refused.vanished and self._tree.host.exists(f"/proc/{pid}"):
                return [str(refused)]
        return []

    def _remove_memory_groups_without(self, cpu_names: Set[str]) -> list[str]:
        """Remove the memory groups of containers that have no CPU group any more."""
        folder = self._tree.group_path("memory", self.parent)
        names = self._tree.host.list_folders(folder)
        if isinstance(names, IoError):
            return [str(names)]
        gone = [name for name in names if name.startswith(CONTAINER_PREFIX) and name not in cpu_names]
        refusals = (self._tree.host.remove_folder(f"{folder}/{name}") for name in gone)
        return [str(one) for one in refusals if one is not None]

    def _write(self, knob: str, group: str, value: str) -> list[str]:
        """Write a knob where it holds another value."""
        path, codec, text = (
            self._tree.path(CgroupFile(knob, group)),
            self._tree.codec(knob),
            self._tree.read(knob, group),
        )
        if path is None or codec is None or isinstance(text, IoError):
            return []  # the group ended meanwhile, or this kernel has no such knob
        field = codec.encode(value)
        if field is None:
            return [f"{path} takes no {value}"]
        if codec.extract(text, "") == field:
            return []
        refused = self._tree.host.write(path, field)
        return [] if refused is None or refused.vanished else [str(refused)]


def _make_parents(path: str) -> OSError | None:
    """Make a group and those above it, writable for the NodeManager's user."""
    if os.path.isdir(path):
        return None
    try:
        os.makedirs(path, exist_ok=True)
        os.chmod(path, _GROUP_MODE)
    except OSError as error:
        return error
    return None
