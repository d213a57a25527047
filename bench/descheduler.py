"""The descheduler: rounds over 5,000 nodes and 50,000 pods, what they hold in memory, arbitration beside them, and how
many moves it takes to cool a hot third of a cluster, in our order and in two others.
"""

from __future__ import annotations

import gc
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from koord.api.config.descheduler.plugin_args import API_VERSION
from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS
from koord.api.koordinator.scheduling import PodMigrationJob
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert, decode
from koord.descheduler.configuration import DeschedulerSetup, build_setup, load_config
from koord.descheduler.framework.plugin import EvictionProposal
from koord.descheduler.framework.round import RoundOutcome, run_round
from koord.descheduler.framework.snapshot import ClusterSnapshot, Workload
from koord.descheduler.migration.arbitration import arbitrate
from koord.descheduler.migration.plugin import MigrationControllerPlugin
from koord.descheduler.plugins.low_node_load import balance
from koord.descheduler.plugins.low_node_load.node_load import NodeLoad
from koord.descheduler.snapshot_source import trim_node_metric, trim_pod

NODES, PER_NODE, WORKLOADS = 5_000, 10, 2_500
NOW_S = 1_800_000_000.0
STAMP = datetime.fromtimestamp(NOW_S - 10, UTC).isoformat()
COOLED, COOLED_PER_NODE, MOST_ROUNDS = 100, 20, 200


class Content(msgspec.Struct):
    nodes: dict[str, Node]
    pods: list[Pod]
    metrics: dict[str, NodeMetric]
    workloads: dict[str, Workload]

    def snapshot(self, jobs: tuple[PodMigrationJob, ...] = ()) -> ClusterSnapshot:
        return ClusterSnapshot(
            now_s=NOW_S,
            nodes=self.nodes,
            pods=self.pods,
            metrics=self.metrics,
            workloads=self.workloads,
            jobs=jobs,
        )


def run() -> dict[str, Any]:
    before = _rss()
    content = _content(hot=0)
    gc.collect()
    gc.freeze()
    held = _rss() - before
    quiet = _rounds(content, 5)
    _heat(content, NODES // 3)
    hot = _rounds(content, 3)
    found = {
        "nodes": NODES,
        "pods": len(content.pods),
        "first_round_s": quiet[0],
        "quiet_round_s": statistics.median(quiet[1:]),
        "third_of_the_nodes_hot_s": statistics.median(hot),
        "arbitration_of_100_jobs_ms": round(_arbitration(content) * 1000, 2),
        "objects_mb": held,
        "peak_rss_mb": _rss(),
    }
    return found | {"cooling_a_hot_third_of_100_nodes": _cooling()}


def _rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def assembled(**migration: Any) -> DeschedulerSetup:
    args = {
        "lowThresholds": {"cpu": 45, "memory": 55},
        "highThresholds": {"cpu": 65, "memory": 80},
        "anomalyCondition": {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1},
    }
    config = load_config(
        {
            "apiVersion": API_VERSION,
            "kind": "DeschedulerConfiguration",
            "deschedulingInterval": "10s",
            "profiles": [
                {
                    "name": "p",
                    "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
                    "pluginConfig": [
                        {"name": "LowNodeLoad", "args": args},
                        {"name": "MigrationController", "args": migration},
                    ],
                }
            ],
        }
    )
    assert not isinstance(config, list), config
    made = build_setup(config)
    assert isinstance(made, DeschedulerSetup), made
    return made


def _rounds(content: Content, count: int) -> list[float]:
    """Seconds of one core for each; the first of them sees everything for the first time."""
    made, found = assembled(), []
    for _ in range(count):
        snapshot = content.snapshot()
        started = time.process_time()
        outcome = run_round(made.profiles, snapshot, made.limits)
        found.append(round(time.process_time() - started, 3))
        assert not outcome.error
    return found


def _content(hot: int) -> Content:
    """As a watch brings them: bytes to models, cut at once."""
    nodes, pods, metrics = {}, [], {}
    for i in range(NODES):
        name = f"n{i}"
        nodes[name] = _node(name, "32")
        mine = [_pod(i, j) for j in range(PER_NODE)]
        pods += [trim_pod(decode(msgspec.json.encode(pod), Pod)) for pod in mine]
        metrics[name] = _metric(name, {p["metadata"]["name"]: 500 + j * 30 for j, p in enumerate(mine)}, f"ns{i % 50}")
    workloads = {f"w{k}": _workload(f"w{k}", 20) for k in range(WORKLOADS)}
    return Content(nodes, pods, metrics, workloads)


def _heat(content: Content, count: int) -> None:
    for i in range(count):
        uses = {f"p{i}-{j}": 2_600 + j * 40 for j in range(PER_NODE)}
        content.metrics[f"n{i}"] = _metric(f"n{i}", uses, f"ns{i % 50}")


def _node(name: str, cpu: str) -> Node:
    room = {"cpu": cpu, "memory": "128Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    return convert(
        {"metadata": {"name": name, "uid": name}, "status": {"allocatable": room, "conditions": ready}}, Node
    )


def _pod(i: int, j: int, *, owner: str = "", cpu: str = "1", node: str = "") -> dict[str, Any]:
    owner = owner or f"w{(i * PER_NODE + j) % WORKLOADS}"
    container = {
        "name": "app",
        "image": "registry.example/app:1.0",
        "env": [{"name": f"SETTING_{k}", "value": "some value"} for k in range(10)],
        "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"cpu": "4", "memory": "4Gi"}},
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets"}],
    }
    status = {
        "phase": "Running",
        "qosClass": "Burstable",
        "podIP": "10.0.0.1",
        "conditions": [{"type": t, "status": "True", "lastTransitionTime": STAMP} for t in ("Ready", "PodScheduled")],
        "containerStatuses": [{"name": "app", "ready": True, "restartCount": 0, "imageID": "x", "containerID": "y"}],
        "startTime": STAMP,
    }
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}
    return {
        "metadata": {
            "name": f"p{i}-{j}",
            "namespace": f"ns{i % 50}",
            "uid": f"u{i}-{j}",
            "creationTimestamp": STAMP,
            "labels": {"app": owner, "koordinator.sh/qosClass": "LS"},
            "ownerReferences": [reference],
        },
        "spec": {
            "nodeName": node or f"n{i}",
            "schedulerName": "koord-scheduler",
            "priority": 9500 if j % 2 else 5500,
            "containers": [container],
            "volumes": [{"name": "token", "projected": {}}],
        },
        "status": status,
    }


def _metric(node: str, uses: dict[str, int], namespace: str, system: str = "1") -> NodeMetric:
    pods = [
        {"namespace": namespace, "name": name, "podUsage": {"resources": {"cpu": f"{milli}m", "memory": "1Gi"}}}
        for name, milli in uses.items()
    ]
    info = {"systemUsage": {"resources": {"cpu": system, "memory": "2Gi"}}}
    status = {"updateTime": STAMP, "nodeMetric": info, "podsMetric": pods}
    return trim_node_metric(convert({"metadata": {"name": node}, "status": status}, NodeMetric))


def _workload(name: str, replicas: int) -> Workload:
    return Workload(
        kind="ReplicaSet", namespace="", name=name, uid=name, replicas=replicas, controller_uids=frozenset((name,))
    )


def _arbitration(content: Content) -> float:
    """Seconds for one round of it, with a hundred jobs in line."""
    jobs = tuple(_job(pod) for pod in content.pods[:1000:10])
    plugin = assembled().profiles[0].evict
    assert isinstance(plugin, MigrationControllerPlugin)
    snapshot = content.snapshot(jobs)
    _ = snapshot.by_name, snapshot.by_owner, snapshot.by_node  # the program has them from its watches
    started = time.process_time()
    for _ in range(5):
        arbitrate(jobs, snapshot, plugin.protection, plugin.budget)
    return (time.process_time() - started) / 5


def _job(pod: Pod) -> PodMigrationJob:
    ref = {"namespace": pod.metadata.namespace, "name": pod.metadata.name, "uid": pod.metadata.uid}
    assert POD_MIGRATION_JOBS.kind == "PodMigrationJob"
    body = {"metadata": {"name": pod.metadata.uid, "creationTimestamp": STAMP}, "spec": {"podRef": ref}}
    return convert(body, PodMigrationJob)


# Cooling ---------------------------------------------------------------------------------------------------------


def _cooling() -> dict[str, Any]:
    """Every pod that a round asks for moves to the node that the round counted on, before the next round."""
    found: dict[str, Any] = {}
    for name, order in (("closest_cover", None), ("largest_first", _largest), ("any_order", _shuffled)):
        tried = [_cool(seed, order) for seed in range(5)]
        found[name] = {
            "moves": statistics.mean(one.moves for one in tried),
            "cores_moved": round(statistics.mean(one.cores for one in tried), 1),
            "rounds": statistics.mean(one.rounds for one in tried),
            "still_hot": statistics.mean(one.still_hot for one in tried),
        }
    return found


class Cooled(msgspec.Struct):
    moves: int = 0
    cores: float = 0.0
    rounds: int = 0
    still_hot: int = 0


Order = Callable[[random.Random, NodeLoad, Pod], float]


def _largest(rng: random.Random, source: NodeLoad, pod: Pod) -> float:
    """Biggest user first, whatever the excess."""
    return -float((source.usage_of_pod(pod) or {}).get("cpu", 0))


def _shuffled(rng: random.Random, source: NodeLoad, pod: Pod) -> float:
    return rng.random()


def _cool(seed: int, order: Order | None) -> Cooled:
    rng = random.Random(seed)
    uses: dict[str, int] = {}
    pods: dict[str, Pod] = {}
    nodes = {f"n{i}": _node(f"n{i}", "16") for i in range(COOLED)}
    for i in range(COOLED):
        hot = i < COOLED // 3
        for j in range(COOLED_PER_NODE if hot else COOLED_PER_NODE // 2):
            pod = convert(_pod(i, j, owner="w", cpu="100m"), Pod)
            pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, priority=5500))
            pods[pod.metadata.name] = pod
            uses[pod.metadata.name] = rng.randint(100, 1100) if hot else rng.randint(100, 700)
    made = assembled(
        defaultJobMode="EvictDirectly",
        maxMigratingPerNode=50,
        maxMigratingPerWorkload=2000,
        maxUnavailablePerWorkload=2000,
    )
    found = Cooled()
    while found.rounds < MOST_ROUNDS:
        snapshot = _state(nodes, pods, uses)
        with _Ordered(rng, order):
            outcome = run_round(made.profiles, snapshot, made.limits)
        targets = list(_targets(outcome))
        if not targets:
            break
        found.rounds += 1
        found.moves += len(targets)
        found.cores += sum(uses[name] for name, _ in targets) / 1000
        for name, target in targets:
            pods[name] = msgspec.structs.replace(
                pods[name], spec=msgspec.structs.replace(pods[name].spec, node_name=target)
            )
    found.still_hot = _hot(pods, uses)
    return found


def _state(nodes: dict[str, Node], pods: dict[str, Pod], uses: dict[str, int]) -> ClusterSnapshot:
    by_node: dict[str, list[Pod]] = {name: [] for name in nodes}
    for pod in pods.values():
        by_node[pod.spec.node_name].append(pod)
    metrics = {}
    for name, held in by_node.items():
        listed = [
            {
                "namespace": p.metadata.namespace,
                "name": p.metadata.name,
                "podUsage": {"resources": {"cpu": f"{uses[p.metadata.name]}m", "memory": "1Gi"}},
            }
            for p in held
        ]
        info = {"systemUsage": {"resources": {"cpu": "1", "memory": "2Gi"}}}
        status = {"updateTime": STAMP, "nodeMetric": info, "podsMetric": listed}
        metrics[name] = convert({"metadata": {"name": name}, "status": status}, NodeMetric)
    workloads = {"w": _workload("w", 5000)}
    return ClusterSnapshot(now_s=NOW_S, nodes=nodes, pods=list(pods.values()), metrics=metrics, workloads=workloads)


def _targets(outcome: RoundOutcome) -> Iterator[tuple[str, str]]:
    return ((e.pod.metadata.name, e.target) for e in outcome.effects if isinstance(e, EvictionProposal))


def _hot(pods: dict[str, Pod], uses: dict[str, int]) -> int:
    used: dict[str, int] = {}
    for name, pod in pods.items():
        used[pod.spec.node_name] = used.get(pod.spec.node_name, 1000) + uses[name]
    return sum(1 for amount in used.values() if amount > 0.65 * 16_000)


class _Ordered:
    """Pods of a node in another order than ours, for as long as it is entered."""

    def __init__(self, rng: random.Random, order: Order | None) -> None:
        self._rng = rng
        self._order = order
        self._ours = balance._coverage_sort_key

    def __enter__(self) -> None:
        order = self._order
        if order is not None:
            rng = self._rng
            balance._coverage_sort_key = lambda source, pod, over, weights: order(rng, source, pod)

    def __exit__(self, *_: object) -> None:
        balance._coverage_sort_key = self._ours
