"""PodTopologySpread spreads pods evenly over zones, hosts or any other node label, as a filter and as a score.

Its queueing hints let through the events that change what is counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.node import Node
from koord.scheduler.framework.event import Happened
from koord.scheduler.plugins.pod_topology_spread.constraint import Constraint, Spread
from koord.scheduler.plugins.toleration import taint_set
from koord.scheduler.state.pod import PodInfo


def pod_helps(pod: PodInfo, spread: Spread, happened: Happened) -> bool:
    """Return whether a pod event changes what the waiting pod's constraints count."""
    old: PodInfo | None = happened.old
    new: PodInfo | None = happened.new
    if any(p is not None and not _involved(p, pod, spread) for p in (old, new)):
        return False
    if old is not None and new is not None:
        if new.uid == pod.uid and old.shape.spec.tolerations != new.shape.spec.tolerations:
            return any(c.honors_taints for c in spread.hard) or _differ(spread, old, new)
        return _differ(spread, old, new)
    one = new if new is not None else old
    return one is not None and any(c.selector.matches(one.labels) for c in spread.hard)


def _involved(one: PodInfo, pod: PodInfo, spread: Spread) -> bool:
    return one.uid == pod.uid or (bool(one.node_name) and one.namespace == spread.namespace)


def _differ(spread: Spread, old: PodInfo, new: PodInfo) -> bool:
    return any(c.selector.matches(old.labels) != c.selector.matches(new.labels) for c in spread.hard)


def node_helps(spread: Spread, happened: Happened) -> bool:
    """Return whether a node event changes the domains of the waiting pod's constraints."""
    old: Node | None = happened.old
    new: Node | None = happened.new
    before = old is not None and _has_keys(old.metadata.labels, spread.hard)
    after = new is not None and _has_keys(new.metadata.labels, spread.hard)
    if old is None or new is None:
        return before or after
    if before != after:
        return True
    return after and (
        any(old.metadata.labels[c.topology_key] != new.metadata.labels[c.topology_key] for c in spread.hard)
        or taint_set(old.spec.taints) != taint_set(new.spec.taints)
    )


def _has_keys(labels: Mapping[str, str], constraints: tuple[Constraint, ...]) -> bool:
    return all(c.topology_key in labels for c in constraints)
