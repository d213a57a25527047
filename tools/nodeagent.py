"""koordlet as a process of its own on a real node, and the few objects that it needs there; for tests and benchmarks.

Plain requests to the real API server, so that nothing of what is under test has a say in what is asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from koord.api.schema import crd_manifests
from tools.controlplane import free_port, patience_s
from tools.realnode import NODE, Node

SLO = "/apis/slo.koordinator.sh/v1alpha1"
NODE_METRIC, NODE_SLO = f"{SLO}/nodemetrics/{NODE}", f"{SLO}/nodeslos/{NODE}"
TOPOLOGY = f"/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/{NODE}"
PODS = "/api/v1/namespaces/default/pods"
GATES = "BECPUEvict=true,BEMemoryEvict=true,CgroupReconcile=true,Accelerators=true"  # the chart's
IMAGE = "registry.local/bb:1"
_KINDS = {"json": "application/json", "merge": "application/merge-patch+json"}

Json = dict[str, Any]


class ServerAddress(Protocol):
    """Where an API server is, and the administrator's token."""

    @property
    def url(self) -> str: ...

    @property
    def token(self) -> str: ...

    def ssl(self) -> ssl.SSLContext: ...


class Api:
    """Requests as the administrator."""

    def __init__(self, plane: ServerAddress) -> None:
        self._plane = plane
        self._context = plane.ssl()

    def ask(self, method: str, path: str, body: Json | None = None, kind: str = "json") -> Json | None:
        """None when there is no such object."""
        request = urllib.request.Request(
            self._plane.url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Bearer {self._plane.token}", "Content-Type": _KINDS[kind]},
        )
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=patience_s(30)) as answer:
                found: Json = json.loads(answer.read())
                return found
        except urllib.error.HTTPError as refused:
            text = refused.read().decode()
            if refused.code == 404:
                return None
            if refused.code == 429:  # a kind that is new is not stored yet
                time.sleep(0.2)
                return self.ask(method, path, body, kind)
            raise RuntimeError(f"{method} {path}: {refused.code} {text[:500]}") from None

    def get(self, path: str) -> Json | None:
        return self.ask("GET", path)

    def seen(self, path: str) -> Json:
        found = self.get(path)
        if found is None:
            raise LookupError(path)
        return found

    def create(self, path: str, body: Json) -> Json:
        made = self.ask("POST", path, body)
        if made is None:
            raise LookupError(path)
        return made

    def merge(self, path: str, body: Json) -> None:
        if self.ask("PATCH", path, body, "merge") is None:
            raise LookupError(path)

    def delete(self, path: str) -> None:
        self.ask("DELETE", path)


class Agent:
    """A running koordlet."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, port: int) -> None:
        self.process = process
        self.folder = folder
        self._port = port

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return (self.folder / "koordlet.log").read_text()

    def fetch(self, path: str) -> str:
        """What it answers; nothing while it does not listen."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=patience_s(5)) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.URLError:
            return ""

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=patience_s(30))


def install(api: Api, *, report_s: int = 60, durations: tuple[str, ...] = ("5m", "10m", "30m")) -> None:
    """Kinds and the NodeMetric that the manager would make. A NodeSLO is the caller's."""
    for manifest in crd_manifests():
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", manifest)
    collections = [NODE_METRIC.rpartition("/")[0], NODE_SLO.rpartition("/")[0], TOPOLOGY.rpartition("/")[0]]
    until(lambda: all(api.get(path) is not None for path in collections), "the kinds are served")
    policy = {
        "aggregateDurationSeconds": 300,
        "reportIntervalSeconds": report_s,
        "nodeAggregatePolicy": {"durations": list(durations)},
        "nodeMemoryCollectPolicy": "usageWithoutPageCache",
    }
    metric = {"metadata": {"name": NODE}, "spec": {"metricCollectPolicy": policy}}
    api.create(
        NODE_METRIC.rpartition("/")[0], {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", **metric}
    )


def order(api: Api, spec: Json) -> None:
    """Make or replace the NodeSLO."""
    body = {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": NODE},
        "spec": spec,
    }
    found = api.get(NODE_SLO)
    if found is None:
        api.create(NODE_SLO.rpartition("/")[0], body)
        return
    body["metadata"] = {"name": NODE, "resourceVersion": found["metadata"]["resourceVersion"]}
    api.ask("PUT", NODE_SLO, body)


def pod(
    name: str,
    resources: Json | None = None,
    *,
    command: str = "",
    labels: Json | None = None,
    annotations: Json | None = None,
    priority_class: str = "",
) -> Json:
    container: Json = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "resources": resources or {}}
    if command:
        container["command"] = ["/bin/sh", "-c", command]
    spec: Json = {
        "nodeName": NODE,
        "hostNetwork": True,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    if priority_class:
        spec["priorityClassName"] = priority_class
    meta = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def is_running(found: Json | None) -> bool:
    if found is None:
        return False
    states = found.get("status", {}).get("containerStatuses", ())
    return bool(states) and all("running" in one.get("state", {}) for one in states)


def until(true: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Wait for something outside this process that tells nobody when it happens."""
    seconds = patience_s(seconds)
    pause_s = 1.0 if patience_s(0) else 0.1  # on a slow machine questions delay what is waited for
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(pause_s)


def flags(node: Node, folder: Path) -> list[str]:
    """As the chart has them, for a process outside of any pod."""
    return [
        *("-cgroup-root-dir=/sys/fs/cgroup/", "-sys-root-dir=/sys/", "-sys-fs-root-dir=/sys/fs/"),
        *("-proc-root-dir=/proc/", f"-var-run-root-dir={node.folder}/", "-run-root-dir=/run/"),
        *(f"-var-lib-kubelet-dir={node.kubelet_root}/", f"-containerd-endpoint={node.runtime_socket}"),
        *(f"-prediction-checkpoint-filepath={folder}/checkpoints", f"--audit-log-dir={folder}/audit"),
        *(f"--state-dir={folder}/state", "--logtostderr=true"),
    ]


@contextlib.contextmanager
def running(node: Node, folder: Path, *extra: str, gates: str = GATES) -> Iterator[Agent]:
    """Until the block ends; its log goes on where an earlier one's in this folder ended."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [sys.executable, "-m", "koord.cli.daemons.koordlet", f"-addr=127.0.0.1:{port}", f"-feature-gates={gates}"]
    environ = {**os.environ, "NODE_NAME": node.name, "KUBECONFIG": str(node.plane.kubeconfig)}
    with (folder / "koordlet.log").open("ab") as log:
        process = subprocess.Popen([*command, *flags(node, folder), *extra], env=environ, stdout=log, stderr=log)
    agent = Agent(process, folder, port)
    try:
        yield agent
    finally:
        agent.stop()


def restore(node: Node, folder: Path) -> subprocess.CompletedProcess[str]:
    """`koordlet restore` with the same folders."""
    command = [sys.executable, "-m", "koord.cli.daemons.koordlet", "restore", *flags(node, folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience_s(60), check=False)
