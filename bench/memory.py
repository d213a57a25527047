"""What each program holds in memory: over twenty restarts of the API server, and over a virtual day of churn.

Restarts: koord-scheduler, koord-manager and koord-descheduler run as processes beside an API server with nodes, which
is killed and started again from its data directory; between two of them pods come and go. The figure is VmRSS, with
the first restarts left out, in which caches fill.

Churn: one process holds an API server, simulated nodes and one of the programs, in virtual time; a day's worth of pods
is created, scheduled and deleted. The server is part of what is measured, so that what grows there is seen too.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from koord.api.config import gates
from koord.api.config.gates import MANAGER_GATES
from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli.up import local_descheduler, local_scheduler
from koord.cli.up.local_manager import LocalManager
from koord.embedded.cluster import ClusterSettings, ComponentFactory, EmbeddedCluster
from koord.embedded.kubelet.fleet import FleetSettings, SimulatedFleet
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.client.typed_client import Client
from koord.kube.config.loader import load_connection
from koord.kube.transport.http import HttpTransport
from koord.manager.context import ManagerSettings
from koord.telemetry.clock import LoopClock, WallClock, run_virtual
from tests.koord_up_process import KoordUpProcess, start_koord_up
from tools.controlplane import free_port

RESTARTS, WARM_RESTARTS = 20, 4
PODS_BETWEEN_RESTARTS = 200
NODES = 20
HOURS, WARM_HOURS = 24, 4
PODS_PER_HOUR = 360
FLAT_PERCENT = 5.0


def rss_mb(pid: int | str = "self") -> float:
    (line,) = [row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def growth(values: list[float], warm: int) -> dict[str, Any]:
    """Compare the mean of the last quarter with that of the first quarter after the warm-up."""
    kept = values[warm:]
    quarter = max(1, len(kept) // 4)
    first, last = statistics.mean(kept[:quarter]), statistics.mean(kept[-quarter:])
    percent = round(100 * (last / first - 1), 1)
    return {
        "rss_mb": [round(value, 1) for value in values],
        "growth_percent": percent,
        "flat": percent <= FLAT_PERCENT,
    }


# Restarts ------------------------------------------------------------------------------------------------------------


def _pod(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
    spec = {"schedulerName": "koord-scheduler", "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def _pods_come_and_go(kubeconfig: Path, wave: int) -> None:
    clock = WallClock()
    transport = HttpTransport(load_connection({}, clock, path=str(kubeconfig)), clock)
    client = Client(transport, clock=clock, qps=0, burst=0)
    try:
        names = [f"w{wave}-{number}" for number in range(PODS_BETWEEN_RESTARTS)]
        await asyncio.gather(*(client.create(PODS, _pod(name)) for name in names))
        for _ in range(300):
            listed: Any = await client.list(PODS, "default")
            if all(pod.spec.node_name for pod in listed.items):
                break
            await asyncio.sleep(0.1)
        else:
            raise RuntimeError("pods were not scheduled within 30 s")
        await asyncio.gather(*(client.delete(PODS, name, "default", grace_seconds=0) for name in names))
    finally:
        await client.close()


@contextlib.contextmanager
def _programs(kubeconfig: Path, folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    ports = [free_port() for _ in range(5)]
    config = folder / "scheduler.yaml"
    config.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        f"clientConnection: {{kubeconfig: {kubeconfig}}}\nleaderElection: {{leaderElect: false}}\n"
        "profiles: [{schedulerName: koord-scheduler}]\n"
    )
    descheduler = folder / "descheduler.yaml"
    descheduler.write_text(
        "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\ndeschedulingInterval: 5s\n"
        f"clientConnection: {{kubeconfig: {kubeconfig}}}\nleaderElection: {{leaderElect: false}}\n"
        f"healthzBindAddress: 127.0.0.1:{ports[3]}\nmetricsBindAddress: 127.0.0.1:{ports[3]}\n"
    )
    commands = {
        "koord-scheduler": ["koord_scheduler", f"--config={config}", f"--port={ports[0]}", "--secure-port=0"],
        "koord-manager": [
            "koord_manager",
            f"--kubeconfig={kubeconfig}",
            f"--metrics-addr=127.0.0.1:{ports[1]}",
            f"--health-probe-addr=127.0.0.1:{ports[2]}",
            "--enable-leader-election=false",
            "--feature-gates=WebhookFramework=false",
        ],
        "koord-descheduler": ["koord_descheduler", f"--config={descheduler}", "--secure-port=0"],
    }
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, (module, *flags) in commands.items():
            log = (folder / f"{name}.log").open("wb")
            running[name] = subprocess.Popen(
                [sys.executable, "-m", f"koord.cli.daemons.{module}", *flags], stdout=log, stderr=log
            )
        yield running
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait(timeout=30)


def _start_server(folder: Path, port: int) -> KoordUpProcess:
    return start_koord_up(
        "--listen",
        f"127.0.0.1:{port}",
        "--data-dir",
        str(folder / "data"),
        "--components",
        "workloads,nodes",
        "--nodes",
        str(NODES),
        kubeconfig=folder / "kubeconfig",
    )


def restarts(count: int = RESTARTS) -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        server = _start_server(folder, port)
        try:
            with _programs(server.kubeconfig, folder) as running:
                time.sleep(5)
                for wave in range(count):
                    asyncio.run(_pods_come_and_go(server.kubeconfig, wave))
                    for program, process in running.items():
                        if process.poll() is not None:
                            raise RuntimeError((folder / f"{program}.log").read_text()[-3000:])
                        found.setdefault(program, []).append(rss_mb(process.pid))
                    server.stop(9)
                    time.sleep(1)
                    server = _start_server(folder, port)
        finally:
            server.stop(9)
    return {program: growth(values, WARM_RESTARTS) for program, values in found.items()}


# Churn ---------------------------------------------------------------------------------------------------------------


def _manager(context: Any) -> LocalManager:
    return LocalManager(context, ManagerSettings(gates=gates.default_feature_gates(MANAGER_GATES)))


PROGRAMS: dict[str, tuple[tuple[str, ComponentFactory], ...]] = {
    "API server and nodes": (),
    "koord-scheduler": (("scheduler", local_scheduler.make_scheduler),),
    "koord-manager": (("manager", _manager), ("scheduler", local_scheduler.make_scheduler)),
    "koord-descheduler": (
        ("scheduler", local_scheduler.make_scheduler),
        ("descheduler", local_descheduler.make_descheduler),
    ),
}


def churn(program: str, hours: int = HOURS) -> dict[str, Any]:
    values: list[float] = []

    async def main(clock: LoopClock) -> None:
        pool = SimulatedPool(name="node", count=NODES, cpu=32, memory="128Gi")
        cluster = EmbeddedCluster(
            ClusterSettings(http=False, seed=1),
            [
                ("workloads", lambda c: ControllerManager(c.client, c.informers, c.clock, c.seed)),
                (
                    "nodes",
                    lambda c: SimulatedFleet(
                        c.client, c.informers, c.clock, c.seed, (pool,), FleetSettings(reports_node_metrics=True)
                    ),
                ),
                *PROGRAMS[program],
            ],
            clock=clock,
        )
        await cluster.start()
        assert cluster.client is not None
        pause_s = 3600 / PODS_PER_HOUR
        for number in range(hours * PODS_PER_HOUR):
            await cluster.client.create(PODS, _pod(f"p{number}"))
            if number >= PODS_PER_HOUR // 2:
                await cluster.client.delete(PODS, f"p{number - PODS_PER_HOUR // 2}", "default", grace_seconds=0)
            await clock.sleep(pause_s)
            if (number + 1) % PODS_PER_HOUR == 0:
                gc.collect()
                values.append(rss_mb())
        await cluster.stop()

    run_virtual(main)
    return growth(values, WARM_HOURS)


def _churn_in_a_process(program: str) -> dict[str, Any]:
    """Each program in a process of its own, so that none inherits the memory of another."""
    code = f"import json; from bench.memory import churn; print(json.dumps(churn({program!r})))"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def run() -> dict[str, Any]:
    return {
        "restarts": restarts(),
        "virtual_hours_of_churn": {program: _churn_in_a_process(program) for program in PROGRAMS},
    }
