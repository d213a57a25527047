"""Balancing of one pool: evict pods from overutilized nodes until they are not, or the targets have no headroom left.

Pods are tried in eviction order, each on the first target where it fits; its usage is booked there at once, so that the
next one sees a fuller cluster. Upstream books every candidate first, in random order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from koord.api.koordinator.resource_name import CPU, MEMORY, PODS
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.plugin import EvictionFigures
from koord.descheduler.framework.pod_selection import sort_for_eviction
from koord.descheduler.framework.snapshot import NodeFitChecker
from koord.descheduler.plugins.low_node_load.node_load import NodeLoad, is_overutilized

MIN_CAPACITY = -(1 << 62)


class FirstFitTree:
    """A segment tree over targets in order that finds the first with enough capacity without checking each.

    `rooms` are capacities by target and resource; every branch knows the maximum of each resource below it.
    """

    def __init__(self, rooms: Sequence[Sequence[int]]) -> None:
        self._size = 1 << max(len(rooms) - 1, 0).bit_length()
        kinds = len(rooms[0]) if rooms else 0
        self._most = [[MIN_CAPACITY] * (2 * self._size) for _ in range(kinds)]
        for most, amounts in zip(self._most, zip(*rooms, strict=True), strict=True):
            most[self._size : self._size + len(amounts)] = amounts
            for branch in range(self._size - 1, 0, -1):
                most[branch] = max(most[2 * branch], most[2 * branch + 1])

    def update(self, index: int, room: Sequence[int]) -> None:
        """Set the capacity of one target."""
        for most, amount in zip(self._most, room, strict=True):
            branch = self._size + index
            most[branch] = amount
            while branch > 1:
                branch //= 2
                most[branch] = max(most[2 * branch], most[2 * branch + 1])

    def find_first(self, wanted: Sequence[int], suits: Callable[[int], bool]) -> int | None:
        """Return the index of the first target that has enough of every resource and also suits."""
        if not self._most:
            return None
        pairs = list(zip(self._most, wanted, strict=True))
        branches = [1]
        while branches:
            branch = branches.pop()
            for most, amount in pairs:
                if most[branch] < amount:
                    break
            else:
                if branch >= self._size:
                    if suits(branch - self._size):
                        return branch - self._size
                else:
                    branches += (2 * branch + 1, 2 * branch)
        return None


def weighted_utilization(usage: Mapping[str, int], size: Mapping[str, int], weights: Mapping[str, int]) -> int:
    """Return the weighted utilization in thousandths of the node, as a whole number."""
    total = sum(weights.get(name, 0) for name in usage)
    if not total:
        return 0
    return sum(weights.get(name, 0) * _thousandths(used, size.get(name, 0)) for name, used in usage.items()) // total


def _thousandths(used: int, size: int) -> int:
    return min(used, size) * 1000 // size if size else 0


def usage_above_threshold(usage: Mapping[str, int], high: Mapping[str, int]) -> dict[str, int]:
    return {name: used - high[name] for name, used in usage.items() if used > high[name]}


def coverage_score(used: Mapping[str, int] | None, over: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """Return 2 for a pod that uses exactly the excess, between 1 and 2 for larger pods, below 1 for smaller ones."""
    total = sum(weights.get(name, 0) for name in over)
    if used is None or not total:
        return 0.0
    return (
        sum(weights.get(name, 0) * _resource_coverage(used.get(name, 0), too_much) for name, too_much in over.items())
        / total
    )


def _resource_coverage(used: int, too_much: int) -> float:
    if used < too_much:
        return used / too_much
    return 1 + too_much / used


def sort_by_utilization(loads: list[NodeLoad], weights: Mapping[str, int], *, prod: bool) -> list[NodeLoad]:
    return sorted(
        loads, key=lambda load: -weighted_utilization(load.prod_usage if prod else load.usage, load.size, weights)
    )


# The requests that nearly all pods have: nodes without enough of them are skipped.
CHECKED_REQUESTS = (CPU, MEMORY)
# Proposes one eviction; None when it is taken on.
ProposeEviction = Callable[[Pod, str, str, EvictionFigures], str | None]


class BalancePass(msgspec.Struct, kw_only=True):
    """One balance pass over one kind of load: of all pods, or of prod pods."""

    prod: bool
    sources: Sequence[NodeLoad]
    targets: Sequence[NodeLoad]
    budget: dict[str, int]
    weights: Mapping[str, int]
    threshold_percents: Mapping[str, float]  # percentages for the reason
    node_fit: bool

    def usage(self, load: NodeLoad) -> dict[str, int]:
        return load.prod_usage if self.prod else load.usage

    def high(self, load: NodeLoad) -> Mapping[str, int]:
        return load.prod_bounds.high if self.prod else load.bounds.high


def total_headroom(loads: Sequence[NodeLoad], *, prod: bool) -> dict[str, int]:
    """Return how much all of these nodes together can take before a resource reaches its high threshold."""
    found: dict[str, int] = {}
    for load in loads:
        high, usage = (load.prod_bounds.high, load.prod_usage) if prod else (load.bounds.high, load.usage)
        for name, used in usage.items():
            found[name] = found.get(name, 0) + high[name] - used
    return found


def run_balance_pass(
    balance_pass: BalancePass,
    fit_checker: NodeFitChecker,
    removable: Callable[[Pod], bool],
    propose: ProposeEviction,
    calmed: Callable[[str], None],
    passed_over: Callable[[Pod, str], None],
) -> None:
    """Evict pods from the sources of the pass.

    `removable` is asked twice, since proposals made meanwhile may protect a pod; `calmed` is called for every
    node that
    is no longer overutilized.
    """
    targets = TargetNodes(balance_pass, fit_checker) if balance_pass.node_fit else None
    for source in balance_pass.sources:
        over = usage_above_threshold(balance_pass.usage(source), balance_pass.high(source))
        pods = [pod for pod in (source.prod_pods if balance_pass.prod else source.pods) if removable(pod)]
        pods = sort_for_eviction(
            pods,
            lambda pod, node=source, excess=over: _coverage_sort_key(node, pod, excess, balance_pass.weights),  # type: ignore[misc]
        )
        for number, pod in enumerate(pods, 1):
            if not is_overutilized(balance_pass.usage(source), balance_pass.high(source)):
                calmed(source.name)
                break
            if any(left <= 0 for left in balance_pass.budget.values()):
                passed_over(pod, "the nodes that have room would have none left")
                return
            if not removable(pod):
                continue
            used = source.usage_of_pod(pod)
            target = targets.first_fit(pod, used) if targets is not None else None
            if targets is not None and target is None:
                unknown = "what it uses is not known"
                passed_over(pod, unknown if used is None else "it fits no node that has room")
                continue
            reason = _eviction_reason(balance_pass, source)
            figures = _eviction_figures(balance_pass, source, used, f"{number} of {len(pods)} removable pods")
            if propose(pod, reason, target.name if target is not None else "", figures) is not None:
                continue
            _account_move(balance_pass, source, target, pod, used)
            if targets is not None and target is not None:
                targets.refresh(target)
        else:
            if not is_overutilized(balance_pass.usage(source), balance_pass.high(source)):
                calmed(source.name)


def _coverage_sort_key(source: NodeLoad, pod: Pod, over: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """Return the sort key by coverage, higher coverage first; pods of unknown usage come last."""
    used = source.usage_of_pod(pod)
    return 1.0 if used is None else -coverage_score(used, over, weights)


class TargetNodes:
    """The target nodes of a pass; finds the first that takes a pod without becoming overutilized itself."""

    def __init__(self, balance_pass: BalancePass, fit_checker: NodeFitChecker) -> None:
        self._work = balance_pass
        self._fit_checker = fit_checker
        self._used = sorted({name for target in balance_pass.targets for name in target.usage})
        self._index = {target.name: index for index, target in enumerate(balance_pass.targets)}
        self._tree = FirstFitTree([self._headroom(target) for target in balance_pass.targets])

    def first_fit(self, pod: Pod, used: Mapping[str, int] | None) -> NodeLoad | None:
        """Return the first target that fits; None for a pod of unknown usage, which is not moved."""
        if used is None:
            return None
        uses = [used.get(name, 0) for name in self._used]
        asks = self._fit_checker.requests(pod)
        # What it does not ask for may even be overdrawn.
        wanted = [
            *uses,
            *(uses if self._work.prod else ()),
            *(asks.get(name, MIN_CAPACITY) for name in CHECKED_REQUESTS),
        ]
        targets = self._work.targets
        index = self._tree.find_first(wanted, lambda at: self._fit_checker.fits(pod, targets[at].node))
        return None if index is None else targets[index]

    def refresh(self, target: NodeLoad) -> None:
        """Update the target's headroom after a pod was moved there."""
        self._tree.update(self._index[target.name], self._headroom(target))

    def _headroom(self, target: NodeLoad) -> list[int]:
        room = [target.bounds.high[name] - target.usage[name] for name in self._used]
        if self._work.prod:
            room += [target.prod_bounds.high[name] - target.prod_usage[name] for name in self._used]
        free = self._fit_checker.free(target.node)
        return room + [free.get(name, 0) for name in CHECKED_REQUESTS]


def _account_move(
    balance_pass: BalancePass, source: NodeLoad, target: NodeLoad | None, pod: Pod, used: Mapping[str, int] | None
) -> None:
    """Book the pod's usage from the source to the target, in each kind of load that it is part of."""
    if used is None:
        return
    for name in balance_pass.budget:
        balance_pass.budget[name] -= 1 if name == PODS else used.get(name, 0)
    prod = any(pod is other for other in source.prod_pods)
    for load, sign in ((source, -1), (target, 1)):
        if load is None:
            continue
        for usage in (load.usage, load.prod_usage) if prod else (load.usage,):
            for name in usage:
                usage[name] += sign * (1 if name == PODS else used.get(name, 0))


def _overutilized_resources(balance_pass: BalancePass, source: NodeLoad) -> list[tuple[str, float, float]]:
    """Return name, used percent and threshold percent of every resource above its threshold."""
    high = balance_pass.high(source)
    return [
        (name, _percent(used, source.size.get(name, 0)), balance_pass.threshold_percents[name])
        for name, used in sorted(balance_pass.usage(source).items())
        if used > high[name]
    ]


def _eviction_reason(balance_pass: BalancePass, source: NodeLoad) -> str:
    whose = "prod" if balance_pass.prod else "node"
    parts = [
        f"{whose} {name} usage({used:.2f}%)>threshold({most:.2f}%)"
        for name, used, most in _overutilized_resources(balance_pass, source)
    ]
    return ", ".join(("node is overutilized", *parts))


def _eviction_figures(
    balance_pass: BalancePass, source: NodeLoad, used: Mapping[str, int] | None, rank: str
) -> EvictionFigures:
    over = _overutilized_resources(balance_pass, source)
    whose = "prod pods use" if balance_pass.prod else "the node uses"
    uses = ", ".join(f"{name} {amount}" for name, amount in sorted((used or {}).items()))
    return EvictionFigures(
        measured=f"{whose} {', '.join(f'{name} {percent:.2f}%' for name, percent, _ in over)}",
        threshold=", ".join(f"{name} {most:.2f}%" for name, _, most in over),
        rank=rank,
        why_this_pod=f"it uses {uses}" if uses else "what it uses is not known",
    )


def _percent(used: int, size: int) -> float:
    return used / size * 100 if size else 0.0
