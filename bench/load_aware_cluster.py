"""What looking at load costs a whole scheduler: pods drained on a real kube-apiserver while all nodes report.

Each of them does so once a minute. The same reports arrive in both runs; only one of the two profiles has the plugin.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from bench.apiserver import _target
from bench.http_load_generator import Target, drive, read_answer
from bench.scheduler import PODS, _create, _drain, equal, koord_scheduler, node
from koord.api.schema import crd_manifests
from tools import controlplane

NODES = 5_000
METRICS = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
MERGE = "application/merge-patch+json"

LOAD_AWARE = {
    "plugins": {
        "filter": {"enabled": [{"name": "LoadAwareScheduling"}]},
        "score": {"enabled": [{"name": "LoadAwareScheduling", "weight": 1}]},
        "reserve": {"enabled": [{"name": "LoadAwareScheduling"}]},
    },
    "pluginConfig": [
        {
            "name": "LoadAwareScheduling",
            "args": {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "LoadAwareSchedulingArgs",
                "filterExpiredNodeMetrics": False,
                "nodeMetricExpirationSeconds": 300,
                "usageThresholds": {"cpu": 65, "memory": 95},
            },
        }
    ],
}


def _status(i: int, turn: int) -> bytes:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    usage = {"cpu": f"{2000 + 37 * ((i + turn) % 200)}m", "memory": f"{8 + (i + turn) % 24}Gi"}
    percentiles = {"usage": {kind: {"resources": usage} for kind in ("avg", "p95", "p99")}, "duration": "5m0s"}
    measured = {"nodeUsage": {"resources": usage}, "aggregatedNodeUsages": [percentiles]}
    return msgspec.json.encode({"status": {"updateTime": stamp, "nodeMetric": measured}})


@contextlib.asynccontextmanager
async def _reporting(target: Target) -> AsyncIterator[None]:
    """Every node's report once a minute, evenly, over one connection."""

    async def report() -> None:
        reader, writer = await target.connect()
        began = time.monotonic()
        for number in itertools.count():
            i, turn = number % NODES, number // NODES
            path = f"{METRICS}/node-{i}/status"
            writer.write(target.request("PATCH", path, _status(i, turn), MERGE))
            status, body = await read_answer(reader)
            if status > 299:
                raise RuntimeError(f"a report was refused: {body[:300]!r}")
            ahead = began + (number + 1) * 60 / NODES - time.monotonic()
            if ahead > 0:
                await asyncio.sleep(ahead)

    task = asyncio.create_task(report())
    try:
        yield
    finally:
        if task.done():
            task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _measure(rounds: int) -> dict[str, Any]:
    with controlplane.running(load=True) as plane:
        target = _target(plane.kubeconfig)
        await _create(target, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd_manifests())
        await asyncio.sleep(3)  # the server needs a moment to serve what was just defined
        await _create(target, "/api/v1/nodes", [node(i) for i in range(NODES)])
        kind = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric"}
        await _create(target, METRICS, [{**kind, "metadata": {"name": f"node-{i}"}} for i in range(NODES)])
        first = [target.request("PATCH", f"{METRICS}/node-{i}/status", _status(i, 0), MERGE) for i in range(NODES)]
        await drive(target, first, 32)
        plain: list[dict[str, float]] = []
        aware: list[dict[str, float]] = []
        async with _reporting(target):
            for _ in range(rounds):
                for kept, profile in ((plain, None), (aware, LOAD_AWARE)):
                    command = koord_scheduler(controlplane.free_port())
                    kept.append(await _drain(plane, target, command, equal, PODS, profile))
    a = {key: statistics.median(r[key] for r in plain) for key in plain[0]}
    b = {key: statistics.median(r[key] for r in aware) for key in aware[0]}
    return {
        "nodes": NODES,
        "pods": PODS,
        "reports_per_second": NODES / 60,
        "plain": a,
        "load_aware": b,
        "kept_percent": 100 * b["pods_per_second"] / a["pods_per_second"],
    }


def run() -> dict[str, Any]:
    return asyncio.run(_measure(int(os.environ.get("KOORD_BENCH_ROUNDS", "3"))))
