"""Gangs and quotas on a real kube-apiserver + etcd: koord-scheduler with the profile that it ships, 5,000 nodes.

The same pods are created first and then drained as plain ones, as gangs of 64, in 50 quotas, and as gangs in quotas.
Events, statuses of PodGroups and of quotas are all written. A gang is complete when its last member is bound; its
span is counted from its first one. `bare_bind_per_second` is what the machine lets through at the time without any
scheduler: bindings over 64 connections; where others use its cores, shares of that tell more than rates.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from typing import Any

from bench import bytecode
from bench.apiserver import _cpu_s, _rss_mb, _target
from bench.http_load_generator import Target
from bench.scheduler import (
    KOORD_SCHEDULER,
    PODS_PATH,
    Bindings,
    _ceiling,
    _clear,
    _create,
    _program,
    koord_scheduler,
    node,
    pod,
)
from koord.api.config.scheduler import configuration
from koord.api.koordinator.protocol import L_POD_GROUP, L_QUOTA_NAME
from koord.api.model import to_dict
from koord.api.schema import crd_manifests
from tools import controlplane
from tools.controlplane import ControlPlane

NODES, GANGS, SIZE, QUOTAS = 5_000, 46, 64, 50
PODS = GANGS * SIZE
SIGS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default"
# What Koordinator's own scheduler does with plain pods at this size, on the same machine: pods per second.
KOORDINATOR = 73.0
KINDS: tuple[tuple[str, bool, bool], ...] = (
    ("plain", False, False),
    ("gang", True, False),
    ("quota", False, True),
    ("gang_in_quota", True, True),
)


def _pod(i: int, *, gang: bool, quota: bool) -> dict[str, Any]:
    labels = {"app": "equal"}
    if gang:
        labels[L_POD_GROUP] = f"gang-{i // SIZE}"
    if quota:
        labels[L_QUOTA_NAME] = f"quota-{i // SIZE % QUOTAS}"
    return pod(i, labels)


def _groups() -> list[dict[str, Any]]:
    kind = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup"}
    return [
        {**kind, "metadata": {"name": f"gang-{n}", "namespace": "default"}, "spec": {"minMember": SIZE}}
        for n in range(GANGS)
    ]


def _quotas() -> list[dict[str, Any]]:
    kind = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota"}
    spec = {"max": {"cpu": "1000", "memory": "4000Gi"}, "min": {"cpu": "10", "memory": "40Gi"}}
    return [{**kind, "metadata": {"name": f"quota-{n}", "namespace": "default"}, "spec": spec} for n in range(QUOTAS)]


async def _drained(plane: ControlPlane, target: Target, *, gang: bool, quota: bool) -> dict[str, float]:
    await _create(target, PODS_PATH, [_pod(i, gang=gang, quota=quota) for i in range(PODS)])
    profile = to_dict(configuration.configuration())["profiles"][0]
    del profile["schedulerName"]
    bindings = Bindings(target)
    servers = tuple(plane.pids.values())
    server_cpu = sum(map(_cpu_s, servers))
    bytecode.environment(KOORD_SCHEDULER)  # made before the clock runs
    started = time.monotonic()
    load = os.getloadavg()[0]
    with _program(koord_scheduler(controlplane.free_port()), plane, profile) as process:
        before: list[float] = []
        await bindings.until(PODS, lambda: process.poll() is None, lambda: before.append(_cpu_s(process.pid)))
        cpu, rss = _cpu_s(process.pid), _rss_mb(process.pid)
    server_cpu = sum(map(_cpu_s, servers)) - server_cpu
    await _clear(target, PODS)
    spans: dict[int, list[float]] = {}
    for name, at in zip(bindings.names, bindings.times, strict=True):
        spans.setdefault(int(name.rsplit(b"-", 1)[1]) // SIZE, []).append(at)
    ends = sorted(max(times) - min(times) for times in spans.values())
    return {
        "pods_per_second": (PODS - 1) / (bindings.times[-1] - bindings.times[0]),
        "cpu_ms_per_pod_after_the_start": 1000 * (cpu - before[0]) / PODS,
        "first_binding_s": bindings.times[0] - started,
        "rss_mb": rss,
        "server_cpu_s": server_cpu,
        "gang_span_p50_ms": 1000 * ends[len(ends) // 2],
        "gang_span_p99_ms": 1000 * ends[-1 - len(ends) // 100],
        "load_average": load,
    }


async def _measure(rounds: int) -> dict[str, Any]:
    taken: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in KINDS}
    with controlplane.running(load=True) as plane:
        target = _target(plane.kubeconfig)
        await _create(target, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd_manifests())
        await asyncio.sleep(3)  # the server needs a moment to serve what was just defined
        await _create(target, "/api/v1/nodes", [node(i) for i in range(NODES)])
        await _create(target, f"{SIGS}/podgroups", _groups())
        await _create(target, f"{SIGS}/elasticquotas", _quotas())
        bare = []
        for _ in range(rounds):
            bare.append(await _ceiling(target, NODES, PODS))
            for name, gang, quota in KINDS:
                taken[name].append(await _drained(plane, target, gang=gang, quota=quota))
    found = {name: {key: statistics.median(r[key] for r in all_) for key in all_[0]} for name, all_ in taken.items()}
    top = statistics.median(bare)
    return {
        "nodes": NODES,
        "pods": PODS,
        "members": SIZE,
        "cores": os.cpu_count(),
        "bare_bind_per_second": top,
        **found,
        "of_bare_bind": {name: found[name]["pods_per_second"] / top for name in found},
        "koordinator_plain_pods_per_second": KOORDINATOR,
        "to_koordinator": {name: found[name]["pods_per_second"] / KOORDINATOR for name in found},
    }


def run() -> dict[str, Any]:
    return asyncio.run(_measure(int(os.environ.get("KOORD_BENCH_ROUNDS", "3"))))
