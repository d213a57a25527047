"""Moving pods off the nodes that are too full, one after another, until they are not or nobody has room left.

Pods are tried in the order in which they would go, each on the target where it fits: what it uses is counted there
at once, so that the next one sees a fuller cluster. Upstream books every candidate first, in random order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from koord.api.resource_name import CPU, MEMORY, PODS
from koord.descheduler.plugins.low_node_load.load import Load, is_over
from koord.descheduler.plugins.low_node_load.shelf import NONE, Shelf
from koord.descheduler.plugins.low_node_load.sorting import cover, excess
from koord.descheduler.plugins.node_fit import Fitting
from koord.descheduler.plugins.pod_order import ordered
from koord.descheduler.wire import Pod

# The requests that nearly all pods have: nodes without enough of them are skipped.
ASKED = (CPU, MEMORY)
# Proposes one eviction; None when it is taken on.
Propose = Callable[[Pod, str, str], str | None]


class Pass(msgspec.Struct, kw_only=True):
    """One balance pass over one kind of load: of all pods, or of prod pods."""

    prod: bool
    sources: Sequence[Load]
    targets: Sequence[Load]
    budget: dict[str, int]
    weights: Mapping[str, int]
    told: Mapping[str, float]  # percentages for the reason
    node_fit: bool

    def usage(self, load: Load) -> dict[str, int]:
        return load.prod_usage if self.prod else load.usage

    def high(self, load: Load) -> Mapping[str, int]:
        return load.prod_bounds.high if self.prod else load.bounds.high


def room(loads: Sequence[Load], *, prod: bool) -> dict[str, int]:
    """Return how much all of these nodes together can take before a resource reaches its high threshold."""
    found: dict[str, int] = {}
    for load in loads:
        high, usage = (load.prod_bounds.high, load.prod_usage) if prod else (load.bounds.high, load.usage)
        for name, used in usage.items():
            found[name] = found.get(name, 0) + high[name] - used
    return found


def relieve(
    work: Pass,
    fitting: Fitting,
    removable: Callable[[Pod], bool],
    propose: Propose,
    calmed: Callable[[str], None],
    passed_over: Callable[[Pod, str], None],
) -> None:
    """Evict pods from the sources of the pass.

    `removable` is asked twice, since proposals made meanwhile may protect a pod; `calmed` is called for every
    node that
    is no longer overutilized.
    """
    targets = Targets(work, fitting) if work.node_fit else None
    for source in work.sources:
        over = excess(work.usage(source), work.high(source))
        pods = [pod for pod in (source.prod_pods if work.prod else source.pods) if removable(pod)]
        pods = ordered(pods, lambda pod, of=source, too_much=over: _last_without(of, pod, too_much, work.weights))  # type: ignore[misc]
        for pod in pods:
            if not is_over(work.usage(source), work.high(source)):
                calmed(source.name)
                break
            if any(left <= 0 for left in work.budget.values()):
                passed_over(pod, "the nodes that have room would have none left")
                return
            if not removable(pod):
                continue
            used = source.used_by(pod)
            target = targets.first(pod, used) if targets is not None else None
            if targets is not None and target is None:
                unknown = "what it uses is not known"
                passed_over(pod, unknown if used is None else "it fits no node that has room")
                continue
            if propose(pod, _reason(work, source), target.name if target is not None else "") is not None:
                continue
            _moved(work, source, target, pod, used)
            if targets is not None and target is not None:
                targets.filled(target)
        else:
            if not is_over(work.usage(source), work.high(source)):
                calmed(source.name)


def _last_without(source: Load, pod: Pod, over: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """Return the sort key by coverage, higher coverage first; pods of unknown usage come last."""
    used = source.used_by(pod)
    return 1.0 if used is None else -cover(used, over, weights)


class Targets:
    """The target nodes of a pass; finds the first that takes a pod without becoming overutilized itself."""

    def __init__(self, work: Pass, fitting: Fitting) -> None:
        self._work = work
        self._fitting = fitting
        self._used = sorted({name for target in work.targets for name in target.usage})
        self._index = {target.name: index for index, target in enumerate(work.targets)}
        self._shelf = Shelf([self._room(target) for target in work.targets])

    def first(self, pod: Pod, used: Mapping[str, int] | None) -> Load | None:
        """Return the first target that fits; None for a pod of unknown usage, which is not moved."""
        if used is None:
            return None
        uses = [used.get(name, 0) for name in self._used]
        asks = self._fitting.requests(pod)
        # What it does not ask for may even be overdrawn.
        wanted = [*uses, *(uses if self._work.prod else ()), *(asks.get(name, NONE) for name in ASKED)]
        targets = self._work.targets
        index = self._shelf.first(wanted, lambda at: self._fitting.fits(pod, targets[at].node))
        return None if index is None else targets[index]

    def filled(self, target: Load) -> None:
        """Update the target's headroom after a pod was moved there."""
        self._shelf.put(self._index[target.name], self._room(target))

    def _room(self, target: Load) -> list[int]:
        room = [target.bounds.high[name] - target.usage[name] for name in self._used]
        if self._work.prod:
            room += [target.prod_bounds.high[name] - target.prod_usage[name] for name in self._used]
        free = self._fitting.free(target.node)
        return room + [free.get(name, 0) for name in ASKED]


def _moved(work: Pass, source: Load, target: Load | None, pod: Pod, used: Mapping[str, int] | None) -> None:
    """Book the pod's usage from the source to the target, in each kind of load that it is part of."""
    if used is None:
        return
    for name in work.budget:
        work.budget[name] -= 1 if name == PODS else used.get(name, 0)
    prod = any(pod is other for other in source.prod_pods)
    for load, sign in ((source, -1), (target, 1)):
        if load is None:
            continue
        for usage in (load.usage, load.prod_usage) if prod else (load.usage,):
            for name in usage:
                usage[name] += sign * (1 if name == PODS else used.get(name, 0))


def _reason(work: Pass, source: Load) -> str:
    whose = "prod" if work.prod else "node"
    high = work.high(source)
    parts = [
        f"{whose} {name} usage({_percent(used, source.size.get(name, 0)):.2f}%)>threshold({work.told[name]:.2f}%)"
        for name, used in sorted(work.usage(source).items())
        if used > high[name]
    ]
    return ", ".join(("node is overutilized", *parts))


def _percent(used: int, size: int) -> float:
    return used / size * 100 if size else 0.0
