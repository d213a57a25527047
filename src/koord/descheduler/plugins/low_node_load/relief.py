"""Moving pods off the nodes that are too full, one after another, until they are not or nobody has room left.

Pods are tried in the order in which they would go, each on the target where it fits: what it uses is counted there
at once, so that the next one sees a fuller cluster. Upstream books every candidate first, in random order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from koord.api.resource_name import PODS
from koord.descheduler.plugins.low_node_load.load import Load, is_over
from koord.descheduler.plugins.low_node_load.sorting import cover, excess
from koord.descheduler.plugins.node_fit import Fitting
from koord.descheduler.plugins.pod_order import ordered
from koord.descheduler.wire import Pod

# Proposes one eviction; None when it is taken on.
Propose = Callable[[Pod, str, str], str | None]


class Pass(msgspec.Struct, kw_only=True):
    """One kind of load: of all pods, or of prod pods."""

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
    """What all of them together may still take before one resource is too much."""
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
    """`removable` is asked twice, since what was proposed meanwhile may stand against a pod; `calmed` is told of
    every node that is no longer too full."""
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
            used = source.used_by(pod)
            target = _target(work, fitting, pod, used) if work.node_fit else None
            if work.node_fit and target is None:
                unknown = "what it uses is not known"
                passed_over(pod, unknown if used is None else "it fits no node that has room")
                continue
            if not removable(pod):
                continue
            if propose(pod, _reason(work, source), target.name if target is not None else "") is not None:
                continue
            _moved(work, source, target, pod, used)
        else:
            if not is_over(work.usage(source), work.high(source)):
                calmed(source.name)


def _last_without(source: Load, pod: Pod, over: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """Higher cover first; pods that nothing is known of come last."""
    used = source.used_by(pod)
    return 1.0 if used is None else -cover(used, over, weights)


def _target(work: Pass, fitting: Fitting, pod: Pod, used: Mapping[str, int] | None) -> Load | None:
    """The first target that takes it without becoming too full itself; a pod of unknown use is not moved."""
    if used is None:
        return None
    for target in work.targets:
        stays = _stays_under(target.usage, target.bounds.high, used) and (
            not work.prod or _stays_under(target.prod_usage, target.prod_bounds.high, used)
        )
        if stays and fitting.fits(pod, target.node):
            return target
    return None


def _stays_under(usage: Mapping[str, int], high: Mapping[str, int], used: Mapping[str, int]) -> bool:
    return all(amount + used.get(name, 0) <= high[name] for name, amount in usage.items())


def _moved(work: Pass, source: Load, target: Load | None, pod: Pod, used: Mapping[str, int] | None) -> None:
    """What it uses goes with it, in both kinds of load that it is part of."""
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
