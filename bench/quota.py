"""What quotas cost: 1,000 of them in a tree of depth 4 with 50,000 pods, and plain pods beside them.

Times are of one process on one core. A check is what every pod pays before it is placed and what every waiting pod
pays per event; a rebuild is what a change of the tree costs when the numbers are next asked for.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

from bench.engine import NODES, _cluster, _equal
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.koordinator.protocol import ROOT_QUOTA
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.decision import ChosenNode
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.plugins.elastic_quota.admission import (
    ClusterTotalChanged,
    QuotaPodAssumed,
    QuotaPodRemoved,
    QuotaPodUpdated,
    QuotaUpdated,
)
from koord.scheduler.plugins.elastic_quota.definition import QuotaDefinition, QuotaPod, QuotaRules
from koord.scheduler.plugins.elastic_quota.quota_manager import GroupQuotaManager
from koord.scheduler.plugins.registry import REGISTRY
from koord.values.resources import Amounts

PODS = 50_000
# 4 below the root, 5 below each of these, 7 below each of those and 6 below these again: 1,004 in all, 840 with pods.
_WIDTHS = (4, 5, 7, 6)
_UNBOUNDED = {"cpu": 2**60, "memory": 2**60}
ROUNDS = 5


def _amounts(cores: int) -> Amounts:
    return {"cpu": cores * 1000, "memory": cores << 32}


def _tree() -> tuple[list[QuotaDefinition], list[str]]:
    """All quotas and the names of the leaves. Mins fill their parent; every leaf may borrow four times its min."""
    quotas: list[QuotaDefinition] = []
    level = [("", 840 * 64)]
    for depth, width in enumerate(_WIDTHS):
        below = []
        for parent, least in level:
            for i in range(width):
                name = f"{parent}-{i}" if parent else f"q{i}"
                own = least // width
                most = _amounts(own * (4 if depth == len(_WIDTHS) - 1 else 2))
                quotas.append(
                    QuotaDefinition(
                        name=name,
                        namespace="quotas",
                        parent=parent or ROOT_QUOTA,
                        min=_amounts(own),
                        max=most,
                        weight=most,
                    )
                )
                below.append((name, own))
        level = below
    return quotas, [name for name, _ in level]


def _pod(number: int, quota: str) -> QuotaPod:
    return QuotaPod(uid=f"uid-{number}", namespace="default", name=f"pod-{number}", quota=quota, requests=_amounts(1))


def _book() -> tuple[GroupQuotaManager, list[str], float]:
    """Leaves in the first half of the tree ask for more than they get, so that shares matter."""
    quotas, leaves = _tree()
    book = GroupQuotaManager(QuotaRules(default_max=_UNBOUNDED, system_max=_UNBOUNDED))
    started = time.process_time()
    book.handle(ClusterTotalChanged(_amounts(840 * 56)))
    for quota in quotas:
        book.handle(QuotaUpdated(quota))
    for number in range(PODS):
        pod = _pod(number, leaves[number % len(leaves)] if number % 3 else leaves[number % (len(leaves) // 2)])
        book.handle(QuotaPodUpdated(pod))
        if book.check_pod(pod) is None:
            book.handle(QuotaPodAssumed(pod.uid))
    return book, leaves, time.process_time() - started


def _microseconds(calls: int, act: Callable[[int], None]) -> float:
    best = []
    for turn in range(ROUNDS):
        started = time.process_time()
        for i in range(calls):
            act(turn * calls + i)
        best.append(1e6 * (time.process_time() - started) / calls)
    return min(best)


def _book_costs() -> dict[str, Any]:
    book, leaves, filled_s = _book()
    pods = [book.pods[f"uid-{n}"] for n in range(0, PODS, 17)]
    results: dict[str, Any] = {
        "quotas": sum(1 for _ in book.quota_index),
        "depth": len(_WIDTHS),
        "pods": PODS,
        "assigned": len(book.assumed),
        "fill_with_a_check_per_pod_s": filled_s,
    }
    results["check_us"] = _microseconds(len(pods), lambda i: void(book.check_pod(pods[i % len(pods)])))

    def cycle(i: int) -> None:
        """A pod comes, is judged, gets its place; later it ends."""
        pod = _pod(PODS + i, leaves[i * 7 % len(leaves)])
        book.handle(QuotaPodUpdated(pod))
        if book.check_pod(pod) is None:
            book.handle(QuotaPodAssumed(pod.uid))
        book.handle(QuotaPodRemoved(pod.uid))

    results["life_of_a_pod_us"] = _microseconds(2_000, cycle)

    def rebuild(i: int) -> None:
        quota = book.quota_index[leaves[0]]
        most = {name: amount + 1 for name, amount in quota.max.items()}
        book.handle(
            QuotaUpdated(QuotaDefinition(name=quota.name, namespace=quota.namespace, parent=quota.parent, max=most))
        )
        void(book.runtime(leaves[-1]))

    results["recompute_after_a_change_of_the_tree_ms"] = _microseconds(5, rebuild) / 1000

    def all_runtimes(i: int) -> None:
        book.handle(ClusterTotalChanged(_amounts(840 * 56 - i % 5)))
        for tree in book.trees.trees.values():
            void(tree.all_runtimes())

    results["recompute_of_every_share_ms"] = _microseconds(5, all_runtimes) / 1000
    return results


def void(_: object) -> None:
    """Keeps a result from being thought unused."""


class _Listed:
    version = 0

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Any] = {}
        self._callbacks: list[Callable[[Any, Any], None]] = []

    def get(self, namespace: str, name: str) -> Any:
        return self._held.get((namespace, name))

    def list(self, namespace: str | None = None) -> list[Any]:
        return list(self._held.values())

    def on_change(self, callback: Callable[[Any, Any], None]) -> None:
        self._callbacks.append(callback)

    def put(self, obj: Any) -> None:
        key = (obj.metadata.namespace, obj.metadata.name)
        old = self._held.get(key)
        self._held[key] = obj
        for callback in self._callbacks:
            callback(old, obj)


class _Handle:
    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.actions = SchedulerActions()
        self.pods = _Listed()

    def lister(self, resource: Resource[Any]) -> Any:
        return self.pods if resource.kind == "Pod" else _Listed()

    def now(self) -> float:
        return 0.0


class _Side:
    def __init__(self, *, quota: bool) -> None:
        self.state = _cluster(NODES * 10)
        named = [{"name": "ElasticQuota"}]
        plugins = {"multiPoint": {"enabled": named if quota else [], "disabled": [] if quota else named}}
        config = convert(
            {"profiles": [{"schedulerName": "default-scheduler", "plugins": plugins}]}, KubeSchedulerConfiguration
        )
        assembly = CompletedConfig.complete(config, REGISTRY)
        assert isinstance(assembly, CompletedConfig), assembly
        self._handle = _Handle(self.state)
        (profile,) = assembly.make_profiles(self._handle)
        self._engine = SchedulingEngine(profile, self.state, seed=1)

    def infos(self, count: int) -> list[PodInfo]:
        """As the watch brings them: listed before they are decided."""
        pods = [pod for pod, _ in zip(_equal(), range(count), strict=False)]
        for pod in pods:
            self._handle.pods.put(pod)
        return [self.state.pod_info(pod) for pod in pods]

    def took(self, infos: list[PodInfo]) -> float:
        self._engine.decide(infos[0])
        gc.collect()
        gc.freeze()
        started = time.process_time()
        for info in infos:
            decision = self._engine.decide(info).decision
            assert isinstance(decision, ChosenNode), decision
            self.state.assume(info, decision.node)
        took = time.process_time() - started
        for info in infos:
            self.state.forget(info.uid)
        return took


def _plain_pods(count: int = 5_000) -> dict[str, Any]:
    """Pods that name no quota, with the plugin and without it."""
    sides = (_Side(quota=False), _Side(quota=True))
    rounds = [[side.took(side.infos(count)) for side in sides] for _ in range(2 * ROUNDS)]
    best = [1e6 * min(column) / count for column in zip(*rounds, strict=True)]
    slower = statistics.median(100 * (with_it / without - 1) for without, with_it in rounds)
    return {"without_us": best[0], "with_us": best[1], "slower_percent": slower}


def run() -> dict[str, Any]:
    return {**_book_costs(), "plain_pods": _plain_pods()}
