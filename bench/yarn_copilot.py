"""What koord-yarn-copilot costs a node: CPU and memory beside a NodeManager with 30 containers, while koordlet asks for
them as often as it does and groups are synchronized.

The NodeManager is a stand-in that answers with a list of the real one's form; the cgroups are a folder with the files
of version 1. Containers come and go all the time, so that groups are made and removed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.memory_reading import rss_mb
from koord.koordlet.inputs.yarn_containers import YarnContainers, YarnCopilotSettings
from koord.telemetry.clock import WallClock
from tests.host.fake_machine import FakeMachine
from tests.yarn.copilot.fake_node_manager import FakeNodeManager, container_id

CONTAINERS = 30
WARM_UP_S, SECONDS = 10.0, 60.0
CHANGES_S = 5.0  # a container ends, and another one starts
GOALS = {"cores": 0.005, "rss_mib": 40.0}
GROUP = "kubepods/besteffort/hadoop-yarn"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _change(manager: FakeNodeManager, machine: FakeMachine) -> None:
    """Let containers come and go as those of a busy application do."""
    number = CONTAINERS
    while True:
        await asyncio.sleep(CHANGES_S)
        number += 1
        gone = next(iter(manager.rows))
        del manager.rows[gone]
        machine.remove(f"{GROUP}/{gone}")
        _add(manager, machine, number)


def _add(manager: FakeNodeManager, machine: FakeMachine, number: int) -> None:
    name = container_id(number)
    machine.make(f"{GROUP}/{name}")
    row = {"id": name, "state": "RUNNING", "exitCode": "-1000", "diagnostics": "", "user": "root"}
    row |= {"containerLogsLink": f"http://localhost:8042/node/containerlogs/{name}/root", "nodeId": "localhost:8041"}
    manager.rows[name] = row | {"totalMemoryNeededMB": 1024, "totalVCoresNeeded": 1, "executionType": "GUARANTEED"}


async def measure() -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="yc-"))
    machine = FakeMachine(folder / "machine", 1)
    manager = FakeNodeManager(machine, GROUP)
    await manager.start()
    for number in range(1, CONTAINERS + 1):
        _add(manager, machine, number)
    copilot = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "koord.cli.daemons.koord_yarn_copilot"),
        f"--server-endpoint={folder}/s",
        f"--cgroup-root-dir={machine.paths.cgroup}",
        f"--node-manager-endpoint=127.0.0.1:{manager.port}",
        "--sync-memory-cgroup",
        "--addr=127.0.0.1:0",
    )
    yarn = YarnContainers(YarnCopilotSettings(endpoint=f"{folder}/s"), WallClock())
    tasks = [asyncio.create_task(yarn.run()), asyncio.create_task(_change(manager, machine))]
    try:
        await asyncio.sleep(WARM_UP_S)
        begun_s, asked, used_s = time.monotonic(), manager.requests, cpu_seconds(copilot.pid)
        await asyncio.sleep(SECONDS)
        lasted_s = time.monotonic() - begun_s
        cores = (cpu_seconds(copilot.pid) - used_s) / lasted_s
        known, lists = len(yarn.containers), manager.requests - asked
        resident = rss_mb(copilot.pid)
    finally:
        for task in tasks:
            task.cancel()
        copilot.terminate()
        await copilot.wait()
        await manager.stop()
        shutil.rmtree(folder)
    return {
        "containers": known,
        "seconds": lasted_s,
        "lists_of_the_node_manager": lists,
        "cores": cores,
        "rss_mib": resident,
        "goals": GOALS,
        "reached": known == CONTAINERS and cores <= GOALS["cores"] and resident <= GOALS["rss_mib"],
    }


def run() -> dict[str, Any]:
    return asyncio.run(measure())
