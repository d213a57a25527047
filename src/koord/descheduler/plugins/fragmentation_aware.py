"""FragmentationAware evicts one pod from a node with unbalanced requests: the one that balances it most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from koord.api.config.descheduler.plugin_args import FragmentationAwareArgs
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.plugin import DeschedulerPlugin, EvictorHandle
from koord.descheduler.framework.pod_selection import PodFilter, build_selector
from koord.descheduler.framework.snapshot import NodeFitChecker, allocatable


def imbalance(requested: Mapping[str, int], size: Mapping[str, int], resources: Sequence[str]) -> float:
    """Return the standard deviation of the requested shares; 0 is balanced."""
    shares = [requested.get(name, 0) / size[name] for name in resources if size.get(name, 0)]
    if not shares:
        return 0.0
    mean = sum(shares) / len(shares)
    return math.sqrt(sum((share - mean) ** 2 for share in shares) / len(shares))


class FragmentationAwareBalance(DeschedulerPlugin):
    name: ClassVar[str] = "FragmentationAware"

    def __init__(self, args: FragmentationAwareArgs) -> None:
        """Take defaulted and validated arguments."""
        self._args = args
        self._pod_filter = PodFilter(args.evictable_namespaces, args.pod_selectors)
        self._nodes = build_selector(args.node_selector)

    def balance(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        if self._args.paused:
            return None
        chosen = [n for n in nodes if self._nodes is None or self._nodes.matches(n.metadata.labels)]
        fit_checker = NodeFitChecker(handle.snapshot)
        for node in chosen:
            self._balance_node(node, chosen, handle, fit_checker)
        return None

    def _balance_node(
        self, node: Node, nodes: Sequence[Node], handle: EvictorHandle, fit_checker: NodeFitChecker
    ) -> None:
        args, size = self._args, allocatable(node)
        pods = list(handle.snapshot.pods_on_node(node.metadata.name))
        requested: dict[str, int] = {}
        for pod in pods:
            for name, amount in fit_checker.requests(pod).items():
                requested[name] = requested.get(name, 0) + amount
        before = imbalance(requested, size, args.resources)
        if before <= (args.imbalance_threshold or 0.0):
            return
        best: tuple[float, float, Pod] | None = None
        for pod in pods:
            taken = fit_checker.requests(pod)
            rest = {name: amount - taken.get(name, 0) for name, amount in requested.items()}
            after = imbalance(rest, size, args.resources)
            gain = before - after
            # What costs nothing is asked first: whether it may go and where is only of interest if it would help most.
            if gain <= (args.min_improvement_threshold or 0.0) or (best is not None and gain <= best[0]):
                continue
            if not self._pod_filter.matches(pod) or handle.filter(pod) is not None:
                continue
            if args.node_fit and fit_checker.first_other_fit(pod, nodes) is None:
                continue
            best = (gain, after, pod)
        if best is None or handle.pre_eviction_filter(best[2]) is not None:
            return
        gain, after, pod = best
        reason = f"fragmentation reduction: stdBefore={before:.4f} stdAfter={after:.4f} gain={gain:.4f}"
        target = fit_checker.first_other_fit(pod, nodes) if args.node_fit else None
        name = target.metadata.name if target is not None else ""
        handle.evict(pod, reason, target=name, dry_run=bool(args.dry_run))
