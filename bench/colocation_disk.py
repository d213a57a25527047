"""A service that reads from a disk beside batch work that writes to it as fast as it can.

The disk is a loop device of a known speed; all reads and writes go past the page cache, as writes from the cache belong
to nobody on cgroup v1. Batch writers: none, in a BestEffort pod that nobody manages, and under koordlet with limits of
the class (`blkioQOS`). The three take turns, and medians are told. Time that the service waits for a CPU is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.agent_node import connect, create_node, create_pod, koordlet, until
from bench.cgroup_pods import Ground, Pod, tell, wait_ready
from bench.colocation_part import ALONE, MANAGED, MORE, STATES, Measure, PartResult, Skipped, medians
from bench.loop_disk import DiskRefused, DiskSpeed, LoopDisk, loop_disk, sysfs_with_disk
from bench.manager import server
from bench.namespace import enter_private_mounts
from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE
from koord.host.cgroup import knob

MIB = 1 << 20
DISK = DiskSpeed(size_bytes=1024 * MIB, access_ms=4.0, bytes_per_s=100_000_000, requests=32)
READ_BYTES, WRITE_BYTES = 64 << 10, MIB
WRITERS = 8
LIMIT_BYTES_S = 3_000_000  # of up to 100 MB a second: what batch work takes, the service loses
ROUNDS = 2
SECONDS = 3.0
NAME = "koord-disk"
GATES = "BlkIOReconcile=true,BECPUSuppress=false,RdtResctrl=false"
SLO: dict[str, Any] = {
    "resourceQOSStrategy": {
        "beClass": {
            "blkioQOS": {
                "enable": True,
                "blocks": [
                    {
                        "name": f"/dev/{NAME}",
                        "type": "device",
                        "ioCfg": {"readBPS": LIMIT_BYTES_S, "writeBPS": LIMIT_BYTES_S},
                    }
                ],
            }
        }
    }
}
SERVICE = Pod("service", BURSTABLE, 1000)
BATCH = Pod("batch", BEST_EFFORT)


def command(disk: LoopDisk, size: int, threads: int, seconds: float, *words: str) -> list[str]:
    load = [sys.executable, "-m", "bench.disk_load", f"--disk={disk.path}", f"--size={size}"]
    return [*load, f"--threads={threads}", f"--seconds={seconds}", *words]


@contextlib.contextmanager
def writing(ground: Ground, disk: LoopDisk) -> Iterator[subprocess.Popen[str]]:
    """Batch writers that have begun."""
    words = command(disk, WRITE_BYTES, WRITERS, SECONDS + 1, "--write")
    process = ground.start(BATCH, words, 1000, stdout=subprocess.PIPE)
    try:
        wait_ready(process)
        tell(process)
        yield process
    finally:
        process.kill()
        process.wait(timeout=30)


def phase(ground: Ground, disk: LoopDisk, *, batch: bool) -> dict[str, float]:
    """One turn: what the service read, what batch work wrote meanwhile."""
    with contextlib.ExitStack() as stack:
        reader = ground.start(SERVICE, command(disk, READ_BYTES, 1, SECONDS), stdout=subprocess.PIPE)
        stack.callback(reader.wait, 30)
        stack.callback(reader.kill)
        wait_ready(reader)
        writer = stack.enter_context(writing(ground, disk)) if batch else None
        tell(reader)
        read = json.loads(reader.communicate(timeout=60)[0])
        wrote = {"bytes": 0, "seconds": 1.0} if writer is None else json.loads(writer.communicate(timeout=60)[0])
    return {
        "read_mb_s": read["bytes_per_s"] / 1e6,
        "read_ms_p99": statistics.quantiles(read["took_ms"], n=100)[98],
        "batch_write_mb_s": wrote["bytes"] / wrote["seconds"] / 1e6,
    }


def is_limited(ground: Ground, disk: LoopDisk) -> bool:
    return ground.tree.is_supported(knob.WRITE_BPS, BATCH.container) and disk.number in str(
        ground.tree.read(knob.WRITE_BPS, limited_group(ground))
    )


def limited_group(ground: Ground) -> str:
    """Where the kernel must have the limit: cgroup v1 looks at the group of the process alone."""
    return BATCH.container if ground.tree.version == 1 else ground.tree.layout.qos_dir(BEST_EFFORT)


async def turns(kubeconfig: Path, folder: Path, disk: LoopDisk) -> tuple[dict[str, list[dict[str, float]]], int]:
    found: dict[str, list[dict[str, float]]] = {state: [] for state in STATES}
    ground = Ground((SERVICE, BATCH))
    flags = (f"--sys-root-dir={sysfs_with_disk(folder / 'sys', disk, NAME)}",)
    with ground.laid():
        async with connect(kubeconfig) as client:
            await create_node(client, SLO)
            await create_pod(client, SERVICE, "LS", {"requests": {"cpu": "1"}})
            await create_pod(client, BATCH, "BE", {})
        for _ in range(ROUNDS):
            for state in STATES:
                async with contextlib.AsyncExitStack() as stack:
                    if state == MANAGED:
                        await stack.enter_async_context(koordlet(kubeconfig, folder, GATES, flags))
                        await until(lambda: is_limited(ground, disk), "batch work is limited at the disk")
                    found[state].append(await asyncio.to_thread(phase, ground, disk, batch=state != ALONE))
    return found, ground.tree.version


def run() -> PartResult | Skipped:
    if os.geteuid() != 0:
        return Skipped(part="disk", reason="cgroups need root")
    folder = Path(tempfile.mkdtemp(prefix="koord-disk-"))
    try:
        enter_private_mounts()
        with loop_disk(DISK, folder) as disk, server(folder) as kubeconfig:
            rounds, version = asyncio.run(turns(kubeconfig, folder, disk))
    except DiskRefused as refused:
        return Skipped(part="disk", reason=str(refused))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = medians(rounds)
    return PartResult(
        part="disk",
        goal="the service reads at least 90 % of what it reads alone",
        goal_met=found[MANAGED]["read_mb_s"] >= 0.9 * found[ALONE]["read_mb_s"],
        measures=(
            Measure.of("the service reads", "MB/s", found, "read_mb_s", better=MORE),
            Measure.of("p99 of its reads", "ms", found, "read_ms_p99"),
            Measure.of("batch work writes", "MB/s", found, "batch_write_mb_s", better=MORE),
        ),
        details={
            "cgroup_version": version,
            "disk": msgspec.to_builtins(DISK),
            "batch_writers": WRITERS,
            "batch_limit_mb_s": LIMIT_BYTES_S / 1e6,
            "rounds": rounds,
        },
    )
