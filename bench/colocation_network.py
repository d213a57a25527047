"""A service that sends and answers over a wire beside batch work that fills it.

Pods are at a bridge of a node whose wire has a known rate and a queue of 20 ms. The service sends a part of the wire's
rate and exchanges small messages; a batch pod sends as fast as it can over eight connections: not at all, managed by
nobody, and under koordlet with classes of traffic (`networkQOS`, gate TCNetworkQoS). The three take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.agent_node import connect, create_node, create_pod, koordlet, until
from bench.cgroup_pods import Ground, Pod, tell, wait_ready
from bench.colocation_part import ALONE, MANAGED, MORE, STATES, Measure, PartResult, Skipped, medians
from bench.manager import server
from bench.pod_network import SERVER, NetworkRefused, PodNetwork
from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE

M = 10**6
WIRE_BITS = 400 * M
SERVICE_BITS = 160 * M
PINGS = 200.0
FLOODS = 8
ROUNDS = 2
SECONDS = 4.0
WARM_S = 1.0  # of the flood, until it has filled the wire's queue
GATES = "TCNetworkQoS=true,BECPUSuppress=false,RdtResctrl=false"
SLO: dict[str, Any] = {
    # A little less than the wire, so that packets wait where there are classes.
    "systemStrategy": {"totalNetworkBandwidth": str(WIRE_BITS * 95 // 100)},
    "resourceQOSStrategy": {
        "policies": {"netQOSPolicy": "tc"},
        "lsClass": {"networkQOS": {"enable": True, "egressRequest": 60, "egressLimit": 100}},
        "beClass": {"networkQOS": {"enable": True, "egressRequest": 10, "egressLimit": 100}},
    },
}
SERVICE = Pod("service", BURSTABLE, 1000)
BATCH = Pod("batch", BEST_EFFORT)


def counted(sink: subprocess.Popen[str]) -> dict[str, Any]:
    tell(sink)
    assert sink.stdout is not None
    found: dict[str, Any] = json.loads(sink.stdout.readline())
    return found


def phase(network: PodNetwork, sink: subprocess.Popen[str], *, batch: bool) -> dict[str, float]:
    """One turn: what came of each pod, and how long the service's messages took."""
    with contextlib.ExitStack() as stack:

        def load(where: str, *words: str) -> subprocess.Popen[str]:
            process = network.load(where, *words, f"--target={SERVER}")
            stack.callback(process.wait, 30)
            stack.callback(process.kill)
            return process

        whole = SECONDS + 2 * WARM_S
        sender = load(SERVICE.name, "send", f"--rate={SERVICE_BITS}", f"--seconds={whole}")
        pinger = load(SERVICE.name, "ping", f"--rate={PINGS}", f"--seconds={SECONDS}")
        flood = load(BATCH.name, "send", f"--seconds={whole}", f"--connections={FLOODS}")
        for one in (sender, pinger, flood):
            wait_ready(one)
        tell(sender)
        if batch:
            tell(flood)
        time.sleep(WARM_S)
        before = counted(sink)
        tell(pinger)
        took = json.loads(pinger.communicate(timeout=60)[0])
        after = counted(sink)
    elapsed = after["at_s"] - before["at_s"]
    sent = {
        name: (after["bytes"].get(address, 0) - before["bytes"].get(address, 0)) * 8 / elapsed / M
        for name, address in network.address.items()
    }
    return {
        "service_mbit_s": sent[SERVICE.name],
        "batch_mbit_s": sent[BATCH.name],
        "message_ms_p50": statistics.median(took),
        "message_ms_p99": statistics.quantiles(took, n=100)[98],
    }


async def turns(kubeconfig: Path, folder: Path, network: PodNetwork) -> tuple[dict[str, list[dict[str, float]]], int]:
    found: dict[str, list[dict[str, float]]] = {state: [] for state in STATES}
    ground = Ground((SERVICE, BATCH))
    before = network.qdiscs()
    with contextlib.ExitStack() as stack:
        stack.enter_context(ground.laid())
        async with connect(kubeconfig) as client:
            await create_node(client, SLO)
            await create_pod(client, SERVICE, "LS", {"requests": {"cpu": "1"}}, ip=network.address[SERVICE.name])
            await create_pod(client, BATCH, "BE", {}, ip=network.address[BATCH.name])
        sink = network.load("server", "sink")
        stack.callback(sink.kill)
        wait_ready(sink)
        for _ in range(ROUNDS):
            for state in STATES:
                async with contextlib.AsyncExitStack() as managed:
                    if state == MANAGED:
                        await managed.enter_async_context(koordlet(kubeconfig, folder, GATES))
                        await until(lambda: has_filters(network), "pods have their classes")
                    found[state].append(await asyncio.to_thread(phase, network, sink, batch=state != ALONE))
                if network.qdiscs() != before:
                    raise RuntimeError(f"the qdisc that was there did not come back: {network.qdiscs()}")
    return found, ground.tree.version


def has_filters(network: PodNetwork) -> bool:
    shown = network.filters()
    return all(flow in shown for flow in ("flowid 1:3", "flowid 1:4"))


def run() -> PartResult | Skipped:
    if os.geteuid() != 0:
        return Skipped(part="network", reason="namespaces need root")
    network = PodNetwork(WIRE_BITS, (SERVICE.name, BATCH.name))
    folder = Path(tempfile.mkdtemp(prefix="koord-network-"))
    try:
        with network.made(), server(folder) as kubeconfig:
            rounds, version = asyncio.run(turns(kubeconfig, folder, network))
    except NetworkRefused as refused:
        return Skipped(part="network", reason=str(refused))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = medians(rounds)
    return PartResult(
        part="network",
        goal="the service sends at least 90 % of what it sends alone",
        goal_met=found[MANAGED]["service_mbit_s"] >= 0.9 * found[ALONE]["service_mbit_s"],
        charted=2,
        measures=(
            Measure.of("the service sends", "Mbit/s", found, "service_mbit_s", better=MORE),
            Measure.of("p99 of its messages there and back", "ms", found, "message_ms_p99"),
            Measure.of("batch work sends", "Mbit/s", found, "batch_mbit_s", better=MORE),
        ),
        details={
            "cgroup_version": version,
            "wire_mbit_s": WIRE_BITS / M,
            "service_offers_mbit_s": SERVICE_BITS / M,
            "batch_connections": FLOODS,
            "rounds": rounds,
        },
    )
