"""kube-scheduler's whole default profile and ours on one cluster: random pods, one after another, with everything.

kube-scheduler decides; ours watches the same server as a standby would. Each pod is created behind a scheduling gate,
judged by ours, and let go. A pod that is refused must be refused by ours in the same words; one that is bound must be
on a node that ours scores highest, with the volumes that ours would have chosen there. More seeds than the usual ones:
KOORD_TAKEOVER_SEEDS="1 2 3".
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import yaml

from koord.api.kubernetes.builtin_kinds import (
    CSI_DRIVERS,
    CSI_NODES,
    CSI_STORAGE_CAPACITIES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PRIORITY_CLASSES,
    RUNTIME_CLASSES,
    STORAGE_CLASSES,
)
from koord.api.kubernetes.resource import Resource
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError, unwrap
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS, Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import load_configuration
from koord.scheduler.framework.attempt import failure_of_decision
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.runtime import run_pre_enqueue
from koord.scheduler.framework.verdict import PreBindActions
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.scheduler import Scheduler
from koord.telemetry.clock import WallClock
from tests.real import volume_keeper
from tests.real.reach import connect
from tests.real.scheduler_workload import (
    DRIVER,
    GATE,
    POOLED,
    ZONE,
    Dice,
    priority_classes,
    runtime_classes,
    storage_classes,
)
from tests.real.test_scheduler_affinity import SPACES, prepare
from tools import assets, controlplane
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

PATIENCE_S = 60
SEEDS = [int(seed) for seed in os.environ.get("KOORD_TAKEOVER_SEEDS", "1 2").split()]
COUNT = int(os.environ.get("KOORD_TAKEOVER_PODS", "110"))
NODE_COUNT = 10
SECOND_THOUGHT_S = 4  # kube-scheduler may have judged before its other watches caught up; it then judges again
MARGIN_S = 0.05  # what ours has seen, kube-scheduler has seen this much later
CONFIG: dict[str, Any] = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "percentageOfNodesToScore": 100,
    "profiles": [{"schedulerName": "default-scheduler"}],
}


@pytest.fixture(scope="module")
def lone_plane() -> Iterator[ControlPlane]:
    """A scheduler counts every node of its cluster, so it needs one of its own."""
    missing = [n for n in ("etcd", "kube-apiserver", "kube-scheduler") if not (assets.folder() / n).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    with controlplane.running() as running:
        yield running


@pytest.fixture
async def client(lone_plane: ControlPlane) -> AsyncIterator[Client]:
    async with connect(lone_plane.kubeconfig) as made:
        yield made


@asynccontextmanager
async def kube_scheduler(plane: ControlPlane, folder: Path, *flags: str) -> AsyncIterator[None]:
    path = folder / "scheduler.yaml"
    reach = {"kubeconfig": str(plane.kubeconfig), "qps": 2000, "burst": 4000}
    path.write_text(yaml.safe_dump({**CONFIG, "clientConnection": reach}))
    with (folder / "scheduler.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(assets.folder() / "kube-scheduler"),
            *("--config", str(path), "--secure-port", "0", *flags),
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


# Ours ----------------------------------------------------------------------------------------------------------------

Judged = Mapping[str, frozenset[tuple[str, ...]]] | str


class Standby:
    """The whole scheduler as far as it watches and judges; it never leads."""

    watched: tuple[Resource[Any], ...] = (PODS, NODES, PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS)

    def __init__(self, client: Client, gates: Mapping[str, bool] | None = None) -> None:
        config = load_configuration(CONFIG)
        assert not isinstance(config, list), config
        assembly = CompletedConfig.complete(config, REGISTRY, gates)
        assert isinstance(assembly, CompletedConfig), assembly
        self._client = client
        self._informers = InformerFactory(client, WallClock())
        self.scheduler = Scheduler(client, self._informers, WallClock(), assembly)
        self.engine = self.scheduler.engines["default-scheduler"]

    async def __aenter__(self) -> Self:
        await self.scheduler.start()
        self._informers.start()
        await self.scheduler.wait_synced()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.scheduler.stop()
        await self._informers.stop()

    async def caught_up(self) -> None:
        """Ours shows all that the server holds."""
        for resource in self.watched:
            informer = self._informers.for_resource(resource)
            there = {
                o.metadata.uid: o.metadata.resource_version for o in unwrap(await self._client.list(resource)).items
            }
            async with asyncio.timeout(PATIENCE_S):
                while {o.metadata.uid: o.metadata.resource_version for o in informer.list()} != there:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)  # only the wire knows when the next event comes

    def judged(self, pod: Pod) -> Judged:
        """The nodes that score highest, each with the volumes that would be chosen there; or the refusal's words."""
        engine, state = self.engine, self.scheduler.state
        info = state.pod_info(pod)
        attempt = engine.decide(info)
        decision, found = attempt.decision, attempt.evaluation
        if isinstance(decision, Unschedulable):
            decision = engine.post_filter(attempt)
        if not isinstance(decision, ChosenNode):
            return failure_of_decision(decision).message
        assert found is not None
        total = found.score_results.total
        names = [node.name for row in np.flatnonzero(total == np.max(total)) if (node := state.table.nodes[row])]
        assert decision.node in names
        return {name: self._chosen(attempt.cycle, info, name) for name in names}

    def _chosen(self, cycle: CycleState, pod: PodInfo, name: str) -> frozenset[tuple[str, ...]]:
        (plugin,) = (p for p in self.engine.profile.plugins_at(Plugin.pre_bind) if p.name == "VolumeBinding")
        refused = plugin.reserve(cycle, pod, self.scheduler.state.table.index[name])
        assert refused is None, (name, refused)
        work = plugin.pre_bind(cycle, pod, name)
        plugin.unreserve(cycle, pod, name)
        if work is None:
            return frozenset()
        assert isinstance(work, PreBindActions)
        return frozenset(
            ("bind", write.name, write.patch["spec"]["claimRef"]["name"])
            if write.resource is PERSISTENT_VOLUMES
            else ("make", write.name, name)
            for write in work.writes
        )

    def gated(self, pod: Pod) -> bool:
        info = self.scheduler.state.pod_info(pod)
        return run_pre_enqueue(self.engine.profile, info) is not None


# The cluster ---------------------------------------------------------------------------------------------------------


class Stage:
    """One cluster and everything that happens on it."""

    def __init__(self, client: Client, dice: Dice) -> None:
        self.client = client
        self.dice = dice
        self.claims: dict[str, list[str]] = {space: [] for space in SPACES}
        self._number = 0

    async def clear(self) -> None:
        for space in SPACES:
            await self.client.delete_collection(PODS, space, grace_seconds=0)
        for space in SPACES:
            for claim in unwrap(await self.client.list(PERSISTENT_VOLUME_CLAIMS, space)).items:
                await self._gone(PERSISTENT_VOLUME_CLAIMS, claim.metadata.name, space)
        for volume in unwrap(await self.client.list(PERSISTENT_VOLUMES)).items:
            await self._gone(PERSISTENT_VOLUMES, volume.metadata.name)
        await self.client.delete_collection(CSI_STORAGE_CAPACITIES, "default")
        await self.client.delete_collection(CSI_NODES)
        await self.client.delete_collection(NODES)

    async def _gone(self, resource: Any, name: str, space: str | None = None) -> None:
        await self.client.patch(resource, name, {"metadata": {"finalizers": None}}, space, kind="merge")
        await self.client.delete(resource, name, space)

    async def build(self) -> None:
        client, dice = self.client, self.dice
        await prepare(client)
        for resource, objects in (
            (STORAGE_CLASSES, storage_classes()),
            (RUNTIME_CLASSES, runtime_classes()),
            (PRIORITY_CLASSES, priority_classes()),
            (CSI_DRIVERS, [{"metadata": {"name": DRIVER}, "spec": {}}]),
            (CSI_DRIVERS, [{"metadata": {"name": POOLED}, "spec": {"storageCapacity": True}}]),
        ):
            for each in objects:
                made = await client.create(resource, each)
                assert not isinstance(made, ApiError) or made.code in (403, 409), made  # it is there already
        for i in range(NODE_COUNT):
            node = unwrap(await client.create(NODES, dice.node(f"node{i}")))
            if dice.chance(0.7):
                driver: dict[str, Any] = {"name": DRIVER, "nodeID": node.metadata.name, "topologyKeys": None}
                driver |= {"allocatable": {"count": dice.one(1, 2, 8)}} if dice.chance(0.8) else {}
                csi_node = {"metadata": {"name": node.metadata.name}, "spec": {"drivers": [driver]}}
                unwrap(await client.create(CSI_NODES, csi_node))
        for zone, room in (("a", "3Gi"), ("b", "1Gi")):
            pool = {"metadata": {"name": f"pool-{zone}", "namespace": "default"}, "storageClassName": "pool"}
            topology = {"matchLabels": {ZONE: zone}}
            unwrap(await client.create(CSI_STORAGE_CAPACITIES, {**pool, "capacity": room, "nodeTopology": topology}))
        for i in range(16):
            await volume_keeper.offer(client, dice.volume(i, f"shelf-{i}", dice.one("shelf", "shelf", "made")))
        for i in range(10):
            await self._bound_pair(i)
        for i in range(12):
            given = dice.pod(f"old{i}", node=f"node{dice.random.randrange(NODE_COUNT)}")
            if dice.chance(0.4):
                await self._mount(given)
            made_pod = await client.create(PODS, given)
            assert not isinstance(made_pod, ApiError) or made_pod.code == 422, made_pod

    async def _bound_pair(self, i: int) -> None:
        dice, space = self.dice, self.dice.one("red", "red", "blue")
        volume = dice.volume(i, f"owned-{i}", "now")
        unwrap(await self.client.create(PERSISTENT_VOLUMES, volume))
        claim = unwrap(await self.client.create(PERSISTENT_VOLUME_CLAIMS, dice.claim(f"owned-{i}", space, "now")))
        await volume_keeper.join(self.client, f"owned-{i}", claim)
        self.claims[space].append(claim.metadata.name)
        if dice.chance(0.1):
            await self._gone(PERSISTENT_VOLUMES, f"owned-{i}")

    async def _mount(self, pod: dict[str, Any]) -> None:
        """Give a pod claims: known ones, new ones of every class, ones that are missing or on their way out."""
        dice, space = self.dice, pod["metadata"]["namespace"]
        held, names = dice.volumes(pod["spec"]), set[str]()
        for i in range(dice.one(1, 1, 2)):
            self._number += 1
            name = f"claim-{self._number}"
            known = [each for each in self.claims[space] if each not in names]
            if known and dice.chance(0.5):
                name = dice.one(*known[-6:])  # those that are in use
            elif not dice.chance(0.06):
                storage_class = dice.one("shelf", "shelf", "shelf", "made", "made", "pool", "now")
                unwrap(await self.client.create(PERSISTENT_VOLUME_CLAIMS, dice.claim(name, space, storage_class)))
                self.claims[space].append(name)
                if dice.chance(0.05):
                    await self.client.delete(PERSISTENT_VOLUME_CLAIMS, name, space)
            names.add(name)
            held.append({"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}})

    async def gated_pod(self, name: str) -> Pod:
        while (made := await self._gated_pod(name)) is None:
            pass
        return made

    async def _gated_pod(self, name: str) -> Pod | None:
        """None when the dice made one that no server takes."""
        dice = self.dice
        given = dice.pod(name)
        given["spec"]["schedulingGates"] = [{"name": GATE}]
        if dice.chance(0.4):
            await self._mount(given)
        claim = None
        if dice.chance(0.04):
            space = given["metadata"]["namespace"]
            claim = dice.claim(f"{name}-own", space, dice.one("shelf", "made"))
            template = {"spec": claim["spec"]}
            dice.volumes(given["spec"]).append({"name": "own", "ephemeral": {"volumeClaimTemplate": template}})
        created = await self.client.create(PODS, given)
        if isinstance(created, ApiError):
            assert created.code == 422, (given, created)
            return None
        if claim is not None and dice.chance(0.7):
            owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": created.metadata.uid, "controller": True}
            claim["metadata"]["ownerReferences"] = [owner]
            unwrap(await self.client.create(PERSISTENT_VOLUME_CLAIMS, claim))
        return created

    async def let_go(self, pod: Pod) -> None:
        patch = {"spec": {"schedulingGates": None}}
        unwrap(await self.client.patch(PODS, pod.metadata.name, patch, pod.metadata.namespace, kind="merge"))

    async def change_a_node(self) -> None:
        dice, name = self.dice, f"node{self.dice.random.randrange(NODE_COUNT)}"
        patch: dict[str, Any] = dice.one(
            {"spec": {"unschedulable": dice.one(True, None)}},
            {"spec": {"taints": dice.taints()}},
            {"metadata": {"labels": {"disk": dice.one("ssd", "hdd"), ZONE: dice.one("a", "b", "c")}}},
        )
        unwrap(await self.client.patch(NODES, name, patch, kind="merge"))

    async def answer(self, pod: Pod) -> tuple[str, str]:
        """What kube-scheduler made of a pod: its node, or the words of the refusal."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                seen = unwrap(await self.client.get(PODS, pod.metadata.name, pod.metadata.namespace))
                if seen.spec.node_name:
                    return seen.spec.node_name, ""
                for condition in seen.status.conditions:
                    if condition.type == "PodScheduled" and condition.reason in ("Unschedulable", "SchedulerError"):
                        return "", condition.message
                await asyncio.sleep(0.01)  # another process decides, and cannot set an event here

    async def chosen_volumes(self, before: Mapping[str, str | None]) -> frozenset[tuple[str, ...]]:
        """Which volumes were bound and which were asked for since then."""
        found = set[tuple[str, ...]]()
        for claim in unwrap(await self.client.list(PERSISTENT_VOLUME_CLAIMS)).items:
            name, near = claim.metadata.name, claim.metadata.annotations.get(volume_keeper.SELECTED_NODE)
            if near is not None and before[claim.metadata.uid] is None:
                found.add(("make", name, near))
            elif near is None and claim.spec.volume_name and before[claim.metadata.uid] is None:
                found.add(("bind", claim.spec.volume_name, name))
        return frozenset(found)

    async def settled_claims(self) -> dict[str, str | None]:
        """By uid: what was chosen for each claim already."""
        return {
            claim.metadata.uid: claim.spec.volume_name or claim.metadata.annotations.get(volume_keeper.SELECTED_NODE)
            for claim in unwrap(await self.client.list(PERSISTENT_VOLUME_CLAIMS)).items
        }


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_decision_agrees_with_kube_scheduler(
    lone_plane: ControlPlane, client: Client, tmp_path: Path, seed: int
) -> None:
    dice = Dice(seed)
    stage = Stage(client, dice)
    await stage.clear()
    await stage.build()
    drivers = {"made": DRIVER, "pool": POOLED}
    outcomes = {"bound": 0, "refused": 0, "with volumes": 0}
    async with kube_scheduler(lone_plane, tmp_path), Standby(client) as ours, volume_keeper.keeping(client, drivers):
        for i in range(COUNT):
            if dice.chance(0.1):
                await stage.change_a_node()
            pod = await stage.gated_pod(f"new{i}")
            before = await stage.settled_claims()
            await ours.caught_up()
            assert ours.gated(pod)
            told = ours.judged(pod)
            await asyncio.sleep(MARGIN_S)
            await stage.let_go(pod)
            node, words = await stage.answer(pod)
            patience = time.monotonic() + SECOND_THOUGHT_S
            while words and words != told and time.monotonic() < patience:
                await asyncio.sleep(0.1)  # as in `answer`
                node, words = await stage.answer(pod)
            what = f"seed {seed}, {pod.metadata.name}: {pod.spec}"
            if node:
                outcomes["bound"] += 1
                assert not isinstance(told, str), f"on {node}, but ours says {told}; {what}"
                assert node in told, f"on {node}, but ours prefers {sorted(told)}; {what}"
                chosen = await stage.chosen_volumes(before)
                outcomes["with volumes"] += bool(chosen)
                assert chosen == told[node], f"on {node}; {what}"
            else:
                outcomes["refused"] += 1
                assert told == words, what
            if not node or dice.chance(0.35):
                await client.delete(PODS, pod.metadata.name, pod.metadata.namespace, grace_seconds=0)
    assert min(outcomes["bound"], outcomes["refused"]) > COUNT // 12, outcomes
    assert outcomes["with volumes"] > 1, outcomes
