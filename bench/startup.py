"""Starting beside a large cluster: 5,000 nodes and 50,000 running pods on a real kube-apiserver, until ready.

Ready means that every handler has heard its first list. kube-scheduler does the same beside it.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from typing import Any

import aiohttp

from bench.apiserver import _cpu_s, _rss_mb, _target
from bench.scheduler import PODS_PATH, _create, _program, koord_scheduler, kube_scheduler, node, pod
from tools import controlplane
from tools.controlplane import ControlPlane

NODES = 5_000
PODS = 50_000
PATIENCE_S = 120.0


def _placed(i: int) -> dict[str, Any]:
    body = pod(i, {"app": f"app-{i % 500}"}, cpu=f"{50 + i % 20}m")
    body["spec"]["nodeName"] = f"node-{i % NODES}"
    body["spec"]["tolerations"] = [{"operator": "Exists"}]
    return body


async def _ready(port: int, process: subprocess.Popen[bytes]) -> float:
    """Seconds until /readyz says yes."""
    anyone = ssl.create_default_context()
    anyone.check_hostname = False
    anyone.verify_mode = ssl.CERT_NONE
    started = time.monotonic()
    async with aiohttp.ClientSession() as session:
        while time.monotonic() - started < PATIENCE_S and process.poll() is None:
            try:
                async with session.get(f"https://127.0.0.1:{port}/readyz", ssl=anyone) as answer:
                    if answer.status == 200:
                        return time.monotonic() - started
            except aiohttp.ClientError:
                pass  # it does not listen yet
            await asyncio.sleep(0.05)
    raise RuntimeError("not ready in time")


async def _start(plane: ControlPlane, command: list[str], port: int) -> dict[str, float]:
    with _program([*command, "--authorization-always-allow-paths=/readyz"], plane) as process:
        took = await _ready(port, process)
        return {"ready_s": took, "cpu_s": _cpu_s(process.pid), "rss_mb": _rss_mb(process.pid)}


async def _measure() -> dict[str, Any]:
    with controlplane.running(load=True) as plane:
        target = _target(plane.kubeconfig)
        await _create(target, "/api/v1/nodes", [node(i) for i in range(NODES)])
        for begin in range(0, PODS, 5_000):
            await _create(target, PODS_PATH, [_placed(i) for i in range(begin, begin + 5_000)])
        found: dict[str, Any] = {"nodes": NODES, "pods": PODS}
        for name, make in (("kube_scheduler", kube_scheduler), ("koord_scheduler", koord_scheduler)):
            port = controlplane.free_port()
            found[name] = await _start(plane, make(port), port)
        return found


def run() -> dict[str, Any]:
    return asyncio.run(_measure())
