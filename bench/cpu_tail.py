"""The slowest requests of a service beside batch work, by cpuSuppressPolicy, on this machine's cgroups.

One koordlet runs all the time; between turns its NodeSLO changes. Turns alternate, so that every round has the service
alone beside each policy, and medians over the rounds are told. Each request also says how long it was runnable without
a CPU: before it ran (somebody else had the CPU that it woke up on) and while it ran (somebody took it away). A second
part steps the service's load from 10 % to 60 % of the machine and looks at the five seconds after.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.agent_node import NODE, connect, create_node, create_pod, koordlet, until
from bench.cgroup_pods import CPUS, LAYOUT, Ground
from bench.colocation import BATCH, SERVICE, SERVICE_MILLI, WORK_S, hogs, serve, start_service
from bench.colocation_part import medians
from bench.koordlet import machine_ticks
from bench.latency_service import blocks_of
from bench.manager import server
from koord.api.koordinator.custom_kinds import NODE_SLOS
from koord.api.koordinator.protocol import BEST_EFFORT
from koord.host.cgroup import knob
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap

ROUNDS = 8
STEP_ROUNDS = 4
SECONDS = 5.0
SETTLE_S = 3.0
LOAD = 0.30  # of the machine
STEP_FROM, STEP_TO, STEP_BEFORE_S = 0.10, 0.60, 4.0
ALONE, UNMANAGED, CPUSET, QUOTA, IDLE_CPUSET = "alone", "unmanaged", "cpuset", "cfsQuota, idle", "idleCpuset"
_IDLE = {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}
_AWAKE = {"beClass": {"cpuQOS": {"enable": False}}}


def node_slo(policy: str, *, idle: bool = False) -> dict[str, Any]:
    threshold = {"enable": bool(policy), "cpuSuppressPolicy": policy or "cpuset", "cpuSuppressThresholdPercent": 65}
    return {"resourceUsedThresholdWithBE": threshold, "resourceQOSStrategy": _IDLE if idle else _AWAKE}


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    slo: dict[str, Any]
    batch: bool


TURNS = {
    ALONE: Turn(slo=node_slo(""), batch=False),
    UNMANAGED: Turn(slo=node_slo(""), batch=True),
    CPUSET: Turn(slo=node_slo("cpuset"), batch=True),
    QUOTA: Turn(slo=node_slo("cfsQuota", idle=True), batch=True),
    IDLE_CPUSET: Turn(slo=node_slo("idleCpuset"), batch=True),
}


def measure(ground: Ground, arguments: Sequence[str], blocks: int, seed: int) -> dict[str, float]:
    """Run the service once and return its latencies and what everybody used meanwhile."""
    workers = start_service(ground, ["--waits", *arguments], blocks, seed)
    began, machine, batch = time.monotonic(), machine_ticks(), ground.cpu_s(BATCH.group)
    requests = serve(workers)
    elapsed, batch = time.monotonic() - began, ground.cpu_s(BATCH.group) - batch
    whole, idle, stolen = (after - before for after, before in zip(machine_ticks(), machine, strict=True))
    tail = requests[len(requests) * 99 // 100 :]
    return {
        **{f"p{name}_ms": requests[int(len(requests) * share)][0] for name, share in _QUANTILES.items()},
        "wake_wait_p99_ms": sorted(one[1] for one in requests)[len(requests) * 99 // 100],
        "tail_wake_wait_ms": statistics.fmean(one[1] for one in tail),
        "tail_run_wait_ms": statistics.fmean(one[2] for one in tail),
        "requests": len(requests),
        "machine_busy_percent": 100 * (1 - idle / whole),
        "steal_percent": 100 * stolen / whole,
        "batch_cores": batch / elapsed,
    }


_QUANTILES = {"50": 0.5, "90": 0.9, "99": 0.99, "999": 0.999}


def rate_of(load: float) -> float:
    """Requests a second of one worker, of which there are as many as CPUs."""
    return load / WORK_S


class TailBench:
    """The machine with its two pods, and the turns on it."""

    def __init__(self, client: Client, ground: Ground) -> None:
        self._client = client
        self._ground = ground
        self._blocks = blocks_of(WORK_S)

    async def turn(self, name: str, arguments: Sequence[str], seed: int) -> dict[str, float]:
        turn = TURNS[name]
        unwrap(await self._client.patch(NODE_SLOS, NODE, {"spec": turn.slo}, kind="merge"))
        await until(lambda: self._is_applied(name), f"koordlet applies what {name} needs")
        with hogs(self._ground, BATCH if turn.batch else None):
            await asyncio.sleep(SETTLE_S if turn.batch else 0.5)
            return await asyncio.to_thread(measure, self._ground, arguments, self._blocks, seed)

    def _is_applied(self, name: str) -> bool:
        tree, top = self._ground.tree, LAYOUT.qos_dir(BEST_EFFORT)
        idle = tree.value(knob.CPU_IDLE, BATCH.group) == "1"
        quota = tree.value(knob.CPU_QUOTA, top) != "-1"
        return (idle, quota) == (name in (QUOTA, IDLE_CPUSET), name == QUOTA)


async def turns(kubeconfig: Path, folder: Path, rounds: int, step_rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    ground = Ground((SERVICE, BATCH))
    steady: dict[str, list[dict[str, float]]] = {name: [] for name in TURNS}
    stepped: dict[str, list[dict[str, float]]] = {name: [] for name in (ALONE, CPUSET, IDLE_CPUSET)}
    with ground.laid():
        async with connect(kubeconfig) as client, koordlet(kubeconfig, folder):
            await create_node(client, node_slo(""))
            limits = {"requests": {"cpu": f"{SERVICE_MILLI}m"}, "limits": {"cpu": f"{CPUS * 900}m"}}
            await create_pod(client, SERVICE, "LS", limits)
            await create_pod(client, BATCH, "BE", {})
            bench = TailBench(client, ground)
            for number in range(rounds):
                for name, found in steady.items():
                    given = [f"--rate={rate_of(LOAD)}", f"--seconds={SECONDS}"]
                    found.append(await bench.turn(name, given, number))
            for number in range(step_rounds):
                for name, found in stepped.items():
                    given = [f"--rate={rate_of(STEP_TO)}", f"--seconds={SECONDS}"]
                    given += [f"--rate-before={rate_of(STEP_FROM)}", f"--seconds-before={STEP_BEFORE_S}"]
                    found.append(await bench.turn(name, given, number))
    return steady, stepped


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return the medians, and what they are against the service alone."""
    median = medians(found)
    alone = median[ALONE]
    return {
        "median": median,
        "against_alone": {
            name: {key: one[key] / alone[key] for key in ("p50_ms", "p99_ms", "p999_ms")}
            for name, one in median.items()
        },
        "p99_ms_of_each_round": {name: [one["p99_ms"] for one in rows] for name, rows in found.items()},
    }


def run(rounds: int = ROUNDS, step_rounds: int = STEP_ROUNDS) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {"skipped": "cgroups need root"}
    folder = Path(tempfile.mkdtemp(prefix="cpu-tail-"))
    try:
        with server(folder) as kubeconfig:
            steady, stepped = asyncio.run(turns(kubeconfig, folder, rounds, step_rounds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    told = {
        "cpus": CPUS,
        "kernel": os.uname().release,
        "cgroup_version": 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1,
        "service_load_percent": 100 * LOAD,
        "cpu_ms_per_request": 1000 * WORK_S,
        "rounds": rounds,
        "seconds": SECONDS,
        "steady": summary(steady),
        "goal": "idleCpuset at most 1.05 times alone at p99 and 1.15 at p99.9 with 60 % of 16 CPUs busy; 1.2 on 2 CPUs",
    }
    if step_rounds:
        told["step"] = {"from": STEP_FROM, "to": STEP_TO, "rounds": step_rounds, **summary(stepped)}
    return told
