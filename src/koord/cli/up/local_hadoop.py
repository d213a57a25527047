"""This module finds Hadoop on this machine, and runs a ResourceManager and a NodeManager of YARN on loopback for
`koord up --demo yarn`. They are Hadoop's own programs, each in a JVM, without HDFS and without root.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from koord.api.koordinator.yarn import DEFAULT_CLUSTER_ID
from koord.wire.hadoop_yarn import NodeReport
from koord.yarn.hadoop_config import HostPort, ResourceManagerAddress, YarnCluster
from koord.yarn.resource_manager import Caller, ResourceManagerClient

HADOOP_HOME, JAVA_HOME = "HADOOP_HOME", "JAVA_HOME"
USER = "koord"
_RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_JAR = "hadoop-yarn-server-resourcemanager-*.jar"
# Where Hadoop's distribution has its jars, below share/hadoop. Without the timeline service no ResourceManager starts.
_SHARES = ("common", "common/lib", "hdfs", "hdfs/lib", "yarn", "yarn/lib", "yarn/timelineservice")
_JVM = (
    *("-Xmx160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    "--add-opens=java.base/java.lang=ALL-UNNAMED",  # Guice of Hadoop 3.3 and 3.4, on Java 17
)
_LOG4J = """\
log4j.rootLogger=WARN,c
log4j.appender.c=org.apache.log4j.ConsoleAppender
log4j.appender.c.layout=org.apache.log4j.PatternLayout
log4j.appender.c.layout.ConversionPattern=%d %p %c: %m%n
"""
_CAPACITY_SCHEDULER = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    # Without it a container of any size counts as one vcore.
    "yarn.scheduler.capacity.resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
}
_RM_PORTS = ("address", "admin.address", "scheduler.address", "resource-tracker.address", "webapp.address")
_NM_PORTS = ("address", "localizer.address", "webapp.address")


class HadoopPrograms(msgspec.Struct, frozen=True, kw_only=True):
    """HadoopPrograms says how Java runs Hadoop's programs here."""

    java: str
    classpath: tuple[str, ...]
    home: str


def find_hadoop(environ: Mapping[str, str]) -> HadoopPrograms | str:
    """Return how to run Hadoop, or one sentence that says what is missing and how to get it.

    HADOOP_HOME names a distribution, or a folder with the jars of both programs and of all that they need. Without it
    the folder is taken that `make test-yarn` fetched.
    """
    home = environ.get(JAVA_HOME)
    java = f"{home}/bin/java" if home else shutil.which("java", path=environ.get("PATH"))
    if java is None or not os.access(java, os.X_OK):
        where = f"{JAVA_HOME}={home} has no bin/java" if home else "there is no java here"
        return f"{where}: install Java 17 or newer, with Debian `apt-get install openjdk-17-jre-headless`"
    given = environ.get(HADOOP_HOME)
    if given:
        classpath = _classpath(Path(given))
        if not classpath:
            return (
                f"{HADOOP_HOME}={given} has no {_JAR}: name an installation of Hadoop 3.3 or newer, or a folder with "
                "its jars"
            )
        return HadoopPrograms(java=java, classpath=classpath, home=given)
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "/")) / ".cache")
    cache = Path(environ.get("KOORD_ASSETS") or Path(base) / "koord" / "assets")
    fetched = [one for one in cache.glob("yarn-*") if one.suffix != ".partial" and _classpath(one)]
    if not fetched:
        return (
            f"there is no Hadoop here: set {HADOOP_HOME} to an installation of Hadoop 3.3 or newer "
            "(https://hadoop.apache.org/releases.html), or run `make test-yarn` in koord's repository, which fetches it"
        )
    newest = max(fetched, key=lambda one: one.stat().st_mtime)
    return HadoopPrograms(java=java, classpath=_classpath(newest), home=str(newest))


def _classpath(home: Path) -> tuple[str, ...]:
    """Return the folders of jars of a distribution, or of a plain folder; nothing where YARN is not among them."""
    if next(home.glob(_JAR), None) is not None:
        return (f"{home}/*",)
    share = home / "share" / "hadoop"
    if next((share / "yarn").glob(_JAR), None) is None:
        return ()
    return tuple(f"{share}/{name}/*" for name in _SHARES if (share / name).is_dir())


class LocalYarn:
    """LocalYarn is a YARN cluster with one NodeManager, in a folder of its own. What it starts ends with `stop`."""

    def __init__(self, programs: HadoopPrograms, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        ports = _free_ports(len(_RM_PORTS) + len(_NM_PORTS))
        self._rm = dict(zip(_RM_PORTS, ports, strict=False))
        self._nm = dict(zip(_NM_PORTS, ports[len(_RM_PORTS) :], strict=True))
        client, admin = (HostPort("127.0.0.1", self._rm[name]) for name in ("address", "admin.address"))
        self.cluster = YarnCluster(DEFAULT_CLUSTER_ID, (ResourceManagerAddress("", client, admin),))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def client(self) -> ResourceManagerClient:
        return ResourceManagerClient(self.cluster, Caller(user=USER, random_bytes=secrets.token_bytes))

    async def report(self) -> NodeReport | None:
        """Return what the ResourceManager says of the NodeManager; None while it is not there."""
        listed = await self.client().nodes()
        return listed[0] if isinstance(listed, tuple) and listed else None

    def start(self) -> None:
        for name, main in (("resourcemanager", _RESOURCE_MANAGER), ("nodemanager", _NODE_MANAGER)):
            conf = self._folder / f"conf-{name}"
            conf.mkdir(parents=True)
            (conf / "yarn-site.xml").write_text(_site(self._properties()))
            core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": f"{self._folder}/tmp"}
            (conf / "core-site.xml").write_text(_site(core))
            (conf / "capacity-scheduler.xml").write_text(_site(_CAPACITY_SCHEDULER))
            (conf / "log4j.properties").write_text(_LOG4J)
            classpath = ":".join((str(conf), *self._programs.classpath))
            with (self._folder / f"{name}.log").open("wb") as log:
                self._processes[name] = subprocess.Popen(
                    [self._programs.java, *_JVM, "-cp", classpath, main],
                    cwd=self._folder,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def ended(self) -> str:
        """Return why one of the programs ended by itself; "" while both run."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                log = (self._folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
                return f"Hadoop's {name} ended with {process.returncode}: {log[-1] if log else 'it said nothing'}"
        return ""

    def stop(self) -> None:
        """End both programs, and the containers, which outlive their NodeManager."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes = {}
        for pid_file in (self._folder / "local").glob("nmPrivate/*/*/*.pid"):
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.killpg(int(pid_file.read_text()), signal.SIGKILL)

    def submit(self, name: str, command: str, memory_mib: int, vcores: int) -> str:
        """Start an application whose only container is the command, and return its ID."""
        application: str = self._post("/ws/v1/cluster/apps/new-application", {})["application-id"]
        self._post(
            "/ws/v1/cluster/apps",
            {
                "application-id": application,
                "application-name": name,
                "am-container-spec": {"commands": {"command": command}},
                "resource": {"memory": memory_mib, "vCores": vcores},
            },
        )
        return application

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._rm['webapp.address']}{path}?user.name={USER}"
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        made: dict[str, Any] = json.loads(text) if text.strip() else {}
        return made

    def _properties(self) -> dict[str, str]:
        rm, nm = "yarn.resourcemanager", "yarn.nodemanager"
        return {
            **{f"{rm}.{name}": f"127.0.0.1:{port}" for name, port in self._rm.items()},
            **{f"{nm}.{name}": f"127.0.0.1:{port}" for name, port in self._nm.items()},
            f"{rm}.bind-host": "127.0.0.1",
            f"{rm}.nodemanagers.heartbeat-interval-ms": "500",
            f"{nm}.hostname": "127.0.0.1",
            f"{nm}.bind-host": "127.0.0.1",
            f"{nm}.local-dirs": f"{self._folder}/local",
            f"{nm}.log-dirs": f"{self._folder}/logs",
            f"{nm}.resource.memory-mb": "1024",
            f"{nm}.resource.cpu-vcores": "1",
            f"{nm}.vmem-check-enabled": "false",
            f"{nm}.pmem-check-enabled": "false",
            f"{nm}.disk-health-checker.enable": "false",
            "yarn.acl.enable": "true",
            "yarn.admin.acl": USER,
            "yarn.scheduler.minimum-allocation-mb": "128",
        }


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, all different."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _site(properties: Mapping[str, str]) -> str:
    listed = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items()
    )
    return f"<configuration>{listed}</configuration>"
