"""A real kube-apiserver and etcd with simulated nodes, two replicas of koord's programs as processes, and faults.

Nobody is asked how it fares: the observer reads the cluster alone, over a connection of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from koord.api.config.scheduler import shipped
from koord.api.koordinator.custom_kinds import ELASTIC_QUOTAS, POD_MIGRATION_JOBS
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.api.model import to_dict
from koord.embedded.kubelet.fleet import FleetSettings, SimulatedFleet
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.client.typed_client import Client
from koord.kube.config.loader import load_connection
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.http import HttpTransport
from koord.telemetry.clock import WallClock
from tests.real.chaos.tcp_proxy import TcpProxy
from tests.real.kubectl import kubectl
from tests.simulation.observer import Observer
from tests.simulation.workload import POOL
from tools.controlplane import ControlPlane, free_port

QUICK_ELECTION = {"leaderElect": True, "leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms"}
LEASE_S = 4.0


class ProgramReplica:
    """One replica of a program: a process, and the next one after it was killed or has ended."""

    def __init__(self, name: str, command: list[str], environ: dict[str, str], log: Path) -> None:
        self.name = name
        self._command = command
        self._environ = environ
        self.log = log
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.starts += 1
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self._command, env={**os.environ, **self._environ}, stdout=out, stderr=subprocess.STDOUT
            )

    def send(self, number: int) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)

    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(timeout=30)


class ChaosCluster:
    def __init__(self, plane: ControlPlane, folder: Path, seed: int) -> None:
        self.plane = plane
        self.chance = random.Random(seed)
        self.clock = WallClock()
        self.observer = Observer(self.clock, [])
        self.faults: Counter[str] = Counter()
        self._folder = folder
        where = urlsplit(plane.url)
        assert where.hostname is not None
        assert where.port is not None
        self.proxy = TcpProxy(where.hostname, where.port)
        connection = load_connection({}, self.clock, path=str(plane.kubeconfig))
        self.client = Client(HttpTransport(connection, self.clock), clock=self.clock, qps=0, burst=0)
        self._informers = InformerFactory(self.client, self.clock, seed=seed)
        self._controllers = ControllerManager(self.client, self._informers, self.clock, seed)
        self._fleet = SimulatedFleet(
            self.client, self._informers, self.clock, seed, (POOL,), FleetSettings(reports_node_metrics=True)
        )
        self.replicas: list[ProgramReplica] = []

    async def start(self) -> None:
        self._observe()
        await self.proxy.start()
        await self._controllers.start()
        await self._fleet.start()
        self._informers.start()
        self.replicas = [
            replica for number in range(2) for replica in (self._scheduler(number), self._descheduler(number))
        ]
        self.replicas += [self._manager(number) for number in range(2)]
        for replica in self.replicas:
            replica.start()

    async def stop(self) -> None:
        for replica in self.replicas:
            replica.stop()
        await self._controllers.stop()
        await self._fleet.stop()
        await self._informers.stop()
        await self.client.close()
        await self.proxy.stop()

    def _observe(self) -> None:
        handlers: tuple[tuple[Any, Callable[[str, dict[str, Any]], None]], ...] = (
            (NODES, self.observer.on_node),
            (ELASTIC_QUOTAS, self.observer.on_quota),
            (PODS, self.observer.on_pod),
            (POD_MIGRATION_JOBS, self.observer.on_job),
        )
        for resource, handler in handlers:
            self._informers.for_resource(resource).add_event_handler(_observing(handler))

    # Programs ----------------------------------------------------------------------------------------------------

    def _kubeconfig(self) -> Path:
        path = self._folder / "proxied.kubeconfig"
        config = json.loads(self.plane.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.proxy.port}"
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path

    def _replica(self, name: str, module: str, *flags: str, **environ: str) -> ProgramReplica:
        command = [sys.executable, "-m", f"koord.cli.daemons.{module}", *flags]
        return ProgramReplica(name, command, environ, self._folder / f"{name}.log")

    def _scheduler(self, number: int) -> ProgramReplica:
        whole = to_dict(shipped.configuration())
        config = {
            **whole,
            "leaderElection": {**whole["leaderElection"], **QUICK_ELECTION},
            "clientConnection": {"kubeconfig": str(self._kubeconfig()), "qps": 1000, "burst": 1000},
        }
        file = self._folder / f"scheduler-{number}.yaml"
        file.write_text(yaml.safe_dump(config))
        flags = (f"--config={file}", "--address=127.0.0.1", f"--port={free_port()}", "--secure-port=0")
        return self._replica(f"koord-scheduler-{number}", "koord_scheduler", *flags)

    def _descheduler(self, number: int) -> ProgramReplica:
        address = f"127.0.0.1:{free_port()}"
        config = {
            "apiVersion": "descheduler/v1alpha2",
            "kind": "DeschedulerConfiguration",
            "deschedulingInterval": "5s",
            "leaderElection": {**QUICK_ELECTION, "resourceNamespace": "koordinator-system"},
            "clientConnection": {"kubeconfig": str(self._kubeconfig())},
            "healthzBindAddress": address,
            "metricsBindAddress": address,
        }
        file = self._folder / f"descheduler-{number}.yaml"
        file.write_text(yaml.safe_dump(config))
        return self._replica(f"koord-descheduler-{number}", "koord_descheduler", f"--config={file}", "--secure-port=0")

    def _manager(self, number: int) -> ProgramReplica:
        flags = (
            f"--metrics-addr=127.0.0.1:{free_port()}",
            f"--health-probe-addr=127.0.0.1:{free_port()}",
            "--feature-gates=WebhookFramework=false",
        )
        return self._replica(f"koord-manager-{number}", "koord_manager", *flags, KUBECONFIG=str(self._kubeconfig()))

    # Faults ------------------------------------------------------------------------------------------------------

    async def fault(self) -> None:
        """Cause one fault and wait until its cause is gone again."""
        kinds = {
            self._kill: 5,
            self._stop: 4,
            self._cut: 3,
            self._refuse: 2,
            self._slow: 2,
            self._restart_apiserver: 1,
            self._restart_etcd: 1,
        }
        (kind,) = self.chance.choices(list(kinds), list(kinds.values()))
        self.faults[kind.__name__.lstrip("_")] += 1
        await kind()
        self.revive()

    def revive(self) -> None:
        """Start what has ended, as a kubelet does: a program ends by itself when it has lost its lease."""
        for replica in self.replicas:
            if replica.ended():
                replica.start()

    async def _kill(self) -> None:
        self.chance.choice(self.replicas).send(signal.SIGKILL)
        await asyncio.sleep(self.chance.uniform(0.1, 2.0))

    async def _stop(self) -> None:
        replica = self.chance.choice(self.replicas)
        replica.send(signal.SIGSTOP)
        await asyncio.sleep(self.chance.uniform(0.5, 2 * LEASE_S))
        replica.send(signal.SIGCONT)

    async def _cut(self) -> None:
        self.proxy.cut()

    async def _refuse(self) -> None:
        self.proxy.refuses = True
        self.proxy.cut()
        await asyncio.sleep(self.chance.uniform(0.5, 6.0))
        self.proxy.refuses = False

    async def _slow(self) -> None:
        self.proxy.delay_s = self.chance.uniform(0.05, 0.5)
        await asyncio.sleep(self.chance.uniform(2.0, 6.0))
        self.proxy.delay_s = 0.0

    async def _restart_apiserver(self) -> None:
        await asyncio.to_thread(self._restart, "kube-apiserver")

    async def _restart_etcd(self) -> None:
        await asyncio.to_thread(self._restart, "etcd")

    def _restart(self, name: str) -> None:
        self.plane.kill(name)
        time.sleep(self.chance.uniform(0.1, 2.0))
        self.plane.start(name)
        self.plane.wait()


def _observing(handler: Callable[[str, dict[str, Any]], None]) -> Callable[[ObjectChange[Any]], None]:
    return lambda change: handler("DELETED" if change.kind == "deleted" else "MODIFIED", to_dict(change.object))


@asynccontextmanager
async def chaos_cluster(plane: ControlPlane, folder: Path, seed: int) -> AsyncIterator[ChaosCluster]:
    cluster = ChaosCluster(plane, folder, seed)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


def install(plane: ControlPlane, folder: Path) -> None:
    """Install CRDs, namespace and priority classes, as `koord manifests` has them."""
    parts = ("namespace", "crds", "settings")
    for command in [["manifests", "--component", part] for part in parts]:
        made = subprocess.run([sys.executable, "-m", "koord", *command], capture_output=True, text=True, check=True)
        (folder / "objects.yaml").write_text(made.stdout)
        said = kubectl(
            plane.kubeconfig, "apply", "--server-side", "--force-conflicts", "-f", str(folder / "objects.yaml")
        )
        assert said.code == 0, said.err
