"""koord-yarn-operator in a process of its own beside 1,000 NodeManagers in four YARN clusters: rounds, CPU, memory.

The ResourceManagers are whole fakes that speak Hadoop's RPC in this process. In the first round every NodeManager is
given its capacity; then YARN starts containers on all of them, which every node has to say; then nothing changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.apiserver import _cpu_s, _rss_mb, _target
from bench.http_load_generator import Target
from bench.manager import create, server
from bench.scheduler import node
from koord.wire.hadoop_yarn import ResourceMessage
from tests.yarn.fake_resource_manager import FakeResourceManager, FakeYarn, running
from tools.controlplane import free_port

CLUSTERS = 4
NODE_MANAGERS = 1_000
INTERVAL_S = 2
STEADY_S = 30.0
PATIENCE_S = 120.0
LENT = {"kubernetes.io/batch-cpu": "24000", "kubernetes.io/batch-memory": "64Gi"}
OFFERED = ResourceMessage(63 * 1024, 23)  # less what the NodeManager's own pod requests
NODE_NAME = re.compile(rb'"name":"node-\d+"')
ROUND = re.compile(r"^koord_yarn_operator_round_duration_seconds\{[^}]*\} (\S+)$", re.MULTILINE)


def lending_node(i: int) -> dict[str, Any]:
    made = node(i)
    for part in ("capacity", "allocatable"):
        made["status"][part] = {**made["status"][part], **LENT}
    return made


def node_manager(i: int) -> dict[str, Any]:
    amounts = {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "1Gi"}
    annotations = {"yarn.hadoop.apache.org/node-id": f"nm-{i}:8041"}
    if i % CLUSTERS:
        annotations["yarn.hadoop.apache.org/cluster-id"] = f"c{i % CLUSTERS}"
    container = {"name": "nm", "image": "example/nm:1", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"nm-{i}",
            "namespace": "default",
            "labels": {"app.kubernetes.io/component": "node-manager"},
            "annotations": annotations,
        },
        "spec": {"nodeName": f"node-{i}", "containers": [container]},
    }


def site(manager: FakeResourceManager) -> str:
    listed = {"address": manager.address.client, "admin.address": manager.address.admin}
    properties = "".join(
        f"<property><name>yarn.resourcemanager.{name}</name><value>{place}</value></property>"
        for name, place in listed.items()
    )
    return f"<configuration>{properties}</configuration>"


@contextlib.contextmanager
def operator(kubeconfig: Path, conf: Path, metrics: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "koord.cli.daemons.koord_yarn_operator", f"--hadoop-conf-dir={conf}"]
    command += [f"--metrics-addr=127.0.0.1:{metrics}", "--health-probe-addr=0", "--enable-leader-election=false"]
    command += [f"--sync-interval={INTERVAL_S}s", "--yarn-user=yarn"]
    with (kubeconfig.parent / "operator.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, "KUBECONFIG": str(kubeconfig)}, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)


def round_times(metrics: int) -> list[float]:
    """Return how long the last round of each cluster took; none while the program does not serve yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=10) as answer:
            return [float(one) for one in ROUND.findall(answer.read().decode())]
    except OSError:
        return []


async def watch_rounds(metrics: int, is_over: Callable[[], bool], every_s: float = 0.1) -> list[float]:
    """Return every round's time that was seen until something is over."""
    seen: set[float] = set()
    deadline = time.monotonic() + PATIENCE_S
    while not is_over():
        if time.monotonic() > deadline:
            raise RuntimeError("the operator did not get there in time")
        seen.update(await asyncio.to_thread(round_times, metrics))
        await asyncio.sleep(every_s)
    seen.update(await asyncio.to_thread(round_times, metrics))
    return sorted(one for one in seen if one > 0)


class ToldNodes:
    """ToldNodes counts, on a watch, the nodes whose annotation says what YARN holds, and when each came."""

    def __init__(self, target: Target, text: bytes) -> None:
        self._target = target
        self._text = text
        self.first_at = self.last_at = 0.0

    async def wait(self, count: int, is_watching: asyncio.Event) -> None:
        """Return once so many nodes said it. A list every moment would load the server that is written to."""
        reader, writer = await self._target.connect()
        writer.write(self._target.request("GET", "/api/v1/nodes?watch=true"))
        await reader.readuntil(b"\r\n\r\n")
        is_watching.set()
        seen: set[bytes] = set()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while len(seen) < count:
                    line = await reader.readline()  # an event, or the size of a chunk
                    if not line:
                        raise RuntimeError("the watch ended")
                    if self._text in line and (name := NODE_NAME.search(line)):
                        seen.add(name[0])
                        self.last_at = time.monotonic()
                        self.first_at = self.first_at or self.last_at
        finally:
            writer.close()


async def measure() -> dict[str, Any]:
    clusters = [FakeYarn() for _ in range(CLUSTERS)]
    managers = [FakeResourceManager(one) for one in clusters]
    nodes = [(clusters[i % CLUSTERS], clusters[i % CLUSTERS].add(f"nm-{i}")) for i in range(NODE_MANAGERS)]
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as kubeconfig:
        target = _target(kubeconfig)
        await create(target, "/api/v1/nodes", [lending_node(i) for i in range(NODE_MANAGERS)])
        await create(target, "/api/v1/namespaces/default/pods", [node_manager(i) for i in range(NODE_MANAGERS)])
        async with running(*managers):
            conf = Path(folder) / "conf"
            conf.mkdir()
            for number, one in enumerate(managers):
                (conf / (f"c{number}.yarn-site.xml" if number else "yarn-site.xml")).write_text(site(one))
            metrics = free_port()
            with operator(kubeconfig, conf, metrics) as process:
                first = await watch_rounds(
                    metrics, lambda: all(yarn.capability(node) == OFFERED for yarn, node in nodes)
                )
                told, is_watching = ToldNodes(target, b'batch-cpu\\":\\"2k'), asyncio.Event()
                waiting = asyncio.create_task(told.wait(NODE_MANAGERS, is_watching))
                await is_watching.wait()
                for yarn, node_id in nodes:
                    yarn.use(node_id, 2048, 2)
                started = time.monotonic()
                await waiting
                cpu, since = _cpu_s(process.pid), time.monotonic()
                steady = await watch_rounds(metrics, lambda: time.monotonic() - since > STEADY_S, INTERVAL_S)
                took = time.monotonic() - since
                cpu = _cpu_s(process.pid) - cpu
                return {
                    "node_managers": NODE_MANAGERS,
                    "clusters": CLUSTERS,
                    "sync_interval_s": INTERVAL_S,
                    "first_round_s": first[-1],
                    "round_s_median": statistics.median(steady),
                    "round_s_max": steady[-1],
                    "all_nodes_told_s": told.last_at - told.first_at,
                    "all_nodes_told_with_wait_s": told.last_at - started,
                    "cpu_share": cpu / took,
                    "rss_mb": _rss_mb(process.pid),
                    "updates": sum(len(one.updates) for one in clusters),
                    "updates_expected": NODE_MANAGERS,
                }


def run() -> dict[str, Any]:
    return {"cores": os.cpu_count(), **asyncio.run(measure())}
