"""koord-manager in a process of its own beside 1,000 nodes that report every minute: CPU, memory, writes.

One node in ten changes its load by so much that what it lends must be written; the others only tremble. So the number
of patches is known beforehand: one per report of a node that changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bench.apiserver import _cpu_s, _rss_mb, _target
from bench.http_load_generator import Target, drive, read_answer
from bench.scheduler import node
from tools.controlplane import free_port

NODES = 1_000
PODS_PER_NODE = 10  # seven of prod, three of batch
REPORT_S = 60
CHANGES = 10  # every tenth node
CONNECTIONS = 32
PATIENCE_S = 180.0
NAMESPACE = "koordinator-system"
WRITES = "slo_controller_node_resource_reconcile_count"


def pod(i: int) -> dict[str, Any]:
    number, place = divmod(i, PODS_PER_NODE)
    name = f"pod-{number}-{place}"
    batch = place >= 7
    amounts = (
        {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "1Gi"}
        if batch
        else {"cpu": "2", "memory": "4Gi"}
    )
    labels = {"koordinator.sh/qosClass": "BE", "koordinator.sh/priority-class": "koord-batch"} if batch else {}
    container = {"name": "main", "image": "example/app:1", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": f"app-{place}", **labels}},
        "spec": {"nodeName": f"node-{number}", "containers": [container]},
    }


def report(number: int, turn: int, chance: random.Random) -> dict[str, Any]:
    """Every tenth node is busy and idle in turns, by five cores of its 32."""
    moved = 5_000 if number % CHANGES == 0 and turn % 2 else 0
    tremble = chance.randrange(50)
    pods = []
    for place in range(PODS_PER_NODE):
        batch = place >= 7
        milli = 900 if batch else 500 + (moved + tremble if place == 0 else 0)
        pods.append(
            {
                "namespace": "default",
                "name": f"pod-{number}-{place}",
                "podUsage": {"resources": {"cpu": f"{milli}m", "memory": f"{1000 + tremble}Mi"}},
                "priority": "koord-batch" if batch else "koord-prod",
                "qos": "BE" if batch else "LSR",
            }
        )
    used = {"cpu": f"{7000 + moved + tremble}m", "memory": f"{11_000 + tremble}Mi"}
    windows = [
        {"duration": d, "usage": {a: {"resources": used} for a in ("avg", "p50", "p90", "p95", "p99")}}
        for d in ("5m0s", "10m0s", "30m0s")
    ]
    return {
        "updateTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "nodeMetric": {
            "nodeUsage": {"resources": used},
            "systemUsage": {"resources": {"cpu": "500m", "memory": "1Gi"}},
            "aggregatedNodeUsages": windows,
        },
        "podsMetric": pods,
        "prodReclaimableMetric": {"resource": {"resources": {"cpu": "6", "memory": "10Gi"}}},
    }


@contextlib.contextmanager
def server(folder: Path) -> Iterator[Path]:
    kubeconfig = folder / "kubeconfig"
    command = [sys.executable, "-m", "koord", "up", "--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--nodes", "0", "--components", ""], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        if not any(line.startswith("koord: ready") for line in process.stdout):
            raise RuntimeError("koord up did not start")
        yield kubeconfig
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)


@contextlib.contextmanager
def manager(kubeconfig: Path, metrics: int, profile: str = "") -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable]
    if profile:
        command += ["-m", "cProfile", "-o", profile]
    command += ["-m", "koord.cli.daemons.koord_manager", f"--metrics-addr=127.0.0.1:{metrics}", "--health-probe-addr=0"]
    command += ["--rest-config-qps=300", "--rest-config-burst=500", "--enable-leader-election=false"]
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": NAMESPACE}
    environ |= {"WEBHOOK_PORT": str(free_port()), "WEBHOOK_CERT_DIR": str(kubeconfig.parent / "certs")}
    with (kubeconfig.parent / "manager.log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)


def written(metrics: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(WRITES) and '"updateNodeStatus"' in line and '"succeeded"' in line:
                return int(float(line.rsplit(" ", 1)[1]))
    return 0


async def create(target: Target, path: str, objects: list[dict[str, Any]]) -> None:
    done = await drive(target, [target.request("POST", path, msgspec.json.encode(o)) for o in objects], CONNECTIONS)
    if done["errors"]:
        raise RuntimeError(f"{done['errors']:.0f} creates at {path} failed")


async def companions(target: Target, process: subprocess.Popen[bytes]) -> None:
    """Until every node has its NodeMetric and NodeSLO."""
    deadline = time.monotonic() + PATIENCE_S
    reader, writer = await target.connect()
    counts: list[int] = []
    while time.monotonic() < deadline and process.poll() is None:
        counts = []
        for plural in ("nodemetrics", "nodeslos"):
            writer.write(target.request("GET", f"/apis/slo.koordinator.sh/v1alpha1/{plural}"))
            _, body = await read_answer(reader)
            counts.append(len(msgspec.json.decode(body)["items"]))
        if min(counts) == NODES:
            writer.close()
            return
        await asyncio.sleep(1)
    raise RuntimeError(f"({process.poll()}) only {counts} of {NODES} NodeMetrics and NodeSLOs were created")


async def rounds(target: Target, turns: range, period_s: float) -> None:
    """Every node reports once per turn, spread evenly over it."""
    chance = random.Random(7)
    reader, writer = await target.connect()
    due = time.monotonic()
    for turn in turns:
        for number in range(NODES):
            due += period_s / NODES
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            path = f"/apis/slo.koordinator.sh/v1alpha1/nodemetrics/node-{number}/status"
            body = msgspec.json.encode({"status": report(number, turn, chance)})
            writer.write(target.request("PATCH", path, body, "application/merge-patch+json"))
            status, answer = await read_answer(reader)
            if status != 200:
                raise RuntimeError(f"report of node-{number}: {status} {answer[:200]!r}")
    writer.close()


async def measure(turns: int, profile: str = "") -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as kubeconfig:
        target = _target(kubeconfig)
        await create(target, "/api/v1/namespaces", [{"metadata": {"name": NAMESPACE}}])
        config = {"metadata": {"name": "slo-controller-config"}, "data": {"colocation-config": '{"enable": true}'}}
        await create(target, f"/api/v1/namespaces/{NAMESPACE}/configmaps", [config])
        await create(target, "/api/v1/nodes", [node(i) for i in range(NODES)])
        await create(target, "/api/v1/namespaces/default/pods", [pod(i) for i in range(NODES * PODS_PER_NODE)])
        for kind in ("Mutating", "Validating"):  # koord-manager fills them
            name = f"koordinator-{kind.lower()}-webhook-configuration"
            path = f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations"
            await create(target, path, [{"metadata": {"name": name}, "webhooks": []}])
        metrics = free_port()
        with manager(kubeconfig, metrics, profile) as process:
            await companions(target, process)
            idle_rss = _rss_mb(process.pid)
            await rounds(target, range(1), 20)  # the first reports change every node
            await asyncio.sleep(2)
            first, cpu, started = written(metrics), _cpu_s(process.pid), time.monotonic()
            await rounds(target, range(1, 1 + turns), REPORT_S)
            await asyncio.sleep(1)
            took = time.monotonic() - started
            cpu = _cpu_s(process.pid) - cpu
            return {
                "nodes": NODES,
                "pods": NODES * PODS_PER_NODE,
                "reports": turns * NODES,
                "seconds": took,
                "cpu_share": cpu / took,
                "cpu_ms_per_report": 1000 * cpu / (turns * NODES),
                "rss_mb": _rss_mb(process.pid),
                "rss_before_reports_mb": idle_rss,
                "patches_at_first": first,
                "patches": written(metrics) - first,
                "patches_expected": turns * NODES // CHANGES,
            }


def run() -> dict[str, Any]:
    turns = int(os.environ.get("KOORD_BENCH_ROUNDS", "3"))
    return {"cores": os.cpu_count(), **asyncio.run(measure(turns, os.environ.get("KOORD_BENCH_PROFILE", "")))}
