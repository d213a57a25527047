"""From a pod's spec to a measured limit: koord-scheduler on an embedded API server chooses the card, the hook makes the
environment of the container, and the probe runs with it on the real card (`make test-gpu`).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from bench.gpu_session import ROOT, MpsSession, mps_session, why_no_mps

numpy = pytest.importorskip("numpy", reason="koord-scheduler needs numpy")

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration  # noqa: E402
from koord.api.koordinator.custom_kinds import DEVICES  # noqa: E402
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, L_GPU_ISOLATION_PROVIDER  # noqa: E402
from koord.api.kubernetes.builtin_kinds import NODES, PODS  # noqa: E402
from koord.api.kubernetes.pod import Pod  # noqa: E402
from koord.api.model import convert  # noqa: E402
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster  # noqa: E402
from koord.koordlet.hooks import gpu_env  # noqa: E402
from koord.koordlet.hooks.hook import ContainerContext, HookPlan, HookSettings, NodeRules, PodContext  # noqa: E402
from koord.kube.informer.factory import InformerFactory  # noqa: E402
from koord.kube.transport.api_error import unwrap  # noqa: E402
from koord.scheduler.configuration.completed_config import CompletedConfig  # noqa: E402
from koord.scheduler.plugins.device_share.plugin import DeviceShare  # noqa: E402
from koord.scheduler.plugins.registry import REGISTRY  # noqa: E402
from koord.scheduler.scheduler import Scheduler, StandaloneScheduler  # noqa: E402
from koord.telemetry.clock import WallClock  # noqa: E402

pytestmark = pytest.mark.skipif(bool(why_no_mps()), reason=why_no_mps() or "there is a card")

CORE, MEMORY, RATIO = (f"koordinator.sh/gpu-{name}" for name in ("core", "memory", "memory-ratio"))
LABEL = {L_GPU_ISOLATION_PROVIDER: "MPS"}
ASKED = {CORE: "30", RATIO: "10"}


async def schedule(minor: int, uuid: str, total_bytes: int) -> Pod:
    """Create a node with the machine's card and a pod that asks for a share; return the pod once it is bound."""
    cluster = EmbeddedCluster(ClusterSettings(http=False), [])
    await cluster.start()
    client = cluster.client
    assert client is not None
    room = {"cpu": "16", "memory": "64Gi", "pods": "10", CORE: "100", RATIO: "100", MEMORY: str(total_bytes)}
    node = {"metadata": {"name": "n", "labels": LABEL}, "status": {"allocatable": room, "capacity": room}}
    amounts = {CORE: "100", RATIO: "100", MEMORY: str(total_bytes)}
    card = {"type": "gpu", "id": uuid, "minor": minor, "health": True, "resources": amounts}
    unwrap(await client.create(NODES, node))
    unwrap(await client.create(DEVICES, {"metadata": {"name": "n"}, "spec": {"devices": [card]}}))
    clock = WallClock()
    informers = InformerFactory(client, clock)
    profile = {
        "schedulerName": "default-scheduler",
        "plugins": {"multiPoint": {"enabled": [{"name": DeviceShare.name}]}},
    }
    assembly = CompletedConfig.complete(convert({"profiles": [profile]}, KubeSchedulerConfiguration), REGISTRY)
    assert isinstance(assembly, CompletedConfig), assembly
    leading = StandaloneScheduler(Scheduler(client, informers, clock, assembly, seed=1))
    await leading.start()
    informers.start()
    await leading.scheduler.wait_synced()
    container = {"name": "c", "image": "app:1", "resources": {"requests": ASKED, "limits": ASKED}}
    meta = {"name": "p", "namespace": "default", "labels": LABEL}
    unwrap(await client.create(PODS, {"metadata": meta, "spec": {"containers": [container]}}))
    async with asyncio.timeout(30):
        while not (pod := unwrap(await client.get(PODS, "p", "default"))).spec.node_name:  # noqa: ASYNC110 - it is watched
            await asyncio.sleep(0.01)
    await leading.stop()
    await informers.stop()
    await cluster.stop()
    return pod


def hook_plan(pod: Pod, session: MpsSession) -> HookPlan:
    rules = NodeRules(
        gates=frozenset({"GPUEnvInject", gpu_env.MPS_GATE}),
        settings=HookSettings(mps_folder=session.folder),
        mps_daemons={session.card.minor: ""},
    )
    meta = pod.metadata
    context = PodContext(
        uid=meta.uid, namespace=meta.namespace, name=meta.name, labels=meta.labels, annotations=meta.annotations
    )
    return gpu_env.decide_container(ContainerContext(pod=context, name="c"), rules)


def test_a_pod_spec_becomes_a_limit_that_holds() -> None:
    with mps_session() as session:
        card = session.card
        pod = asyncio.run(schedule(card.minor, card.uuid, card.total_bytes))
        allocated = json.loads(pod.metadata.annotations[A_DEVICE_ALLOCATED])
        assert allocated["gpu"][0]["minor"] == card.minor
        plan = hook_plan(pod, session)
        assert not plan.problem
        # No container runtime is on this machine: what the mounts would show under another name is named directly.
        places = {mount.destination: mount.source for mount in plan.mounts}
        env = {name: places.get(value, value) for name, value in plan.env}
        done = subprocess.run(
            [sys.executable, "-m", "koord", "gpu", "verify", "-o", "json"],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "src"),
                **env,
                "KOORD_DEVICE_ALLOCATED": pod.metadata.annotations[A_DEVICE_ALLOCATED],
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stdout, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode, report["verdict"], report["provider"]) == (0, "holds", "MPS"), report
        by_name = {one["resource"]: one for one in report["limits"]}
        assert by_name["cores"]["asked"] == by_name["cores"]["granted"] == 30
        assert by_name["memory"]["asked"] == pytest.approx(card.total_bytes / 10, rel=0.01)
