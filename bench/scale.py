"""5,000 nodes and 50,000 pods: memory of the whole embedded cluster, and `kubectl get pods -A` beside the real one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bench import apiserver
from bench.apiserver import PODS_PATH, Running, pod
from bench.http_load_generator import Target, drive, read_answer

NODES = 5_000
PODS = 50_000
DEPLOYMENTS = 50


def _kubeconfig(target: Target, folder: Path) -> Path:
    path = folder / "kubeconfig"
    cluster: dict[str, Any] = {"server": target.url, "insecure-skip-tls-verify": True}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": target.token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    path.write_text(yaml.safe_dump(document))
    return path


def _kubectl_s(target: Target) -> float:
    """The best of three: the client's own work is the same for both servers."""
    with tempfile.TemporaryDirectory() as folder:
        config = _kubeconfig(target, Path(folder))
        times = []
        for _ in range(3):
            started = time.perf_counter()
            env = {**os.environ, "KUBECONFIG": str(config)}
            done = subprocess.run(["kubectl", "get", "pods", "-A"], env=env, check=True, capture_output=True)
            assert done.stdout.count(b"\n") > PODS
            times.append(time.perf_counter() - started)
    return min(times)


def _deployment(number: int) -> bytes:
    labels = {"app": f"d{number}"}
    container = {"name": "c", "image": "example/app:1", "resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}
    spec = {
        "replicas": PODS // DEPLOYMENTS,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": f"d{number}"}, "spec": spec}
    return msgspec.json.encode(body)


async def _ready_pods(server: Running) -> int:
    reader, writer = await server.target.connect()
    writer.write(server.target.request("GET", "/apis/apps/v1/namespaces/default/deployments"))
    _, body = await read_answer(reader)
    writer.close()
    return sum(int(item["status"].get("readyReplicas", 0)) for item in msgspec.json.decode(body)["items"])


async def _fill_ours(server: Running) -> dict[str, float]:
    path = "/apis/apps/v1/namespaces/default/deployments"
    started, cpu = time.perf_counter(), server.cpu_s()
    await drive(server.target, [server.target.request("POST", path, _deployment(i)) for i in range(DEPLOYMENTS)], 4)
    while await _ready_pods(server) < PODS:
        if time.perf_counter() - started > 900:
            raise RuntimeError(f"only {await _ready_pods(server)} of {PODS} pods run after 900 s")
        await asyncio.sleep(2)
    return {"seconds_to_running": time.perf_counter() - started, "cpu_s": server.cpu_s() - cpu}


async def _fill_real(server: Running) -> None:
    requests = [server.target.request("POST", PODS_PATH, pod(f"bench-{i}")) for i in range(PODS)]
    result = await drive(server.target, requests, 64)
    assert not result["errors"], result


def run() -> dict[str, Any]:
    with apiserver.ours("--nodes", str(NODES)) as server:
        before = server.rss_mb()
        filled = asyncio.run(_fill_ours(server))
        mine = {
            "rss_nodes_mb": before,
            **filled,
            "rss_mb": server.rss_mb(),
            "kubectl_get_pods_s": _kubectl_s(server.target),
        }
    with apiserver.real() as server:
        asyncio.run(_fill_real(server))
        theirs = {"rss_mb": server.rss_mb(), "kubectl_get_pods_s": _kubectl_s(server.target)}
    ratio = mine["kubectl_get_pods_s"] / theirs["kubectl_get_pods_s"]
    return {"ours": mine, "real": theirs, "ratio": {"kubectl_get_pods": ratio}}
