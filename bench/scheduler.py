"""koord-scheduler beside kube-scheduler on one real kube-apiserver + etcd: pods are created first, then drained.

Also the ceiling: the same pods bound over 64 connections by a client that decides nothing. Throughput is counted from
the first binding to the last by a watch that reads no more of an event than whether a node is named in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from bench import bytecode
from bench.apiserver import _cpu_s, _rss_mb, _target
from bench.http_load_generator import Target, drive
from tools import assets, controlplane
from tools.controlplane import ControlPlane

PODS_PATH = "/api/v1/namespaces/default/pods"
PODS = 3_000
CONNECTIONS = 64
NAME = "default-scheduler"
PATIENCE_S = 240.0

Make = Callable[[int], dict[str, Any]]


def node(i: int) -> dict[str, Any]:
    name = f"node-{i}"
    taints = [{"key": "dedicated", "value": "batch", "effect": "NoSchedule"}] if i % 10 == 9 else []
    capacity = {"cpu": "32", "memory": "128Gi", "pods": "110", "ephemeral-storage": "100Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": f"zone-{i % 3}",
                "disk": "ssd" if i % 2 else "hdd",
            },
        },
        "spec": {"taints": taints},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def pod(i: int, labels: dict[str, str] | None = None, cpu: str = "100m", **spec: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "registry.example/app:1",
        "resources": {"requests": {"cpu": cpu, "memory": "128Mi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{i}", "namespace": "default", "labels": labels or {"app": "equal"}},
        "spec": {"schedulerName": NAME, "containers": [container], **spec},
    }


def equal(i: int) -> dict[str, Any]:
    return pod(i)


def mixed(i: int) -> dict[str, Any]:
    """Ten kinds: sizes, selectors, tolerations, node affinity, hard and soft spread, affinity and anti-affinity."""
    kind = i % 10
    labels = {"app": f"kind-{kind}"}
    chosen = {"matchLabels": labels}

    def spread(key: str, hard: bool) -> list[dict[str, Any]]:
        otherwise = "DoNotSchedule" if hard else "ScheduleAnyway"
        return [{"maxSkew": 5, "topologyKey": key, "whenUnsatisfiable": otherwise, "labelSelector": chosen}]

    def near(key: str) -> dict[str, Any]:
        return {"topologyKey": key, "labelSelector": chosen}

    ssd = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
    specs: list[dict[str, Any]] = [
        {},
        {"nodeSelector": {"disk": "ssd"}},
        {"tolerations": [{"key": "dedicated", "operator": "Exists"}]},
        {"topologySpreadConstraints": spread("topology.kubernetes.io/zone", True)},
        {"topologySpreadConstraints": spread("kubernetes.io/hostname", False)},
        {
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [ssd]}}
            }
        },
        {
            "affinity": {
                "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "preference": ssd}]}
            }
        },
        {
            "affinity": {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near("kubernetes.io/hostname")]}
            }
        },
        {
            "affinity": {
                "podAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 10, "podAffinityTerm": near("topology.kubernetes.io/zone")}
                    ]
                }
            }
        },
        {"topologySpreadConstraints": spread("topology.kubernetes.io/zone", False)},
    ]
    return pod(i, labels, cpu=f"{100 + 50 * (kind % 3)}m", **specs[kind])


# -- contenders

KOORD_SCHEDULER = "koord.cli.daemons.koord_scheduler"


def _configuration(plane: ControlPlane, profile: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(plane.kubeconfig), "qps": 10_000, "burst": 20_000},
        "profiles": [{"schedulerName": NAME, **(profile or {})}],
    }


@contextlib.contextmanager
def _program(
    command: list[str], plane: ControlPlane, profile: dict[str, Any] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(yaml.safe_dump(_configuration(plane, profile)))
        log_file = Path(folder) / "log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                [*command, "--config", str(config)],
                env=bytecode.environment(KOORD_SCHEDULER),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                yield process
            except Exception:
                tail = log_file.read_text(errors="replace")[-3000:]
                print(f"{command[0]} (exit {process.poll()}) said:\n{tail}", file=sys.stderr)
                raise
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=20)


def kube_scheduler(port: int) -> list[str]:
    return [str(assets.folder() / "kube-scheduler"), "--secure-port", str(port), "--v=0"]


def koord_scheduler(port: int) -> list[str]:
    return [sys.executable, "-m", KOORD_SCHEDULER, "--port", "0", "--secure-port", str(port)]


# -- measuring


class Bindings:
    """Watches pods and notes when each binding was seen."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.times: list[float] = []
        self.names: list[bytes] = []

    async def until(self, count: int, alive: Callable[[], bool], first: Callable[[], None]) -> None:
        seen: set[bytes] = set()
        deadline = time.monotonic() + PATIENCE_S
        headers = {"Authorization": f"Bearer {self._target.token}"}
        url = f"{self._target.url}{PODS_PATH}?watch=1&allowWatchBookmarks=false"
        tail = b""
        async with aiohttp.ClientSession(headers=headers) as session, session.get(url, ssl=self._target.ssl) as answer:
            while len(seen) < count:
                if time.monotonic() > deadline or not alive():
                    raise RuntimeError(f"only {len(seen)} of {count} pods were bound")
                try:
                    async with asyncio.timeout(5):
                        chunk = await answer.content.readany()
                except TimeoutError:
                    continue
                now = time.monotonic()
                *lines, tail = (tail + chunk).split(b"\n")
                for line in lines:
                    if b'"nodeName":"' in line:
                        name = line.split(b'"metadata":{"name":"', 1)[1].split(b'"', 1)[0]
                        if name not in seen:
                            if not seen:
                                first()
                            seen.add(name)
                            self.times.append(now)
                            self.names.append(name)


async def _create(target: Target, path: str, objects: list[dict[str, Any]]) -> None:
    requests = [target.request("POST", path, msgspec.json.encode(o)) for o in objects]
    done = await drive(target, requests, CONNECTIONS)
    if done["errors"]:
        raise RuntimeError(f"{done['errors']:.0f} creates at {path} failed")


async def _clear(target: Target, count: int) -> None:
    body = b'{"gracePeriodSeconds":0}'
    await drive(target, [target.request("DELETE", f"{PODS_PATH}/pod-{i}", body) for i in range(count)], CONNECTIONS)


async def _drain(
    plane: ControlPlane,
    target: Target,
    command: list[str],
    make: Make,
    count: int,
    profile: dict[str, Any] | None = None,
) -> dict[str, float]:
    await _create(target, PODS_PATH, [make(i) for i in range(count)])
    servers = tuple(plane.pids.values())
    server_cpu = sum(map(_cpu_s, servers))
    bindings = Bindings(target)
    bytecode.environment(KOORD_SCHEDULER)  # made before the clock runs
    started = time.monotonic()
    with _program(command, plane, profile) as process:
        before: list[float] = []
        await bindings.until(count, lambda: process.poll() is None, lambda: before.append(_cpu_s(process.pid)))
        cpu, rss = _cpu_s(process.pid), _rss_mb(process.pid)
    took = bindings.times[-1] - bindings.times[0]
    await _clear(target, count)
    return {
        "pods_per_second": (count - 1) / took,
        "cpu_s": cpu,
        "cpu_ms_per_pod": 1000 * cpu / count,
        "cpu_ms_per_pod_after_the_start": 1000 * (cpu - before[0]) / count,
        "first_binding_s": bindings.times[0] - started,
        "server_cpu_s": sum(map(_cpu_s, servers)) - server_cpu,
        "rss_mb": rss,
    }


async def _ceiling(target: Target, nodes: int, count: int) -> float:
    await _create(target, PODS_PATH, [equal(i) for i in range(count)])
    order = random.Random(1)
    requests = []
    for i in range(count):
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": f"pod-{i}", "namespace": "default"},
            "target": {"kind": "Node", "name": f"node-{order.randrange(nodes)}"},
        }
        requests.append(target.request("POST", f"{PODS_PATH}/pod-{i}/binding", msgspec.json.encode(body)))
    done = await drive(target, requests, CONNECTIONS)
    await _clear(target, count)
    return done["per_second"]


async def _round(nodes: int, make: Make, rounds: int, count: int = PODS) -> dict[str, Any]:
    with controlplane.running(load=True) as plane:
        target = _target(plane.kubeconfig)
        await _create(target, "/api/v1/nodes", [node(i) for i in range(nodes)])
        ceiling = [await _ceiling(target, nodes, count)]
        theirs, ours = [], []
        for _ in range(rounds):
            theirs.append(await _drain(plane, target, kube_scheduler(controlplane.free_port()), make, count))
            ours.append(await _drain(plane, target, koord_scheduler(controlplane.free_port()), make, count))
        ceiling.append(await _ceiling(target, nodes, count))
    top = statistics.median(ceiling)
    a, b = _middle(theirs), _middle(ours)
    return {
        "nodes": nodes,
        "pods": count,
        "bare_bind_per_second": top,
        "kube_scheduler": a,
        "koord_scheduler": b,
        "throughput_ratio": b["pods_per_second"] / a["pods_per_second"],
        "cpu_per_pod_ratio": b["cpu_s"] / a["cpu_s"],
        "cpu_per_pod_ratio_after_the_start": b["cpu_ms_per_pod_after_the_start"] / a["cpu_ms_per_pod_after_the_start"],
        "of_ceiling": b["pods_per_second"] / top,
    }


def _middle(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}


def run() -> dict[str, Any]:
    rounds = int(os.environ.get("KOORD_BENCH_ROUNDS", "3"))
    return {
        "cores": os.cpu_count(),
        "equal_1000": asyncio.run(_round(1_000, equal, rounds)),
        "equal_5000": asyncio.run(_round(5_000, equal, rounds)),
        "mixed_5000": asyncio.run(_round(5_000, mixed, rounds)),
    }
