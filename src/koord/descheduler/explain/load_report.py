"""Reports how LowNodeLoad classifies the nodes of a snapshot, and why nothing would be moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.api.config.descheduler.low_node_load_args import DEFAULT_NODE_POOL
from koord.api.kubernetes.node import Node
from koord.descheduler.framework.snapshot import ClusterSnapshot
from koord.descheduler.plugins.low_node_load.node_load import NodeLoad, UnusableMetric, compute_node_load
from koord.descheduler.plugins.low_node_load.plugin import ClassifiedNodes, LowNodeLoad, LowNodeLoadPool, classify_nodes

OVERUTILIZED, PROD_OVERUTILIZED, APPROPRIATE = "too full", "prod pods too full", "as it should be"
_WORDS = {
    "high": OVERUTILIZED,
    "prod_high": PROD_OVERUTILIZED,
    "low": "has room",
    "prod_low": "has room for prod pods",
    "both_low": "has room",
    "calm": APPROPRIATE,
}


class NodeLoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one node in percent of it by resource, and the part of its prod pods where that has thresholds of
    its own.

    `rounds` counts how often in a row it was overutilized, `certain` says whether that is often enough.
    """

    node: str
    standing: str
    used: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]
    prod_used: dict[str, float] = {}
    prod_low: dict[str, float] = {}
    prod_high: dict[str, float] = {}
    rounds: int = 0
    certain: bool = False


class PoolLoadReport(msgspec.Struct, frozen=True, kw_only=True):
    pool: str
    nodes: list[NodeLoadReport]
    stops: str = ""  # why nothing follows, if nothing can


def report_pool_loads(plugin: LowNodeLoad, nodes: Sequence[Node], snapshot: ClusterSnapshot) -> list[PoolLoadReport]:
    """Report the loads pool by pool, in the plugin's order, without marking detectors."""
    found, done = [], set[str]()
    for pool in plugin.pools:
        chosen = [
            node
            for node in nodes
            if pool.node_selector is None
            or (pool.node_selector.matches(node.metadata.labels) and node.metadata.name not in done)
        ]
        loads = [compute_node_load(node, snapshot, pool.resources, plugin.metric_expiration_s) for node in chosen]
        known = [load for load in loads if not isinstance(load, UnusableMetric)]
        pool.assign_bounds(known)
        by = classify_nodes(known)
        done.update(load.name for load in by.high)
        found.append(_report_pool(plugin, pool, by, len(chosen), snapshot.now_s))
    return found


def _report_pool(
    plugin: LowNodeLoad, pool: LowNodeLoadPool, by: ClassifiedNodes, count: int, now_s: float
) -> PoolLoadReport:
    nodes = [_report_node(plugin, pool, load, name, now_s) for name in _WORDS for load in getattr(by, name)]
    few = plugin.number_of_nodes
    if not count:
        stops = "it has no nodes"
    elif not nodes:
        stops = "no node could be judged"
    elif not by.high and not by.prod_high:
        stops = "no node is too full"
    elif not by.low_count:
        stops = "no node has room"
    elif by.low_count <= few:
        stops = f"only {by.low_count} nodes have room, and numberOfNodes wants more than {few}"
    elif not any(one.certain for one in nodes):
        stops = "no node has been too full for long enough"
    else:
        stops = ""
    name = "" if pool.name == DEFAULT_NODE_POOL else pool.name
    return PoolLoadReport(pool=name, nodes=sorted(nodes, key=lambda one: one.node), stops=stops)


def _report_node(plugin: LowNodeLoad, pool: LowNodeLoadPool, load: NodeLoad, kind: str, now_s: float) -> NodeLoadReport:
    prod_low, prod_high = (_percent_of_node(b, load.size) for b in (load.prod_bounds.low, load.prod_bounds.high))
    # A resource without thresholds of its own for prod pods has two of 100 %.
    counted = [name for name in prod_low if (prod_low[name], prod_high.get(name)) != (100.0, 100.0)]
    prod_used = _percent_of_node(load.prod_usage, load.size)
    detector = plugin.detectors[kind == "prod_high"].find(load.name) if kind in ("high", "prod_high") else None
    return NodeLoadReport(
        node=load.name,
        standing=_WORDS[kind] + (", but cordoned" if load.node.spec.unschedulable else ""),
        used=_percent_of_node(load.usage, load.size),
        low=_percent_of_node(load.bounds.low, load.size),
        high=_percent_of_node(load.bounds.high, load.size),
        prod_used={name: prod_used[name] for name in counted if name in prod_used},
        prod_low={name: prod_low[name] for name in counted},
        prod_high={name: prod_high[name] for name in counted if name in prod_high},
        rounds=detector.abnormal_count if detector is not None else 0,
        certain=kind in ("high", "prod_high")
        and (pool.detector_condition.is_immediate or (detector is not None and detector.is_anomalous(now_s))),
    )


def _percent_of_node(amounts: Mapping[str, int], size: Mapping[str, int]) -> dict[str, float]:
    """Return the amounts in percent of the node's size; a resource that the node lacks is left out."""
    return {name: round(amount / size[name] * 100, 1) for name, amount in sorted(amounts.items()) if size.get(name)}
