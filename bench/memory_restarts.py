"""Memory over restarts of the API server, which is killed and started again from its data directory.

koord-scheduler, koord-manager, koord-descheduler and koordlet run as processes of their own beside it; between two
restarts pods come and go. koordlet has a fake node in a folder, with pods that nobody else touches. Before the first
reading as many pods are scheduled as fill the scheduler's log of attempts and its cache of events, and two restarts are
not counted, after which connections and heaps have their size. Programs map the buffers of connections
(`koord.telemetry.process.map_large_blocks`); in the heap each new connection would touch other pages. koordlet's
windows of samples are half an hour long and fill during the run: by 16 bytes a sample, one every five seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from bench.memory_churn import pod
from bench.memory_reading import growth, rss_mb
from koord.api.koordinator.protocol import BEST_EFFORT
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.host.filesystem import HostPaths
from koord.kube.client.typed_client import Client
from koord.kube.config.loader import load_connection
from koord.kube.transport.http import HttpTransport
from koord.telemetry.clock import WallClock
from tests.host.fake_machine import FakeMachine
from tests.koord_up_process import KoordUpProcess, start_koord_up
from tests.koordlet.agent_fixture import MEMINFO, expect_ok
from tools.controlplane import free_port

PROGRAMS = ("koord-scheduler", "koord-manager", "koord-descheduler", "koordlet")
RESTARTS, UNCOUNTED_RESTARTS = 20, 2
PODS_BETWEEN_RESTARTS = 200
# Of so many pods. Equal pods that come at once leave short records, of which the scheduler's log of attempts holds
# about 6,800; its cache of events holds 4,096.
FILL_WAVES = 36
SIMULATED_NODES = 20
AGENT_NODE, AGENT_PODS, AGENT_CPUS = "agent", 12, 4


class RestartWorkload:
    """Pods that come and go, some of them on koordlet's node."""

    def __init__(self, kubeconfig: Path, machine: FakeMachine) -> None:
        self._kubeconfig = kubeconfig
        self._machine = machine
        self._groups: dict[str, str] = {}
        self._wave = 0

    @contextlib.asynccontextmanager
    async def _client(self) -> Any:
        clock = WallClock()
        transport = HttpTransport(load_connection({}, clock, path=str(self._kubeconfig)), clock)
        client = Client(transport, clock=clock, qps=0, burst=0)
        try:
            yield client
        finally:
            await client.close()

    async def register_agent_node(self) -> None:
        amounts = {"cpu": str(AGENT_CPUS), "memory": "16Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        async with self._client() as client:
            await expect_ok(client.create(NODES, {"metadata": {"name": AGENT_NODE}, "spec": {"unschedulable": True}}))
            await expect_ok(client.patch(NODES, AGENT_NODE, {"status": status}, kind="merge", subresource="status"))

    async def run_wave(self) -> None:
        async with self._client() as client:
            await self._replace_agent_pods(client)
            names = [f"w{self._wave}-{number}" for number in range(PODS_BETWEEN_RESTARTS)]
            await asyncio.gather(*(expect_ok(client.create(PODS, pod(name))) for name in names))
            for _ in range(1200):
                listed: Any = await expect_ok(client.list(PODS, "default"))
                if all(one.spec.node_name for one in listed.items):
                    break
                await asyncio.sleep(0.1)
            else:
                raise RuntimeError("pods were not scheduled within two minutes")
            await asyncio.gather(*(client.delete(PODS, name, "default", grace_seconds=0) for name in names))
        self._wave += 1

    async def _replace_agent_pods(self, client: Client) -> None:
        for name, group in self._groups.items():
            self._machine.remove(group)
            await client.delete(PODS, name, "default", grace_seconds=0)
        self._groups = {}
        for number in range(AGENT_PODS):
            name = f"agent-{self._wave}-{number}"
            spec = {"nodeName": AGENT_NODE, "containers": [{"name": "main", "image": "scratch"}]}
            metadata = {"name": name, "namespace": "default", "labels": {"koordinator.sh/qosClass": "BE"}}
            created = await expect_ok(client.create(PODS, {"metadata": metadata, "spec": spec}))
            container = f"containerd://{name}"
            self._groups[name] = self._machine.pod(BEST_EFFORT, created.metadata.uid, container)
            running = {"name": "main", "image": "scratch", "imageID": "", "ready": True, "restartCount": 0}
            running |= {"containerID": container, "state": {"running": {}}}
            status = {"phase": "Running", "qosClass": BEST_EFFORT, "containerStatuses": [running]}
            await client.patch(PODS, name, {"status": status}, "default", kind="merge", subresource="status")


def _make_machine(root: Path) -> FakeMachine:
    # Of version 1: its files read back as they were written, without a kernel that completes "max" of cpu.max.
    machine = FakeMachine(root, 1)
    machine.put("proc/sys/kernel/random/boot_id", "boot-one\n")
    machine.put(
        "proc/stat", "cpu 100 0 0 0 0 0 0 0\n" + "".join(f"cpu{n} 25 0 0 0 0 0 0 0\n" for n in range(AGENT_CPUS))
    )
    machine.put("proc/meminfo", MEMINFO.format(free=12 * 1024 * 1024))
    machine.put("proc/cpuinfo", "processor: 0\nvendor_id: GenuineIntel\nmodel name: Test\nflags: sse\n")
    machine.put("sys/devices/system/cpu/online", f"0-{AGENT_CPUS - 1}\n")
    machine.put("sys/devices/system/node/node0/cpulist", f"0-{AGENT_CPUS - 1}\n")
    machine.put("sys/bus/node/devices/node0/meminfo", "Node 0 MemTotal: 16777216 kB\nNode 0 MemFree: 8388608 kB\n")
    machine.put("var/lib/kubelet/cpu_manager_state", '{"policyName":"none","defaultCpuSet":""}')
    return machine


def _koordlet_flags(kubeconfig: Path, folder: Path, paths: HostPaths) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--addr=127.0.0.1:{free_port()}",
        "--pod-source=apiserver",
        "--disable-query-kubelet-config",
        "--collect-res-used-interval=5s",
        "--feature-gates=RdtResctrl=false",
        f"--cgroup-root-dir={paths.cgroup}",
        f"--proc-root-dir={paths.proc}",
        f"--sys-root-dir={paths.sys}",
        f"--sys-fs-root-dir={paths.sys_fs}",
        f"--var-run-root-dir={paths.var_run}",
        f"--run-root-dir={paths.run}",
        f"--var-lib-kubelet-dir={paths.kubelet}",
        f"--state-dir={folder / 'koordlet-state'}",
        f"--audit-log-dir={folder / 'koordlet-audit'}",
        f"--prediction-checkpoint-filepath={folder / 'koordlet-prediction'}",
    ]


@contextlib.contextmanager
def _programs(
    kubeconfig: Path, folder: Path, paths: HostPaths, only: Collection[str]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    ports = [free_port() for _ in range(4)]
    scheduler = folder / "scheduler.yaml"
    scheduler.write_text(
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
        "koord-scheduler": ["koord_scheduler", f"--config={scheduler}", f"--port={ports[0]}", "--secure-port=0"],
        "koord-manager": [
            "koord_manager",
            f"--kubeconfig={kubeconfig}",
            f"--metrics-addr=127.0.0.1:{ports[1]}",
            f"--health-probe-addr=127.0.0.1:{ports[2]}",
            "--enable-leader-election=false",
            "--feature-gates=WebhookFramework=false",
        ],
        "koord-descheduler": ["koord_descheduler", f"--config={descheduler}", "--secure-port=0"],
        "koordlet": ["koordlet", *_koordlet_flags(kubeconfig, folder, paths)],
    }
    environ = {**os.environ, "NODE_NAME": AGENT_NODE}
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, (module, *flags) in commands.items():
            if name not in only:
                continue
            with (folder / f"{name}.log").open("wb") as log:
                command = [sys.executable, "-m", f"koord.cli.daemons.{module}", *flags]
                running[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
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
        str(SIMULATED_NODES),
        kubeconfig=folder / "kubeconfig",
    )


def restarts(count: int = RESTARTS, fill_waves: int = FILL_WAVES, only: Collection[str] = PROGRAMS) -> dict[str, Any]:
    """`only` names the programs that run beside the server; pods are scheduled by koord-scheduler, so it is one."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        machine = _make_machine(folder / "machine")
        server = _start_server(folder, port)
        workload = RestartWorkload(server.kubeconfig, machine)
        try:
            asyncio.run(workload.register_agent_node())
            with _programs(server.kubeconfig, folder, machine.paths, only) as running:
                for _ in range(fill_waves):
                    asyncio.run(workload.run_wave())
                for number in range(UNCOUNTED_RESTARTS + count):
                    server.stop(9)
                    time.sleep(1)  # so long it is away
                    server = _start_server(folder, port)
                    asyncio.run(workload.run_wave())
                    for program, process in running.items():
                        if process.poll() is not None:
                            raise RuntimeError((folder / f"{program}.log").read_text()[-3000:])
                        if number >= UNCOUNTED_RESTARTS:
                            found.setdefault(program, []).append(rss_mb(process.pid))
        finally:
            server.stop(9)
    filled = {"pods_scheduled_before": fill_waves * PODS_BETWEEN_RESTARTS, "restarts_not_counted": UNCOUNTED_RESTARTS}
    return {program: growth(values) for program, values in found.items()} | {"filled": filled}
