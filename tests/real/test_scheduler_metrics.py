"""koord-scheduler beside the real kube-scheduler on one API server: the metrics that both serve after the same work."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as families

from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from tests.real.reach import connect
from tools import assets, controlplane
from tools.controlplane import ControlPlane, free_port

pytestmark = pytest.mark.real

PATIENCE_S = 60
# What kube-scheduler measures inside and koord-scheduler has nothing to measure for: it decides in columns and keeps
# verdicts, so there is no time of one plugin for one pod, and no cache of hints beside that.
INSIDE = {
    "scheduler_event_handling_duration_seconds",
    "scheduler_framework_extension_point_duration_seconds",
    "scheduler_plugin_evaluation",
    "scheduler_plugin_execution_duration_seconds",
    "scheduler_get_node_hint_duration_seconds",
    "scheduler_store_schedule_results_duration_seconds",
    "scheduler_batch_attempts",
    "scheduler_batch_cache_flushed",
    "scheduler_queueing_hint_execution_duration_seconds",
}


@pytest.fixture(scope="module")
def lone_plane() -> Iterator[ControlPlane]:
    """A scheduler counts every node of its cluster, so it needs one of its own."""
    missing = [n for n in ("etcd", "kube-apiserver", "kube-scheduler") if not (assets.folder() / n).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    with controlplane.running() as running:
        yield running


@contextmanager
def scheduler(command: list[str], name: str, plane: ControlPlane, folder: Path) -> Iterator[int]:
    disabled = {"multiPoint": {"disabled": [{"name": "DynamicResources"}]}} if name == "koord" else {}
    profile: dict[str, Any] = {"schedulerName": name, "plugins": disabled}
    if name == "koord":
        profile["plugins"]["preBind"] = {"disabled": [{"name": "*"}]}
    file = folder / f"{name}.yaml"
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": True, "resourceName": name, "resourceNamespace": "default"},
        "clientConnection": {"kubeconfig": str(plane.kubeconfig)},
        "profiles": [profile],
    }
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    access = ["--authorization-always-allow-paths=/metrics", f"--secure-port={port}", "--bind-address=127.0.0.1"]
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen([*command, f"--config={file}", *access], stderr=log, stdout=log)
        try:
            yield port
        finally:
            process.terminate()
            process.wait(timeout=30)


@asynccontextmanager
async def client_of(plane: ControlPlane) -> AsyncIterator[Client]:
    async with connect(plane.kubeconfig) as made:
        room = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        unwrap(
            await made.create(NODES, {"metadata": {"name": "n0"}, "status": {"allocatable": room, "capacity": room}})
        )
        unwrap(
            await made.patch(NODES, "n0", {"spec": {"taints": None}}, kind="merge")
        )  # the server's own: not ready yet
        yield made


def shape(text: str) -> dict[str, tuple[str, frozenset[tuple[str, ...]], tuple[str, ...]]]:
    """Of each scheduler_* family: its type, the label names of its samples, and its bounds."""
    found = {}
    for family in families(text):
        if family.name.startswith("scheduler_") and family.samples:
            names = frozenset(tuple(sorted(sample.labels)) for sample in family.samples)
            bounds = tuple(dict.fromkeys(sample.labels["le"] for sample in family.samples if "le" in sample.labels))
            found[family.name] = (family.type, names, bounds)
    return found


async def scraped(port: int, done: str) -> str:
    async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with session.get(f"https://127.0.0.1:{port}/metrics", ssl=False) as answer:
                    text = await answer.text()
            except aiohttp.ClientError:
                text = ""
            if done in text:
                return text
            await asyncio.sleep(0.2)


async def test_families_labels_and_buckets_are_the_same(lone_plane: ControlPlane, tmp_path: Path) -> None:
    commands = {
        "kube": [str(assets.folder() / "kube-scheduler")],
        "koord": [sys.executable, "-m", "koord.cli.daemons.koord_scheduler", "--port=0"],
    }
    texts = {}
    async with client_of(lone_plane) as client:
        for name, command in commands.items():
            with scheduler(command, name, lone_plane, tmp_path) as port:
                for cpu in ("1", "100"):
                    resources = {"requests": {"cpu": cpu}}
                    spec = {"schedulerName": name, "containers": [{"name": "c", "image": "x", "resources": resources}]}
                    unwrap(await client.create(PODS, {"metadata": {"name": f"{name}-{cpu}"}, "spec": spec}, "default"))
                await scraped(port, 'result="unschedulable"')
                texts[name] = await scraped(
                    port, f'scheduler_schedule_attempts_total{{profile="{name}",result="scheduled"}}'
                )
    theirs, ours = shape(texts["kube"]), shape(texts["koord"])
    assert len(theirs) > 10
    assert {name for name in theirs if name not in ours} <= INSIDE
    for name in theirs.keys() & ours.keys():
        assert ours[name] == theirs[name], name
