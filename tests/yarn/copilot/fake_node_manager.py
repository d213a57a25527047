"""A NodeManager in this process: it serves its web services, and its containers are real processes in the cgroups of a
fake machine. A container whose process ends reaches a final state, as the real one's does.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.host.fake_machine import FakeMachine

APPLICATION = "container_1763301000000_0001_01"


def container_id(number: int) -> str:
    return f"{APPLICATION}_{number:06d}"


class FakeNodeManager:
    def __init__(self, machine: FakeMachine, parent: str) -> None:
        self.machine = machine
        self.parent = machine.make(parent)
        self.rows: dict[str, dict[str, Any]] = {}
        self.requests = 0
        self.answer: web.Response | None = None  # in place of the list
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._watchers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        application = web.Application()
        application.router.add_get("/ws/v1/node/containers", self._list)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
        await asyncio.gather(*self._watchers)
        if self._runner is not None:
            await self._runner.cleanup()

    async def run_container(self, name: str, *, vcores: int = 1, memory_mb: int = 512, joins: bool = True) -> str:
        """Start a container, whose process `joins` its cgroup, and return the group."""
        group = self.machine.make(f"{self.parent}/{name}")
        process = await asyncio.create_subprocess_exec("sleep", "300", start_new_session=True)
        self._processes[name] = process
        self.rows[name] = {
            "id": name,
            "state": "RUNNING",
            "exitCode": "-1000",
            "diagnostics": "",
            "user": "root",
            "totalMemoryNeededMB": memory_mb,
            "totalVCoresNeeded": vcores,
            "executionType": "GUARANTEED",
            "nodeId": "localhost:8041",
        }
        if joins:
            self._procs(group).write_text(f"{process.pid}\n")
        self._watchers.append(asyncio.create_task(self._watch(name, group, process)))
        return group

    def exit_code(self, name: str) -> int | None:
        return self._processes[name].returncode

    def is_running(self, name: str) -> bool:
        return self._processes[name].returncode is None

    def _procs(self, group: str) -> Path:
        return Path(self.machine.tree.group_path("cpu", group)) / "cgroup.procs"

    async def _watch(self, name: str, group: str, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        self.rows[name] |= {"state": "EXITED_WITH_FAILURE", "exitCode": str(128 - code)}
        if self._procs(group).exists():
            self._procs(group).write_text("")

    async def _list(self, _: web.Request) -> web.Response:
        self.requests += 1
        if self.answer is not None:
            return self.answer
        rows = list(self.rows.values())
        return web.json_response({"containers": {"container": rows} if rows else {}})
