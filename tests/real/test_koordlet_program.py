"""The whole agent on this machine's own cgroups, in a subtree of its own, against an API server in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord.api.koordinator.custom_kinds import NODE_METRICS, NODE_SLOS
from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.cli.daemons import koordlet as command
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.host.cgroup.detection import cgroup_version
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.filesystem import Host
from koord.host.hardware_topology import online_cpus
from koord.host.io_error import IoError
from koord.koordlet.agent import Koordlet
from koord.koordlet.feature_gates import default_gates
from koord.koordlet.inputs.kubelet_client import PodSourceSettings
from koord.koordlet.reporters.node_metric_reporter import PredictorSettings
from koord.koordlet.settings import AuditSettings, KoordletSettings
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError

pytestmark = [pytest.mark.real, pytest.mark.machine]

PREFIX = f"koord-agent-{os.getpid()}"
LAYOUT = CgroupLayout("cgroupfs", (PREFIX,))
TOP, LS_TOP = LAYOUT.qos_dir(BEST_EFFORT), LAYOUT.qos_dir(BURSTABLE)
QUOTA, BURST, CPUS = "cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpuset.cpus"
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "blkio")
NODE = "this-node"
PATIENCE_S = float(os.environ.get("KOORD_PATIENCE_S", "20"))  # a guest without hardware support is slow


class Ground:
    """The subtree, and the values in it."""

    def __init__(self, tree: CgroupTree) -> None:
        self.tree = tree
        self._made: list[Path] = []

    def make(self, *groups: str) -> None:
        roots = CONTROLLERS if self.tree.version == 1 else ("",)
        for group in groups:
            for root in roots:
                folder = Path(self.tree.group_path(root, group))
                if folder.exists():
                    continue
                folder.mkdir()
                self._made.append(folder)
                self._hand_down(folder)

    def clear(self) -> None:
        for folder in reversed(self._made):
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()

    def value(self, knob: str, group: str) -> str:
        value = self.tree.value(knob, group)
        assert isinstance(value, str), value
        return value

    def values(self, *groups: str) -> dict[tuple[str, str], str]:
        return {(knob, group): self.value(knob, group) for knob in (QUOTA, BURST, CPUS) for group in groups}

    def _hand_down(self, folder: Path) -> None:
        if self.tree.version == 2:
            (folder / "cgroup.subtree_control").write_text("+cpu +cpuset +memory")
        for name in ("cpuset.cpus", "cpuset.mems"):
            if self.tree.version == 1 and (folder / name).exists():
                (folder / name).write_text((folder.parent / name).read_text())


@pytest.fixture
def ground() -> Iterator[Ground]:
    host = Host.local()
    version = cgroup_version(host)
    tree = CgroupTree(host, version, LAYOUT)
    roots = [tree.group_path(name, "") for name in CONTROLLERS] if version == 1 else [tree.group_path("", "")]
    closed = [root for root in roots if not os.access(root, os.W_OK)]
    if os.geteuid() != 0 or closed:
        pytest.skip(f"cgroup v{version} is not writable for user {os.geteuid()}: {', '.join(closed)}")
    if version == 2:
        text = tree.host.read(f"{tree.group_path('', '')}/cgroup.subtree_control")
        if not isinstance(text, str) or not {"cpu", "cpuset", "memory"} <= set(text.split()):
            pytest.skip("the root of cgroup v2 does not hand down cpu, cpuset and memory")
    ground = Ground(tree)
    try:
        ground.make(PREFIX, LAYOUT.kubepods, TOP, LS_TOP)
        yield ground
    finally:
        ground.clear()


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    cluster = EmbeddedCluster(ClusterSettings(http=False))
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


async def until(true: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110  the kernel's files tell nobody when they change
            await asyncio.sleep(0.1)
    assert true(), what


def agent_of(cluster: EmbeddedCluster, state: Path, **changes: Any) -> Koordlet:
    assert cluster.client is not None
    assert cluster.informers is not None
    settings = KoordletSettings(
        node=NODE,
        gates=default_gates() | {"AuditEvents", "AuditEventsHTTPHandler"} - {"RdtResctrl"},
        state_dir=str(state / "state"),
        address=("127.0.0.1", 0),
        kubepods=LAYOUT.kubepods,
        audit=AuditSettings(folder=str(state / "audit")),
        pods=PodSourceSettings(source="apiserver"),
        prediction=PredictorSettings(folder=str(state / "prediction")),
        **changes,
    )
    return Koordlet(cluster.client, cluster.informers, cluster.clock, settings, Host.local())


async def furnish(client: Client) -> None:
    cpus = online_cpus(Host.local())
    assert not isinstance(cpus, IoError)
    amounts = {"cpu": str(len(cpus)), "memory": "8Gi", "pods": "110"}
    await made(client.create(NODES, {"metadata": {"name": NODE}}))
    await made(
        client.patch(
            NODES,
            NODE,
            {"status": {"capacity": amounts, "allocatable": amounts}},
            kind="merge",
            subresource="status",
        )
    )
    await made(client.create(NODE_METRICS, {"metadata": {"name": NODE}, "spec": {}}))


async def made(answer: Any) -> Any:
    found = await answer
    assert not isinstance(found, ApiError), found
    return found


async def run_pod(client: Client, ground: Ground, name: str, qos: str, resources: dict[str, Any]) -> tuple[str, str]:
    """A pod of this node with its groups as the kubelet would make them. Their paths."""
    pod = await made(
        client.create(
            PODS,
            {
                "metadata": {"name": name, "namespace": "default", "labels": {"koordinator.sh/qosClass": qos}},
                "spec": {
                    "nodeName": NODE,
                    "containers": [{"name": "main", "image": "scratch", "resources": resources}],
                },
            },
        )
    )
    kube_qos = BEST_EFFORT if qos == "BE" else BURSTABLE
    group = LAYOUT.pod_dir(kube_qos, pod.metadata.uid)
    ground.make(group, f"{group}/{name}")
    status = {
        "phase": "Running",
        "qosClass": kube_qos,
        "containerStatuses": [
            {
                "name": "main",
                "image": "scratch",
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "containerID": f"containerd://{name}",
                "state": {"running": {}},
            }
        ],
    }
    await made(client.patch(PODS, name, {"status": status}, "default", kind="merge", subresource="status"))
    return group, f"{group}/{name}"


async def order(client: Client, spec: dict[str, Any], *, first: bool = False) -> None:
    if first:
        await made(client.create(NODE_SLOS, {"metadata": {"name": NODE}, "spec": spec}))
    else:
        await made(client.patch(NODE_SLOS, NODE, [{"op": "replace", "path": "/spec", "value": spec}], kind="json"))


async def test_the_agent_holds_lets_go_and_undoes(cluster: EmbeddedCluster, ground: Ground, tmp_path: Path) -> None:
    client = cluster.client
    assert client is not None
    await furnish(client)
    be_pod, be_box = await run_pod(client, ground, "batch", "BE", {})
    ls_pod, ls_box = await run_pod(
        client, ground, "web", "LS", {"requests": {"cpu": "100m"}, "limits": {"cpu": "500m"}}
    )
    everywhere = (TOP, be_pod, be_box, ls_pod, ls_box)
    for group in (ls_pod, ls_box):
        fault = ground.tree.host.write(
            f"{ground.tree.group_path('cpu', group)}/{_quota_file(ground)}", _quota_text(ground)
        )
        assert fault is None
    before = ground.values(*everywhere)
    agent = agent_of(cluster, tmp_path)
    await agent.start()
    try:
        await until(lambda: agent.port is not None, "the port is open")
        await until(lambda: agent.control_loop is not None, "cgroups are found")
        # Without a NodeSLO nothing is touched, and the agent is up.
        assert ground.values(*everywhere) == before
        await order(
            client,
            {
                "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"},
                "cpuBurstStrategy": {"policy": "cpuBurstOnly"},
            },
            first=True,
        )
        await until(lambda: ground.value(QUOTA, TOP) != "-1", "BE is held by quota")
        cpus = len(agent.control_loop.machine.shape.processors) if agent.control_loop else 0
        assert 2_000 <= int(ground.value(QUOTA, TOP)) <= cpus * 65_000
        if ground.tree.is_supported(BURST, ls_box):
            await until(lambda: ground.value(BURST, ls_box) == "50000", "the burst is as large as the quota")
        await order(client, {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cpuset"}})
        await until(lambda: ground.value(QUOTA, TOP) == "-1", "the quota is given back when CPUs are used instead")
        metrics = await fetch(agent, "/metrics")
        assert f'koordlet_start_time{{node="{NODE}"}}' in metrics
        assert "koordlet_be_suppress_cpu_cores" in metrics
        assert "AdjustBEByNodeCPUUsage" in await fetch(agent, "/events")
        capabilities = await fetch(agent, "/apis/v1/capabilities")
        assert '"cpu.cfs_quota_us"' in capabilities
        held = ground.values(*everywhere)
    finally:
        await agent.stop()
    # An agent that ends leaves what it holds; the next one goes on, and restore puts all back.
    assert ground.values(*everywhere) == held
    assert await asyncio.to_thread(restore, tmp_path) == 0
    assert ground.values(*everywhere) == before


def restore(state: Path) -> int:
    """Run the command, which has an event loop of its own."""
    arguments = ["restore", f"--state-dir={state / 'state'}", f"--kubepods-cgroup={LAYOUT.kubepods}"]
    return command.run(arguments, {"agent_mode": "hostMode"})


async def fetch(agent: Koordlet, path: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{agent.port}{path}") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()


def _quota_file(ground: Ground) -> str:
    return QUOTA if ground.tree.version == 1 else "cpu.max"


def _quota_text(ground: Ground) -> str:
    return "50000" if ground.tree.version == 1 else "50000 100000"


async def test_a_killed_agent_is_taken_over_and_all_is_undone(ground: Ground, tmp_path: Path) -> None:
    """As a process of its own, over HTTPS, ended by SIGKILL."""
    cluster = EmbeddedCluster(ClusterSettings(port=0))
    await cluster.start()
    try:
        client = cluster.client
        assert client is not None
        await furnish(client)
        be_pod, be_box = await run_pod(client, ground, "batch", "BE", {})
        before = ground.values(TOP, be_pod, be_box)
        await order(
            client, {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}, first=True
        )
        for _ in range(2):
            async with process(cluster, tmp_path) as agent:
                await until(lambda: ground.value(QUOTA, TOP) != "-1", "BE is held")
                agent.kill()
                await agent.wait()
            assert ground.value(QUOTA, TOP) != "-1"
        await order(client, {"resourceUsedThresholdWithBE": {"enable": False}})
        async with process(cluster, tmp_path) as agent:
            await until(lambda: ground.value(QUOTA, TOP) == "-1", "BE is let go by the next process")
            agent.terminate()
            assert await agent.wait() == 0
        assert await asyncio.to_thread(restore, tmp_path) == 0
        assert ground.values(TOP, be_pod, be_box) == before
    finally:
        await cluster.stop()


@contextlib.asynccontextmanager
async def process(cluster: EmbeddedCluster, state: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    kubeconfig = state / "kubeconfig"
    named = {"name": "x"}
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "x",
                "contexts": [{**named, "context": {"cluster": "x", "user": "x"}}],
                "clusters": [{**named, "cluster": {"server": cluster.url, "insecure-skip-tls-verify": True}}],
                "users": [{**named, "user": {"token": cluster.token}}],
            }
        )
    )
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "koord.cli.daemons.koordlet",
        f"--kubeconfig={kubeconfig}",
        "-addr=127.0.0.1:0",
        f"--state-dir={state / 'state'}",
        f"--kubepods-cgroup={LAYOUT.kubepods}",
        "--pod-source=apiserver",
        f"--prediction-checkpoint-filepath={state / 'prediction'}",
        "--feature-gates=RdtResctrl=false",
        env={**os.environ, "NODE_NAME": NODE, "agent_mode": "hostMode"},
    )
    try:
        yield agent
    finally:
        if agent.returncode is None:
            agent.kill()
            await agent.wait()
