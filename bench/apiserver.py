"""The embedded API server beside real kube-apiserver + etcd, in one run: creates, lists, watch fan-out, memory."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bench.http_load_generator import Target, drive, read_answer
from tools import controlplane

PODS_PATH = "/api/v1/namespaces/default/pods"
CREATES = 5_000
CONNECTIONS = 64
WATCHERS = 50
FAN_OUT_EVENTS = 1_000


@dataclass(frozen=True)
class Running:
    target: Target
    pids: tuple[int, ...]

    def cpu_s(self) -> float:
        return sum(_cpu_s(pid) for pid in self.pids)

    def rss_mb(self) -> float:
        return sum(_rss_mb(pid) for pid in self.pids)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _target(kubeconfig: Path) -> Target:
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    context = ssl.create_default_context()
    context.check_hostname = False
    if "certificate-authority" in cluster:
        context.load_verify_locations(cluster["certificate-authority"])
    else:
        context.load_verify_locations(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    return Target(cluster["server"], config["users"][0]["user"]["token"], context)


@contextlib.contextmanager
def real() -> Iterator[Running]:
    with controlplane.running(load=True) as plane:
        yield Running(_target(plane.kubeconfig), tuple(plane.pids.values()))


@contextlib.contextmanager
def ours(*args: str) -> Iterator[Running]:
    """`koord up` as a user starts it, server only unless other components are asked for."""
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        command = [sys.executable, "-m", "koord", "up", "--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0"]
        command += args or ("--nodes", "0", "--components", "")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("koord: ready"):
                break
        else:
            raise RuntimeError(f"koord up ended with {process.wait()}")
        try:
            yield Running(_target(kubeconfig), (process.pid,))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)


def pod(name: str) -> bytes:
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": "bench", "tier": "web"}},
            "spec": {
                "schedulerName": "nobody",
                "containers": [
                    {
                        "name": "main",
                        "image": "example/app:1",
                        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
                        "env": [{"name": f"SETTING_{i}", "value": str(i)} for i in range(4)],
                        "ports": [{"containerPort": 8080}],
                    }
                ],
            },
        }
    )


async def creates(server: Running, count: int = CREATES) -> dict[str, float]:
    requests = [server.target.request("POST", PODS_PATH, pod(f"bench-{i}")) for i in range(count)]
    before = server.cpu_s()
    result = await drive(server.target, requests, CONNECTIONS)
    return {**result, "server_cpu_s": server.cpu_s() - before}


async def lists(server: Running, times: int = 10) -> dict[str, float]:
    request = server.target.request("GET", PODS_PATH)
    before = server.cpu_s()
    reader, writer = await server.target.connect()
    took: list[float] = []
    size = 0
    for _ in range(times):
        started = time.perf_counter()
        writer.write(request)
        status, body = await read_answer(reader)
        assert status == 200, status
        size = len(body)
        took.append(time.perf_counter() - started)
    writer.close()
    return {"p50_ms": 1000 * sorted(took)[times // 2], "bytes": size, "server_cpu_s": server.cpu_s() - before}


async def _count_lines(server: Running, path: str, lines: int, ready: asyncio.Event) -> None:
    reader, writer = await server.target.connect()
    writer.write(server.target.request("GET", path))
    await reader.readuntil(b"\r\n\r\n")
    ready.set()
    seen, tail, mark = 0, b"", b'{"type":"'
    while seen < lines:
        block = await reader.read(1 << 20)
        if not block:
            raise RuntimeError("the watch ended early")
        block = tail + block  # a mark may lie across two reads, and is never counted twice
        seen += block.count(mark)
        tail = block[-len(mark) + 1 :]
    writer.close()


async def fan_out(server: Running, events: int = FAN_OUT_EVENTS) -> dict[str, float]:
    """Every watcher sees every event: deliveries per second while the events are being made."""
    reader, writer = await server.target.connect()
    writer.write(server.target.request("GET", f"{PODS_PATH}?limit=1"))
    _, body = await read_answer(reader)
    revision = msgspec.json.decode(body)["metadata"]["resourceVersion"]
    writer.close()
    path = f"{PODS_PATH}?watch=true&resourceVersion={revision}"
    readies = [asyncio.Event() for _ in range(WATCHERS)]
    watchers = [asyncio.create_task(_count_lines(server, path, events, ready)) for ready in readies]
    for ready in readies:
        await ready.wait()
    before, started = server.cpu_s(), time.perf_counter()
    requests = [server.target.request("POST", PODS_PATH, pod(f"fan-{i}")) for i in range(events)]
    await drive(server.target, requests, 16)
    await asyncio.gather(*watchers)
    took = time.perf_counter() - started
    return {"deliveries_per_second": events * WATCHERS / took, "seconds": took, "server_cpu_s": server.cpu_s() - before}


async def measure(server: Running) -> dict[str, Any]:
    return {
        "create": await creates(server),
        "list_5000": await lists(server),
        "fan_out": await fan_out(server),
        "rss_mb": server.rss_mb(),
    }


def run() -> dict[str, Any]:
    """Both servers one after the other on the same machine; ratios are what to trust."""
    with real() as server:
        theirs = asyncio.run(measure(server))
    with ours() as server:
        mine = asyncio.run(measure(server))
    return {
        "real": theirs,
        "ours": mine,
        "ratio": {
            "create": mine["create"]["per_second"] / theirs["create"]["per_second"],
            "list_5000": theirs["list_5000"]["p50_ms"] / mine["list_5000"]["p50_ms"],
            "fan_out": mine["fan_out"]["deliveries_per_second"] / theirs["fan_out"]["deliveries_per_second"],
        },
    }
