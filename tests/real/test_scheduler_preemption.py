"""Preemption beside the real kube-scheduler: random pods of all priorities, one after another, in one small cluster.

Before each pod is tried our state is made anew of what the server holds, and asked what may happen: where the pod may
be bound, which node and victims may be chosen for it, or in which words it is refused. kube-scheduler chooses among
equally good nodes at random; ours starts at a place that depends on the seed, so all that some seed chooses may be.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koord.api.kubernetes.builtin_kinds import NAMESPACES, NODES, POD_DISRUPTION_BUDGETS, PRIORITY_CLASSES
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.scheduler.cache.pod_model import PODS, Pod
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from tests.real.reach import connect
from tests.scheduler.builders import make_state
from tests.scheduler.preemption.cluster_fixture import PreemptionCluster
from tools import assets, controlplane
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

PATIENCE_S = 60
SPACE = "crowded"
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
CLASSES = {"least": -10, "low": 0, "middle": 5, "high": 10, "top": 20}
SEEDS = 24
GRACE_S = 3600  # nobody ends a pod here, so it stays on its way out until the test is done with it


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
async def kube_scheduler(plane: ControlPlane, folder: Path) -> AsyncIterator[None]:
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(plane.kubeconfig), "qps": 2000, "burst": 4000},
        "percentageOfNodesToScore": 100,
        # It adds words of its own to every refusal.
        "profiles": [{"plugins": {"multiPoint": {"disabled": [{"name": "DynamicResources"}]}}}],
    }
    path = folder / "scheduler.yaml"
    path.write_text(yaml.safe_dump(config))
    with (folder / "scheduler.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(assets.folder() / "kube-scheduler"),
            *("--config", str(path), "--secure-port", "0"),
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


# Random objects --------------------------------------------------------------------------------------------------


class Dice:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, *options: Any) -> Any:
        return self.random.choice(options)

    def some(self, options: list[str], count: int) -> list[str]:
        return self.random.sample(options, min(count, len(options)))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def node(self, name: str) -> dict[str, Any]:
        room = {"cpu": self.one("2", "4", "4"), "memory": "8Gi", "pods": self.one("3", "5", "110")}
        return {
            "metadata": {"name": name, "labels": {HOST: name, ZONE: self.one("a", "b")}},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}] if self.chance(0.15) else []},
            "status": {"allocatable": room, "capacity": room},
        }

    def pod(self, name: str, *, node: str = "", classes: tuple[str, ...], spread: bool = True) -> dict[str, Any]:
        container: dict[str, Any] = {
            "name": "c",
            "image": "i",
            "resources": {
                "requests": {"cpu": self.one("100m", "500m", "1", "2", "3"), "memory": self.one("1Gi", "2Gi", "5Gi")}
            },
        }
        if self.chance(0.15):
            container["ports"] = [{"containerPort": 80, "hostPort": self.one(80, 81)}]
        spec: dict[str, Any] = {
            "containers": [container],
            "priorityClassName": self.one(*classes),
            "terminationGracePeriodSeconds": GRACE_S,
        }
        if node:
            spec["nodeName"] = node
        if self.chance(0.1):
            spec["preemptionPolicy"] = "Never"
            spec["priorityClassName"] = "top-gentle"
        term = {"topologyKey": self.one(HOST, ZONE), "labelSelector": {"matchLabels": {"app": self.one("web", "db")}}}
        if self.chance(0.2):
            kind = self.one("podAntiAffinity", "podAntiAffinity", "podAffinity")
            spec["affinity"] = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        if self.chance(0.15) and spread:
            constraint = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **term}
            spec["topologySpreadConstraints"] = [constraint]
        if self.chance(0.1):
            spec["nodeSelector"] = {ZONE: "a"}
        labels = {"app": self.one("web", "db", "bat")}
        return {"metadata": {"name": name, "namespace": SPACE, "labels": labels}, "spec": spec}


# What may happen -------------------------------------------------------------------------------------------------


class May(msgspec.Struct, frozen=True):
    """Of one pod: nodes to be bound to, or the words of the refusal and what may be done about it."""

    nodes: frozenset[str] = frozenset()
    words: str = ""
    rooms: frozenset[tuple[str, frozenset[str]]] = frozenset()  # node and victims


class Cluster:
    """What the server holds, and our view of it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._started = 0

    async def pods(self) -> list[Pod]:
        return list(unwrap(await self._client.list(PODS, SPACE)).items)

    async def leaving(self) -> set[str]:
        """Pods on their way out."""
        return {pod.metadata.name for pod in await self.pods() if pod.metadata.deletion_timestamp}

    async def placed(self) -> list[str]:
        return sorted(pod.metadata.name for pod in await self.pods() if pod.spec.node_name)

    async def gated(self, given: dict[str, Any]) -> Pod:
        """The pod, held back until it is `tried`: meanwhile we look at what the server made of it."""
        spec = {**given["spec"], "schedulingGates": [{"name": "look"}]}
        return unwrap(await self._client.create(PODS, {**given, "spec": spec}))

    async def tried(self, pod: Pod) -> Pod:
        """The pod as soon as kube-scheduler has said something of it."""
        unwrap(
            await self._client.patch(PODS, pod.metadata.name, {"spec": {"schedulingGates": None}}, SPACE, kind="merge")
        )
        return await self._until(pod, lambda seen: bool(seen.spec.node_name) or bool(refusal(seen)))

    async def _facts(self, pod: Pod) -> Any:
        nodes = unwrap(await self._client.list(NODES)).items
        budgets = unwrap(await self._client.list(POD_DISRUPTION_BUDGETS)).items
        pods = [other for other in await self.pods() if other.metadata.uid != pod.metadata.uid]

        def made(seed: int) -> PreemptionCluster:
            scene = PreemptionCluster(make_state(nodes, pods), budgets, seed=seed)
            for other in pods:
                if not other.spec.node_name and other.status.nominated_node_name:
                    scene.nominate(other, other.status.nominated_node_name)
            return scene

        return made

    async def may(self, pod: Pod) -> May:
        made = await self._facts(pod)
        words, rooms = "", set()
        for seed in range(SEEDS):
            scene = made(seed)
            pod_info = scene.state.pod_info(pod)
            attempt = scene.engine.decide(pod_info)
            if isinstance(attempt.decision, ChosenNode):
                assert attempt.filter_results is not None
                rows = attempt.filter_results.feasible_rows()
                nodes = scene.state.table.nodes
                return May(nodes=frozenset(node.name for row in rows if (node := nodes[row]) is not None))
            assert isinstance(attempt.decision, Unschedulable), attempt.decision
            told = scene.engine.post_filter(attempt)
            words = told.message()
            if told.preempt is None:
                return May(words=words)
            rooms.add((told.preempt.node, frozenset(victim.name for victim in told.preempt.victims)))
        return May(words=words, rooms=frozenset(rooms))

    async def start(self, pod: Pod) -> None:
        """As a kubelet would: two pods never start at the same time here, so that their order is certain."""
        self._started += 1
        at = f"2026-01-01T{self._started // 60:02}:{self._started % 60:02}:00Z"
        patch = {"status": {"startTime": at}}
        unwrap(await self._client.patch(PODS, pod.metadata.name, patch, SPACE, kind="strategic", subresource="status"))

    async def end(self, *names: str) -> None:
        for name in names:
            await self._client.delete(PODS, name, SPACE, grace_seconds=0)

    async def bound(self, pod: Pod) -> str:
        """The node; empty when kube-scheduler has slept through the going of the victims, as it now and then does."""
        try:
            return (await self._until(pod, lambda seen: bool(seen.spec.node_name), PATIENCE_S / 3)).spec.node_name
        except TimeoutError:
            return ""

    async def _until(self, pod: Pod, wanted: Any, patience_s: float = PATIENCE_S) -> Pod:
        async with asyncio.timeout(patience_s):
            while True:
                seen = unwrap(await self._client.get(PODS, pod.metadata.name, SPACE))
                if wanted(seen):
                    return seen
                await asyncio.sleep(0.01)  # another process decides, and cannot set an event here

    async def made(
        self, rooms: frozenset[tuple[str, frozenset[str]]], node: str, before: set[str]
    ) -> frozenset[str] | None:
        """The victims that kube-scheduler evicts on its node; None when for long enough they are not what we expect."""
        for _ in range(300):
            gone = await self.leaving() - before
            for name, victims in rooms:
                if name == node and victims - before == gone:
                    return victims
            await asyncio.sleep(0.01)
        return None


def refusal(pod: Pod) -> str:
    found = (c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False")
    return next((c.message for c in found if c.reason != "SchedulingGated"), "")


async def prepare(client: Client, dice: Dice, cluster: Cluster) -> None:
    made = await client.create(NAMESPACES, {"metadata": {"name": SPACE}})
    assert not isinstance(made, ApiError) or made.code == 409
    for name, value in CLASSES.items():
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
    gentle = {"metadata": {"name": "top-gentle"}, "value": CLASSES["top"], "preemptionPolicy": "Never"}
    await client.create(PRIORITY_CLASSES, gentle)
    await client.delete_collection(PODS, SPACE, grace_seconds=0)
    await client.delete_collection(NODES)
    await client.delete_collection(POD_DISRUPTION_BUDGETS, SPACE)
    for i in range(6):
        unwrap(await client.create(NODES, dice.node(f"node{i}")))
    for app in ("web", "db"):
        budget = {"metadata": {"name": app}, "spec": {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": 1}}
        unwrap(await client.create(POD_DISRUPTION_BUDGETS, budget, SPACE))
        status = {"status": {"disruptionsAllowed": dice.one(0, 1)}}
        unwrap(await client.patch(POD_DISRUPTION_BUDGETS, app, status, SPACE, kind="merge", subresource="status"))
    for i in range(16):
        given = dice.pod(f"old{i}", node=f"node{dice.random.randrange(6)}", classes=("least", "low", "middle", "top"))
        await cluster.start(unwrap(await client.create(PODS, given)))


@pytest.mark.parametrize("seed", [21, 22, 23, 24])
async def test_victims_agree_with_kube_scheduler(
    lone_plane: ControlPlane, client: Client, tmp_path: Path, seed: int
) -> None:
    dice, cluster = Dice(seed), Cluster(client)
    await prepare(client, dice, cluster)
    outcomes = dict.fromkeys(("bound", "refused", "preempted", "moved-in", "beside-a-promise"), 0)
    victims: frozenset[str] = frozenset()
    disturbed = False
    promised: Pod | None = None  # one at a time, so that no other pod moves while one is looked at
    async with kube_scheduler(lone_plane, tmp_path):
        for i in range(120):
            leaving = await cluster.leaving()
            # kube-scheduler takes the going of a pod for relief of a spread even if it was on its way out, and so did
            # not count before; we do not, and evict nobody for that.
            given = dice.pod(f"new{i}", classes=("low", "middle", "high", "high", "top"), spread=not leaving)
            pod = await cluster.gated(given)
            may = await cluster.may(pod)
            seen = await cluster.tried(pod)
            told = f"{pod.metadata.name}: {may}"
            outcomes["beside-a-promise"] += promised is not None
            node = seen.status.nominated_node_name
            if seen.spec.node_name:
                outcomes["bound"] += 1
                assert seen.spec.node_name in may.nodes, told
                await cluster.start(pod)
                disturbed = True
            elif not node:
                outcomes["refused"] += 1
                assert refusal(seen) == may.words, told
                assert not may.rooms, told
                await cluster.end(pod.metadata.name)
            else:
                outcomes["preempted"] += 1
                assert refusal(seen) == may.words, told
                chosen = await cluster.made(may.rooms, node, leaving)
                assert chosen is not None, (node, await cluster.leaving() - leaving, told)
                if promised is not None:
                    await cluster.end(promised.metadata.name)
                promised, victims, disturbed = seen, chosen, False
            if promised is not None and dice.chance(0.4):
                if disturbed:  # who came since may have taken what it needs
                    await cluster.end(promised.metadata.name)
                else:
                    outcomes["moved-in"] += await move_in(cluster, promised, victims)
                promised = None
                await cluster.end(*await cluster.leaving())
                await cluster.end(*dice.some(await cluster.placed(), 3))
    assert min(outcomes.values()) > 2, outcomes


async def move_in(cluster: Cluster, pod: Pod, victims: frozenset[str]) -> bool:
    """The victims are gone at last, and the pod is bound: where room was made, or where some opened elsewhere first.

    Both must fit in our eyes. Which of them kube-scheduler takes depends on the moment of its attempt; a pod that it
    leaves waiting is taken away.
    """
    node = pod.status.nominated_node_name
    await cluster.end(*victims)
    bound = await cluster.bound(pod)
    may = await cluster.may(pod)
    assert {node, bound or node} <= may.nodes
    if not bound:
        await cluster.end(pod.metadata.name)
        return False
    await cluster.start(pod)
    return True
