"""ScaleDownBinPack ranks pods for scale-down so that whole nodes become empty.

It writes deletion costs that controllers read when they scale down, or evicts in that order itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from koord.api.config.descheduler.bin_pack import CALCULATE_ONLY, ScaleDownBinPackArgs
from koord.api.node import Node
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Hand
from koord.descheduler.plugins.capacity import allocatable
from koord.descheduler.plugins.choice import Choice, selector_of
from koord.descheduler.plugins.node_fit import Fitting
from koord.descheduler.plugins.standing import DELETION_COST
from koord.descheduler.wire import Pod

LAST = 2_147_483_647
REASON = "scale-down binpack"


class Candidate(msgspec.Struct, frozen=True):
    score: float  # smaller is emptied sooner
    eligible: list[Pod]  # in the order in which they should go
    skipped: list[Pod]  # ours to count, but not to evict
    name: str


class ScaleDownBinPack(Plugin):
    name: ClassVar[str] = "ScaleDownBinPack"

    def __init__(self, args: ScaleDownBinPackArgs) -> None:
        """Take defaulted and validated arguments."""
        self._args = args
        anyone = any(entry.selector is None for entry in args.pod_selectors)  # then a selector more is no restriction
        self._choice = Choice(args.evictable_namespaces, () if anyone else args.pod_selectors)
        self._nodes = selector_of(args.node_selector)

    def balance(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        if self._args.paused:
            return None
        fitting = Fitting(hand.snapshot)
        found = [
            candidate
            for node in nodes
            if self._nodes is None or self._nodes.matches(node.metadata.labels)
            if (candidate := self._candidate(node, hand, fitting)) is not None
        ]
        found.sort(key=lambda c: (c.score, len(c.eligible), c.name))
        ranked = [pod for candidate in found for pod in candidate.eligible]
        if self._args.strategy == CALCULATE_ONLY:
            for rank, pod in enumerate(ranked):
                _cost(hand, pod, rank)
            for candidate in found:
                for pod in candidate.skipped:
                    _cost(hand, pod, LAST)
            return None
        left = self._args.max_pods_to_evict or 0
        for pod in ranked:
            if left <= 0:
                break
            left -= hand.evict(pod, REASON) is None
        return None

    def _candidate(self, node: Node, hand: Hand, fitting: Fitting) -> Candidate | None:
        size = allocatable(node)
        eligible, skipped, others = [], [], []
        for pod in hand.snapshot.on(node.metadata.name):
            if not self._choice.takes_labels(pod):
                others.append(pod)
            elif self._choice.takes_namespace(pod.metadata.namespace) and hand.refuses(pod) is None:
                eligible.append(pod)
            else:
                skipped.append(pod)
        if not eligible:
            return None
        staying = sum(self._share(fitting.requests(pod), size) for pod in (*others, *skipped))
        going = sum(self._share(fitting.requests(pod), size) for pod in eligible)
        score = staying / going if going else (math.inf if staying else 0.0)

        def order(pod: Pod) -> tuple[float, float, str, str]:
            created = pod.metadata.creation_timestamp
            age = 0.0 if created is None else -created.timestamp()
            return -self._share(fitting.requests(pod), size), age, pod.metadata.namespace, pod.metadata.name

        return Candidate(score, sorted(eligible, key=order), skipped, node.metadata.name)

    def _share(self, requests: Mapping[str, int], size: Mapping[str, int]) -> float:
        weights = self._args.resource_weights
        return sum(weights[n] * requests.get(n, 0) / size[n] for n in self._args.resources if size.get(n, 0))


def _cost(hand: Hand, pod: Pod, rank: int) -> None:
    """Annotate the pod only where the cost differs: a round that changes nothing writes nothing."""
    if pod.metadata.annotations.get(DELETION_COST) != str(rank):
        hand.annotate(pod, {DELETION_COST: str(rank)}, reason=REASON)
