"""A service and batch work on one machine, in real cgroups as a kubelet makes them: what koordlet's care is worth.

The service has a fixed rate of requests and asks for the CPU it needs. Beside it run as many busy loops as there are
CPUs: nowhere, as a BestEffort pod that nobody manages, as a pod that asks for CPU (as batch work must where there is no
co-location), and as a BE pod under koordlet with idle groups, suppression and bursts. The four take turns,
round after round, because what else the machine does is not ours to say; medians over the rounds are told.
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
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.agent_node import connect, create_node, create_pod, koordlet, until
from bench.cgroup_pods import CPUS, LAYOUT, Ground, Pod
from bench.colocation_part import medians
from bench.koordlet import machine_ticks
from bench.latency_service import blocks_of
from bench.manager import server
from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE
from koord.host.cgroup import knob
from koord.koordlet.reporters.builders.node_conditions import FEW_CPUS
from koord.kube.client.typed_client import Client

ROUNDS = 6
SECONDS = 5.0  # of a turn: short, as others on this machine wait meanwhile
RATE = 200.0 * CPUS  # requests a second
WORK_S = 0.0015  # CPU time of one
SETTLE_S = 3.0  # that koordlet has to find the right quota
SERVICE_MILLI = round(RATE * WORK_S * 1000)
ALONE, UNMANAGED, ASKING, MANAGED = "alone", "unmanaged BestEffort", "unmanaged with requests", "managed"
GOAL_RATIO = 1.05 if CPUS >= FEW_CPUS else 1.2  # where a request meets batch work on half of the machine
GOAL = f"managed p99 at most {GOAL_RATIO} times alone, at more than 60 % machine CPU"
HOG = "while True: pass"
BY_QUOTA = CPUS < FEW_CPUS
POLICY = "cfsQuota" if BY_QUOTA else "idleCpuset"
SLO: dict[str, Any] = {
    "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": POLICY, "cpuSuppressThresholdPercent": 65},
    "cpuBurstStrategy": {"policy": "auto"},
    "resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}},
}


SERVICE = Pod("service", BURSTABLE, SERVICE_MILLI)
BATCH = Pod("batch", BEST_EFFORT, 0)
BATCH_ASKING = Pod("batch-asking", BURSTABLE, 1000)


@contextlib.contextmanager
def hogs(ground: Ground, pod: Pod | None) -> Iterator[None]:
    """As many busy loops as CPUs, in the pod's group."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(CPUS if pod is not None else 0):
            running.append(subprocess.Popen([sys.executable, "-c", HOG]))
            assert pod is not None
            ground.join(running[-1].pid, pod.container)
        yield
    finally:
        for one in running:
            one.kill()
            one.wait(timeout=10)


def start_service(ground: Ground, arguments: Sequence[str], blocks: int, seed: int) -> list[subprocess.Popen[str]]:
    """Start as many workers of the service as there are CPUs, in its pod; they wait for `serve`."""
    workers: list[subprocess.Popen[str]] = []
    for number in range(CPUS):
        command = [sys.executable, "-m", "bench.latency_service", *arguments]
        command += [f"--blocks={blocks}", f"--seed={seed * CPUS + number}"]
        workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        ground.join(workers[-1].pid, SERVICE.container)
    time.sleep(0.7)  # they must have been loaded
    return workers


def serve(workers: Sequence[subprocess.Popen[str]]) -> list[Any]:
    """Let the workers serve at once; return what all of them tell of their requests, the quickest first."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    return sorted(one for worker in workers for one in json.loads(worker.communicate(timeout=120)[0]))


def phase(ground: Ground, pod: Pod | None, blocks: int, seed: int, seconds: float) -> dict[str, float]:
    """One turn: the service's latencies, and what everybody used meanwhile."""
    workers = start_service(ground, [f"--rate={RATE / CPUS}", f"--seconds={seconds}"], blocks, seed)
    used, batch = ground.cpu_s(SERVICE.group), 0.0 if pod is None else ground.cpu_s(pod.group)
    began, machine = time.monotonic(), machine_ticks()
    latencies = serve(workers)
    elapsed = time.monotonic() - began
    whole, idle, _ = (after - before for after, before in zip(machine_ticks(), machine))
    cuts = statistics.quantiles(latencies, n=1000)
    return {
        "p50_ms": cuts[499],
        "p90_ms": cuts[899],
        "p99_ms": cuts[989],
        "requests": len(latencies),
        "machine_busy_percent": 100 * (1 - idle / whole),
        "service_cores": (ground.cpu_s(SERVICE.group) - used) / elapsed,
        "batch_cores": 0.0 if pod is None else (ground.cpu_s(pod.group) - batch) / elapsed,
        "load_average": os.getloadavg()[0],
    }


async def furnish(client: Client) -> None:
    """What koordlet needs to know of this machine and its two pods."""
    await create_node(client, SLO)
    limits = {"requests": {"cpu": f"{SERVICE_MILLI}m"}, "limits": {"cpu": f"{CPUS * 900}m"}}
    await create_pod(client, SERVICE, "LS", limits)
    await create_pod(client, BATCH, "BE", {})


def is_held(ground: Ground) -> bool:
    """Whether batch work has a quota or fewer CPUs and, where the kernel can, runs behind everybody else."""
    if BY_QUOTA:
        limited = ground.tree.value(knob.CPU_QUOTA, LAYOUT.qos_dir(BEST_EFFORT)) != "-1"
    else:
        limited = ground.tree.value(knob.CPUSET, BATCH.group) not in ("", f"0-{CPUS - 1}")
    can_idle = ground.tree.is_supported(knob.CPU_IDLE, BATCH.group)
    return limited and (not can_idle or ground.tree.value(knob.CPU_IDLE, BATCH.group) == "1")


async def turns(kubeconfig: Path, folder: Path, rounds: int, seconds: float) -> dict[str, list[dict[str, float]]]:
    blocks = blocks_of(WORK_S)
    found: dict[str, list[dict[str, float]]] = {ALONE: [], UNMANAGED: [], ASKING: [], MANAGED: []}
    ground = Ground((SERVICE, BATCH, BATCH_ASKING))
    with ground.laid():
        async with connect(kubeconfig) as client:
            await furnish(client)
        for number in range(rounds):
            for name, pod in ((UNMANAGED, BATCH), (ALONE, None), (ASKING, BATCH_ASKING)):
                with hogs(ground, pod):
                    found[name].append(phase(ground, pod, blocks, number, seconds))
            async with koordlet(kubeconfig, folder):
                await until(lambda: is_held(ground), "batch work is suppressed and idle")
                with hogs(ground, BATCH):
                    await asyncio.sleep(SETTLE_S)
                    found[MANAGED].append(phase(ground, BATCH, blocks, number, seconds))
    return found


def run(rounds: int = ROUNDS, seconds: float = SECONDS) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {"skipped": "cgroups need root"}
    folder = Path(tempfile.mkdtemp(prefix="colocation-"))
    try:
        with server(folder) as kubeconfig:
            found = asyncio.run(turns(kubeconfig, folder, rounds, seconds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    middle = medians(found)
    alone, managed = middle[ALONE], middle[MANAGED]
    return {
        "cpus": CPUS,
        "requests_per_second": RATE,
        "cpu_ms_per_request": WORK_S * 1000,
        "policy": POLICY,
        "rounds": rounds,
        "seconds": seconds,
        "median": middle,
        "p99_against_alone": {name: one["p99_ms"] / alone["p99_ms"] for name, one in middle.items()},
        "p99_ms_of_each_round": {name: [one["p99_ms"] for one in rows] for name, rows in found.items()},
        "load_average_of_each_round": [rows["load_average"] for rows in found[ALONE]],
        "goal": GOAL,
        "goal_met": managed["p99_ms"] <= GOAL_RATIO * alone["p99_ms"] and managed["machine_busy_percent"] > 60,
        "note": "other work on the machine is measured with it: see load_average and alone's machine_busy_percent",
    }
