"""ScaleDownBinPack ranks pods for scale-down so that whole nodes become empty.

It writes deletion costs that controllers read when they scale down, or evicts in that order itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from koord.api.config.descheduler.plugin_args import BIN_PACK_CALCULATE_ONLY, ScaleDownBinPackArgs
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.plugin import DeschedulerPlugin, EvictorHandle
from koord.descheduler.framework.pod_selection import DELETION_COST, PodFilter, build_selector
from koord.descheduler.framework.snapshot import NodeFitChecker, allocatable

MAX_DELETION_COST = 2_147_483_647
REASON = "scale-down binpack"


class BinPackCandidate(msgspec.Struct, frozen=True):
    score: float  # smaller is emptied sooner
    eligible: list[Pod]  # in the order in which they should go
    skipped: list[Pod]  # ours to count, but not to evict
    name: str


class ScaleDownBinPack(DeschedulerPlugin):
    name: ClassVar[str] = "ScaleDownBinPack"

    def __init__(self, args: ScaleDownBinPackArgs) -> None:
        """Take defaulted and validated arguments."""
        self._args = args
        anyone = any(entry.selector is None for entry in args.pod_selectors)  # then a selector more is no restriction
        self._pod_filter = PodFilter(args.evictable_namespaces, () if anyone else args.pod_selectors)
        self._nodes = build_selector(args.node_selector)

    def balance(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        if self._args.paused:
            return None
        fit_checker = NodeFitChecker(handle.snapshot)
        found = [
            candidate
            for node in nodes
            if self._nodes is None or self._nodes.matches(node.metadata.labels)
            if (candidate := self._candidate(node, handle, fit_checker)) is not None
        ]
        found.sort(key=lambda c: (c.score, len(c.eligible), c.name))
        ranked = [pod for candidate in found for pod in candidate.eligible]
        if self._args.strategy == BIN_PACK_CALCULATE_ONLY:
            for rank, pod in enumerate(ranked):
                _annotate_deletion_cost(handle, pod, rank)
            for candidate in found:
                for pod in candidate.skipped:
                    _annotate_deletion_cost(handle, pod, MAX_DELETION_COST)
            return None
        left = self._args.max_pods_to_evict or 0
        for pod in ranked:
            if left <= 0:
                break
            left -= handle.evict(pod, REASON) is None
        return None

    def _candidate(self, node: Node, handle: EvictorHandle, fit_checker: NodeFitChecker) -> BinPackCandidate | None:
        size = allocatable(node)
        eligible, skipped, others = [], [], []
        for pod in handle.snapshot.pods_on_node(node.metadata.name):
            if not self._pod_filter.matches_labels(pod):
                others.append(pod)
            elif self._pod_filter.matches_namespace(pod.metadata.namespace) and handle.filter(pod) is None:
                eligible.append(pod)
            else:
                skipped.append(pod)
        if not eligible:
            return None
        staying = sum(self._share(fit_checker.requests(pod), size) for pod in (*others, *skipped))
        going = sum(self._share(fit_checker.requests(pod), size) for pod in eligible)
        score = staying / going if going else (math.inf if staying else 0.0)

        def order(pod: Pod) -> tuple[float, float, str, str]:
            created = pod.metadata.creation_timestamp
            age = 0.0 if created is None else -created.timestamp()
            return -self._share(fit_checker.requests(pod), size), age, pod.metadata.namespace, pod.metadata.name

        return BinPackCandidate(score, sorted(eligible, key=order), skipped, node.metadata.name)

    def _share(self, requests: Mapping[str, int], size: Mapping[str, int]) -> float:
        weights = self._args.resource_weights
        return sum(weights[n] * requests.get(n, 0) / size[n] for n in self._args.resources if size.get(n, 0))


def _annotate_deletion_cost(handle: EvictorHandle, pod: Pod, rank: int) -> None:
    """Annotate the pod only where the cost differs: a round that changes nothing writes nothing."""
    if pod.metadata.annotations.get(DELETION_COST) != str(rank):
        handle.annotate(pod, {DELETION_COST: str(rank)}, reason=REASON)
