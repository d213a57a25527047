"""Hadoop's own ResourceManager and NodeManager on loopback, each in a JVM of its own, without HDFS and without root."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from koord.api.koordinator.yarn import YarnNodeId
from koord.wire.hadoop_rpc import RpcResponse
from koord.wire.hadoop_yarn import NodeReport
from koord.yarn.hadoop_config import HostPort, ResourceManagerAddress, YarnCluster
from koord.yarn.resource_manager import Caller, ResourceManagerClient, call
from tools.assets import yarn_folder
from tools.controlplane import free_port

PATIENCE_S = 150.0
HA_PROTOCOL = "org.apache.hadoop.ha.HAServiceProtocol"
RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
JAVA = ("java", "-Xmx160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
LOG4J = """\
log4j.rootLogger=WARN,c
log4j.appender.c=org.apache.log4j.ConsoleAppender
log4j.appender.c.layout=org.apache.log4j.PatternLayout
log4j.appender.c.layout.ConversionPattern=%d %p %c: %m%n
"""


def needs_yarn() -> pytest.MarkDecorator:
    """Skip where Hadoop or Java is missing, with the command that helps."""
    folder = yarn_folder()
    if shutil.which("java") is None:
        return pytest.mark.skip(reason="no Java: install a runtime of version 17 or newer")
    return pytest.mark.skipif(not folder.is_dir(), reason=f"no {folder}: python -m tools.assets yarn (needs Maven)")


class RealYarn:
    """RealYarn is one YARN cluster with one NodeManager. `managers` is 2 for a pair without ZooKeeper."""

    def __init__(self, folder: Path, managers: int, properties: dict[str, str]) -> None:
        self.folder = folder
        self._ids = [f"rm{number}" for number in range(1, managers + 1)]
        names = ("address", "admin.address", "scheduler.address", "resource-tracker.address", "webapp.address")
        self._ports = {one: {name: free_port() for name in names} for one in self._ids}
        self.node_id = YarnNodeId("localhost", free_port())
        self._web_ports = (free_port(), free_port())
        self._properties = properties
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def cluster(self) -> YarnCluster:
        return YarnCluster(
            "__default_yarn_cluster__",
            tuple(
                ResourceManagerAddress(
                    one if len(self._ids) > 1 else "",
                    HostPort("127.0.0.1", self._ports[one]["address"]),
                    HostPort("127.0.0.1", self._ports[one]["admin.address"]),
                )
                for one in self._ids
            ),
        )

    def client(self, user: str = "root", tokens: tuple[Any, ...] = ()) -> ResourceManagerClient:
        return ResourceManagerClient(self.cluster, Caller(user=user, random_bytes=os.urandom, tokens=tokens))

    def start_resource_manager(self, one: str = "rm1") -> None:
        self._start(one, RESOURCE_MANAGER, one)

    def start_node_manager(self) -> None:
        self._start("nm", NODE_MANAGER, "")

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL)
        for process in self._processes.values():
            process.wait()
        self._processes = {}
        for pid_file in (self.folder / "local").glob("nmPrivate/*/*/*.pid"):  # containers outlive their NodeManager
            try:
                os.killpg(int(pid_file.read_text()), signal.SIGKILL)
            except (ProcessLookupError, ValueError):
                continue

    async def report(self, client: ResourceManagerClient | None = None) -> NodeReport | None:
        """Return what the ResourceManager says of the NodeManager; None: it is not listed, or nobody answers."""
        listed = await (client or self.client()).nodes()
        found = listed if isinstance(listed, tuple) else ()
        return next((one for one in found if one.node_id and one.node_id.port == self.node_id.port), None)

    async def until_running(self) -> NodeReport:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = await self.report()
            if found is not None:
                return found
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            assert not dead, f"{dead} ended:\n{self.log(dead[0])}"
            await asyncio.sleep(0.2)
        raise AssertionError(f"no NodeManager registered:\n{self.log('nm')}\n{self.log('rm1')}")

    async def make_active(self, one: str) -> None:
        """Make a ResourceManager of a pair the active one; there is no ZooKeeper that would."""
        address = HostPort("127.0.0.1", self._ports[one]["admin.address"])
        caller = Caller(user="root", random_bytes=os.urandom)
        request = bytes.fromhex("0a020800")  # reqInfo{reqSource: by user}
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            outcome = await call(address, caller, HA_PROTOCOL, "transitionToActive", request)
            if isinstance(outcome, RpcResponse):
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"{one} did not become active: {outcome}")

    def submit_sleep(self, memory_mib: int, vcores: int = 1) -> str:
        """Start an application whose only container sleeps, and return its ID."""
        return self.submit("sleep 600", memory_mib, vcores)

    def submit(self, command: str, memory_mib: int, vcores: int = 1) -> str:
        """Start an application whose master is the command, and return its ID."""
        made = self._post("/ws/v1/cluster/apps/new-application", {})
        application: str = made["application-id"]
        self._post(
            "/ws/v1/cluster/apps",
            {
                "application-id": application,
                "application-name": "test",
                "am-container-spec": {"commands": {"command": command}},
                "max-app-attempts": 1,
                "resource": {"memory": memory_mib, "vCores": vcores},
            },
        )
        return application

    def state_of(self, application: str) -> str:
        port = self._ports["rm1"]["webapp.address"]
        url = f"http://127.0.0.1:{port}/ws/v1/cluster/apps/{application}/state"
        with urllib.request.urlopen(url, timeout=20) as answer:
            state: str = json.loads(answer.read())["state"]
        return state

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._ports['rm1']['webapp.address']}{path}?user.name=root"
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json", "Accept": "application/json"}
        request = urllib.request.Request(url, data, headers, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        made: dict[str, Any] = json.loads(text) if text.strip() else {}
        return made

    def _start(self, name: str, main: str, manager: str) -> None:
        conf = self.folder / f"conf-{name}"
        conf.mkdir(parents=True, exist_ok=True)
        own = {"yarn.resourcemanager.ha.id": manager} if manager and len(self._ids) > 1 else {}
        (conf / "yarn-site.xml").write_text(_site({**self._site(), **own}))
        (conf / "core-site.xml").write_text(_site({"fs.defaultFS": "file:///", "hadoop.tmp.dir": f"{self.folder}/tmp"}))
        (conf / "capacity-scheduler.xml").write_text(_site(CAPACITY_SCHEDULER))
        (conf / "log4j.properties").write_text(LOG4J)
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*JAVA, "-cp", f"{conf}:{yarn_folder()}/*", main],
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _site(self) -> dict[str, str]:
        rm, nm = "yarn.resourcemanager", "yarn.nodemanager"
        web, localizer = self._web_ports
        found = {
            f"{rm}.bind-host": "127.0.0.1",
            f"{rm}.connect.retry-interval.ms": "500",
            f"{rm}.nodemanagers.heartbeat-interval-ms": "200",
            "yarn.nm.liveness-monitor.expiry-interval-ms": "8000",
            f"{nm}.hostname": "127.0.0.1",
            f"{nm}.bind-host": "127.0.0.1",
            f"{nm}.address": f"127.0.0.1:{self.node_id.port}",
            f"{nm}.localizer.address": f"127.0.0.1:{localizer}",
            f"{nm}.webapp.address": f"127.0.0.1:{web}",
            f"{nm}.local-dirs": f"{self.folder}/local",
            f"{nm}.log-dirs": f"{self.folder}/logs",
            f"{nm}.resource.memory-mb": "1024",
            f"{nm}.resource.cpu-vcores": "1",
            f"{nm}.vmem-check-enabled": "false",
            f"{nm}.pmem-check-enabled": "false",
            f"{nm}.disk-health-checker.enable": "false",
            "yarn.scheduler.minimum-allocation-mb": "128",
            **self._properties,
        }
        if len(self._ids) == 1:
            found |= {f"{rm}.{name}": f"127.0.0.1:{port}" for name, port in self._ports["rm1"].items()}
            return found
        found |= {
            f"{rm}.ha.enabled": "true",
            f"{rm}.ha.rm-ids": ",".join(self._ids),
            f"{rm}.ha.automatic-failover.enabled": "false",
            f"{rm}.cluster-id": "pair",
            "yarn.client.failover-sleep-base-ms": "200",
            "yarn.client.failover-sleep-max-ms": "500",
        }
        for one in self._ids:
            found |= {f"{rm}.{name}.{one}": f"127.0.0.1:{port}" for name, port in self._ports[one].items()}
            found[f"{rm}.hostname.{one}"] = "127.0.0.1"
        return found


CAPACITY_SCHEDULER = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    # Without it a container of any size counts as one vcore.
    "yarn.scheduler.capacity.resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
}


@contextmanager
def real_yarn(folder: Path, *, managers: int = 1, properties: dict[str, str] | None = None) -> Iterator[RealYarn]:
    yarn = RealYarn(folder, managers, properties or {})
    try:
        yield yarn
    finally:
        yarn.stop()


def _site(properties: dict[str, str]) -> str:
    listed = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items()
    )
    return f"<configuration>{listed}</configuration>"
