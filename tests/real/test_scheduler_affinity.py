"""Topology spread and pod affinity beside the real kube-scheduler: random pods, one after another, in one cluster.

Both run nothing but these two plugins. A pod that kube-scheduler refuses must be refused by us in the same words; one
that it binds must be bound to a node that we score highest, so that filters and scores are both compared.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from koord.api.config.scheduler.in_tree_args import InterPodAffinityArgs, PodTopologySpreadArgs
from koord.api.kubernetes.builtin_kinds import NAMESPACES, NODES, REPLICA_SETS, SERVICES
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import PODS, Pod
from koord.scheduler.framework.decision import Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity
from koord.scheduler.plugins.pod_topology_spread.constraint import REPLICA_SET, SERVICE, OwnerIndex
from koord.scheduler.plugins.pod_topology_spread.plugin import PodTopologySpread
from koord.values.selector import Selector
from tests.real.reach import connect
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.affinity_clusters import NamespaceIndex
from tools import assets, controlplane
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

PATIENCE_S = 60
PLUGINS = ("PodTopologySpread", "InterPodAffinity")
SPACES: dict[str, dict[str, str]] = {"red": {"team": "red"}, "blue": {"team": "blue"}, "grey": {}}
KEYS = ("kubernetes.io/hostname", "topology.kubernetes.io/zone", "rack")


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
        "profiles": [
            {
                "schedulerName": "default-scheduler",
                "plugins": {
                    "multiPoint": {
                        "disabled": [{"name": "*"}],
                        "enabled": [
                            {"name": "PrioritySort"},
                            *({"name": name, "weight": 2} for name in PLUGINS),
                            {"name": "DefaultBinder"},
                        ],
                    }
                },
            }
        ],
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

    def node(self, name: str) -> dict[str, Any]:
        labels = {KEYS[0]: name} if self.random.random() < 0.9 else {}
        if self.random.random() < 0.85:
            labels[KEYS[1]] = self.one("a", "b", "c")
        if self.random.random() < 0.6:
            labels["rack"] = self.one("1", "2")
        taints = [{"key": "k", "effect": "NoSchedule"}] if self.random.random() < 0.3 else []
        return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}

    def selector(self) -> Any:
        return self.one(
            {"matchLabels": {"app": "web"}},
            {"matchLabels": {"app": "db"}},
            {"matchExpressions": [{"key": "tier", "operator": "Exists"}]},
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]},
            {"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "bat"]}]},
            {},
        )

    def constraint(self) -> dict[str, Any]:
        hard = self.random.random() < 0.7
        made: dict[str, Any] = {
            "maxSkew": self.one(1, 1, 1, 3),
            "topologyKey": self.one(*KEYS),
            "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
            "labelSelector": self.selector(),
        }
        if hard and self.random.random() < 0.3:
            made["minDomains"] = self.one(2, 4)
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if self.random.random() < 0.5:
                made[policy] = self.one("Honor", "Ignore")
        if self.random.random() < 0.3:
            made["matchLabelKeys"] = ["rev"]
        return made

    def term(self) -> dict[str, Any]:
        made: dict[str, Any] = {"topologyKey": self.one(*KEYS), "labelSelector": self.selector()}
        if self.random.random() < 0.2:
            made["namespaces"] = self.one(["red"], ["blue", "grey"])
        if self.random.random() < 0.3:
            made["namespaceSelector"] = self.one(
                {},
                {"matchLabels": {"team": "blue"}},
                {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["red"]}]},
            )
        if self.random.random() < 0.2:
            made[self.one("matchLabelKeys", "mismatchLabelKeys")] = ["rev"]
        return made

    def affinity(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for part in ("podAffinity", "podAntiAffinity"):
            if self.random.random() < 0.6:
                made[part] = {}
            if part in made and self.random.random() < 0.7:
                made[part]["requiredDuringSchedulingIgnoredDuringExecution"] = [
                    self.term() for _ in range(self.one(1, 1, 2))
                ]
            if part in made and self.random.random() < 0.6:
                made[part]["preferredDuringSchedulingIgnoredDuringExecution"] = [
                    {"weight": self.random.randint(1, 100), "podAffinityTerm": self.term()} for _ in range(2)
                ]
        return made

    def pod(self, name: str, node: str = "") -> dict[str, Any]:
        labels = {"app": self.one("web", "web", "db", "bat"), "rev": self.one("1", "2")}
        if self.random.random() < 0.5:
            labels["tier"] = self.one("x", "y")
        spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}]}
        if node:
            spec["nodeName"] = node
        if self.random.random() < 0.5:
            made = [self.constraint() for _ in range(self.one(1, 2, 3))]
            spec["topologySpreadConstraints"] = list(
                {(c["topologyKey"], c["whenUnsatisfiable"]): c for c in made}.values()
            )
        if self.random.random() < 0.5:
            spec["affinity"] = self.affinity()
        if self.random.random() < 0.2:
            wanted = [{"matchExpressions": [{"key": KEYS[1], "operator": "In", "values": ["a", "b"]}]}]
            spec.setdefault("affinity", {})["nodeAffinity"] = {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": wanted}
            }
        if self.random.random() < 0.3:
            spec["tolerations"] = [{"key": "k", "operator": "Exists"}]
        meta: dict[str, Any] = {
            "name": name,
            "namespace": self.one("red", "red", "red", "blue", "grey"),
            "labels": labels,
        }
        if self.random.random() < 0.4:
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "1", "controller": True}
            meta["ownerReferences"] = [owner]
        return {"metadata": meta, "spec": spec}


# The comparison --------------------------------------------------------------------------------------------------


class Ours:
    """Our two plugins over what the server stored."""

    def __init__(self) -> None:
        self.state = ClusterState()
        owners, namespaces = OwnerIndex(), NamespaceIndex()
        owners.set(SERVICE, "red", "web", Selector.from_labels({"app": "web"}))
        owners.set(REPLICA_SET, "red", "rs", Selector.from_label_selector({}, [("tier", "Exists", ())]))
        for name, labels in SPACES.items():
            namespaces.set(name, {**labels, "kubernetes.io/metadata.name": name})
        spread = PodTopologySpread(PodTopologySpreadArgs(defaulting_type="System"), self.state, owners)
        affinity = InterPodAffinity(InterPodAffinityArgs(hard_pod_affinity_weight=1), self.state, namespaces)
        self.engine = SchedulingEngine(profile_of([spread, affinity], dict.fromkeys(PLUGINS, 2)), self.state)

    def best(self, pod: Pod) -> set[str] | str:
        """The nodes that score highest, or the words of the refusal."""
        attempt = self.engine.decide(self.state.pod_info(pod))
        found = attempt.evaluation
        assert found is not None, attempt.decision
        rows = found.filter_results.feasible_rows()
        if not len(rows):
            assert isinstance(attempt.decision, Unschedulable)
            return attempt.decision.message()
        total = found.score_results.total[rows]
        return {node.name for row in rows[total == np.max(total)] if (node := self.state.table.nodes[row]) is not None}


async def answer(client: Client, pod: Pod) -> tuple[str, str]:
    """What kube-scheduler made of a pod: its node, or the words of the refusal."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = unwrap(await client.get(PODS, pod.metadata.name, pod.metadata.namespace))
            if seen.spec.node_name:
                return seen.spec.node_name, ""
            for condition in seen.status.conditions:
                if condition.type == "PodScheduled" and condition.status == "False":
                    return "", condition.message
            await asyncio.sleep(0.01)  # another process decides, and cannot set an event here


async def prepare(client: Client) -> None:
    for name, labels in SPACES.items():
        made = await client.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        assert not isinstance(made, ApiError) or made.code == 409
    ports = [{"port": 80}]
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": ports}}
    template = {"metadata": {"labels": {"tier": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    selector = {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}
    owner = {"metadata": {"name": "rs"}, "spec": {"replicas": 0, "selector": selector, "template": template}}
    await client.create(SERVICES, service, "red")
    await client.create(REPLICA_SETS, owner, "red")


async def clear(client: Client) -> None:
    for space in SPACES:
        await client.delete_collection(PODS, space, grace_seconds=0)
    await client.delete_collection(NODES)


@pytest.mark.parametrize("seed", [11, 12, 13, 14])
async def test_decisions_agree_with_kube_scheduler(
    lone_plane: ControlPlane, client: Client, tmp_path: Path, seed: int
) -> None:
    dice, ours = Dice(seed), Ours()
    await clear(client)
    await prepare(client)
    for i in range(8):
        ours.state.set_node(unwrap(await client.create(NODES, dice.node(f"node{i}"))))
    for i in range(14):
        given = dice.pod(f"old{i}", node=f"node{dice.random.randrange(8)}")
        made = unwrap(await client.create(PODS, given))
        if dice.random.random() < 0.15:  # no kubelet is there to end it, so it stays on its way out
            await client.delete(PODS, made.metadata.name, made.metadata.namespace, grace_seconds=3600)
            made = unwrap(await client.get(PODS, made.metadata.name, made.metadata.namespace))
        ours.state.set_pod(made)
    outcomes = {"bound": 0, "refused": 0}
    async with kube_scheduler(lone_plane, tmp_path):
        for i in range(120):
            pod = unwrap(await client.create(PODS, dice.pod(f"new{i}")))
            node, words = await answer(client, pod)
            told = ours.best(pod)
            if node:
                outcomes["bound"] += 1
                assert not isinstance(told, str), f"{pod.metadata.name}: on {node}, but we say {told}"
                assert node in told, f"{pod.metadata.name}: on {node}, but we prefer {told}"
                ours.state.set_pod(unwrap(await client.get(PODS, pod.metadata.name, pod.metadata.namespace)))
                if dice.random.random() < 0.3:  # room again, and counts that fall
                    await client.delete(PODS, pod.metadata.name, pod.metadata.namespace, grace_seconds=0)
                    ours.state.drop_pod(pod.metadata.uid)
            else:
                outcomes["refused"] += 1
                assert told == words, pod.metadata.name
                await client.delete(PODS, pod.metadata.name, pod.metadata.namespace, grace_seconds=0)
    assert min(outcomes.values()) > 8, outcomes
