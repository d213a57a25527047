"""Reports how LowNodeLoad classifies the nodes of a snapshot, and why nothing would be moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.api.config.descheduler.low_node_load import DEFAULT_POOL
from koord.api.node import Node
from koord.descheduler.plugins.low_node_load import LowNodeLoad
from koord.descheduler.plugins.low_node_load.load import Load, Staleness, load_of
from koord.descheduler.plugins.low_node_load.plugin import Pool, Sorted, classified
from koord.descheduler.snapshot import Snapshot

FULL, PROD_FULL, CALM = "too full", "prod pods too full", "as it should be"
_WORDS = {
    "high": FULL,
    "prod_high": PROD_FULL,
    "low": "has room",
    "prod_low": "has room for prod pods",
    "both_low": "has room",
    "calm": CALM,
}


class NodeStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one node in percent by resource.

    `rounds` counts how often in a row it was overutilized, `certain` says whether that is often enough.
    """

    node: str
    standing: str
    used: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]
    rounds: int = 0
    certain: bool = False


class PoolStanding(msgspec.Struct, frozen=True, kw_only=True):
    pool: str
    nodes: list[NodeStanding]
    stops: str = ""  # why nothing follows, if nothing can


def standings(plugin: LowNodeLoad, nodes: Sequence[Node], snapshot: Snapshot) -> list[PoolStanding]:
    """Report the loads pool by pool, in the plugin's order, without marking detectors."""
    found, done = [], set[str]()
    for pool in plugin.pools:
        chosen = [
            node
            for node in nodes
            if pool.nodes is None or (pool.nodes.matches(node.metadata.labels) and node.metadata.name not in done)
        ]
        loads = [load_of(node, snapshot, pool.resources, plugin.expires_s) for node in chosen]
        known = [load for load in loads if not isinstance(load, Staleness)]
        pool.bound(known)
        by = classified(known)
        done.update(load.name for load in by.high)
        found.append(_pool(plugin, pool, by, len(chosen), snapshot.now_s))
    return found


def _pool(plugin: LowNodeLoad, pool: Pool, by: Sorted, count: int, now_s: float) -> PoolStanding:
    nodes = [_node(plugin, pool, load, name, now_s) for name in _WORDS for load in getattr(by, name)]
    few = plugin.number_of_nodes
    if not count:
        stops = "it has no nodes"
    elif not nodes:
        stops = "no node could be judged"
    elif not by.high and not by.prod_high:
        stops = "no node is too full"
    elif not by.lows:
        stops = "no node has room"
    elif by.lows <= few:
        stops = f"only {by.lows} nodes have room, and numberOfNodes wants more than {few}"
    elif not any(one.certain for one in nodes):
        stops = "no node has been too full for long enough"
    else:
        stops = ""
    name = "" if pool.name == DEFAULT_POOL else pool.name
    return PoolStanding(pool=name, nodes=sorted(nodes, key=lambda one: one.node), stops=stops)


def _node(plugin: LowNodeLoad, pool: Pool, load: Load, kind: str, now_s: float) -> NodeStanding:
    prod = kind.startswith("prod")
    bounds = load.prod_bounds if prod else load.bounds
    usage = load.prod_usage if prod else load.usage
    detector = plugin.detectors[kind == "prod_high"].known(load.name) if kind in ("high", "prod_high") else None
    return NodeStanding(
        node=load.name,
        standing=_WORDS[kind] + (", but cordoned" if load.node.spec.unschedulable else ""),
        used=_percent(usage, load.size),
        low=_percent(bounds.low, load.size),
        high=_percent(bounds.high, load.size),
        rounds=detector.abnormal if detector is not None else 0,
        certain=kind in ("high", "prod_high")
        and (pool.condition.at_once or (detector is not None and detector.is_anomalous(now_s))),
    )


def _percent(amounts: Mapping[str, int], size: Mapping[str, int]) -> dict[str, float]:
    """Return the amounts in percent of the node's size; a resource that the node lacks is left out."""
    return {name: round(amount / size[name] * 100, 1) for name, amount in sorted(amounts.items()) if size.get(name)}
