"""Reports on one round: what it proposed, what was declined by whom, and which nodes it could not judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from koord.api.config.descheduler.plugin_args import DEFAULT_NODE_POOL
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.plugin import (
    CordonEffect,
    DeclinedProposal,
    DeschedulerPlugin,
    DeschedulingProfile,
    EvictionProposal,
    RoundEffect,
    RoundState,
)
from koord.descheduler.framework.round import RoundOutcome
from koord.descheduler.framework.snapshot import ClusterSnapshot
from koord.descheduler.migration.plugin import MigrationControllerPlugin
from koord.descheduler.plugins.low_node_load.node_load import NodeLoad, UnusableMetric, compute_node_load
from koord.descheduler.plugins.low_node_load.plugin import ClassifiedNodes, LowNodeLoad, LowNodeLoadPool, classify_nodes

EVICT, CORDON, UNCORDON, ANNOTATE = "evict", "cordon", "uncordon", "annotate"


class ProposalReport(msgspec.Struct, frozen=True, kw_only=True):
    """One proposed effect. `target` is the node that the plugin counted on; the scheduler decides."""

    does: str
    plugin: str
    profile: str
    node: str
    reason: str
    pod: str = ""
    target: str = ""
    evictor: str = ""
    annotations: dict[str, str] = {}
    dry_run: bool = False


class RefusalReport(msgspec.Struct, frozen=True, kw_only=True):
    pod: str
    node: str
    plugin: str
    by: str
    why: str


class SkippedNodeReport(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    plugin: str
    why: str


class RoundReport(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime | None = None  # None: there was none yet
    error: str = ""
    proposals: list[ProposalReport] = []
    refusals: list[RefusalReport] = []
    passed_over: list[RefusalReport] = []  # filters kept them from being proposed
    left_out: list[SkippedNodeReport] = []


class PodEvictability(msgspec.Struct, frozen=True, kw_only=True):
    """PodEvictability states whether a pod may be moved.

    `forbidden` ends a job for it at once, `limited` makes a job wait; `refused` are the filters' reasons by
    profile.
    """

    pod: str
    node: str
    forbidden: str = ""
    limited: str = ""
    refused: dict[str, str] = {}


def report_round(outcome: RoundOutcome, plugins: Iterable[DeschedulerPlugin], at_s: float) -> RoundReport:
    left_out = [
        SkippedNodeReport(node=one.node, plugin=plugin.name, why=one.why)
        for plugin in plugins
        if isinstance(plugin, LowNodeLoad)
        for one in plugin.unusable_metrics
    ]
    return RoundReport(
        at=datetime.fromtimestamp(at_s, UTC),
        error=outcome.error,
        proposals=[report_proposal(effect) for effect in outcome.effects],
        refusals=[_report_refusal(one) for one in outcome.declined],
        passed_over=[_report_refusal(one) for one in outcome.passed_over],
        left_out=left_out,
    )


def _report_refusal(one: DeclinedProposal) -> RefusalReport:
    return RefusalReport(pod=pod_key(one.pod), node=one.pod.spec.node_name, plugin=one.plugin, by=one.by, why=one.why)


def report_proposal(effect: RoundEffect) -> ProposalReport:
    if isinstance(effect, EvictionProposal):
        return ProposalReport(
            does=EVICT,
            plugin=effect.plugin,
            profile=effect.profile,
            node=effect.node,
            reason=effect.reason,
            pod=pod_key(effect.pod),
            target=effect.target,
            evictor=effect.evictor,
            dry_run=effect.dry_run,
        )
    node = effect.node if isinstance(effect, CordonEffect) else effect.pod.spec.node_name
    return ProposalReport(
        does=(CORDON if effect.unschedulable else UNCORDON) if isinstance(effect, CordonEffect) else ANNOTATE,
        plugin=effect.plugin,
        profile=effect.profile,
        node=node,
        reason=effect.reason,
        pod="" if isinstance(effect, CordonEffect) else pod_key(effect.pod),
        annotations={} if isinstance(effect, CordonEffect) else dict(effect.annotations),
        dry_run=effect.dry_run,
    )


def report_pod(pod: Pod, snapshot: ClusterSnapshot, profiles: Iterable[DeschedulingProfile]) -> PodEvictability:
    round_state = RoundState(snapshot)
    forbidden, limited, refused = "", "", {}
    for profile in profiles:
        why = next((said for one in profile.filter if (said := one.filter(pod, round_state)) is not None), None)
        if why is not None:
            refused[profile.name] = why
        if isinstance(profile.evict, MigrationControllerPlugin):
            forbidden = forbidden or profile.evict.protection.rejection_reason(pod, snapshot) or ""
            limited = limited or profile.evict.limiter.rejection_reason(pod, snapshot.now_s) or ""
    return PodEvictability(
        pod=pod_key(pod), node=pod.spec.node_name, forbidden=forbidden, limited=limited, refused=refused
    )


def pod_key(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


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
    """The load of one node in percent of the node, by resource: what all its pods and its system use, and what its prod
    pods use, each beside its own thresholds. Without thresholds of their own nothing is said of prod pods.

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
        chosen = pool.choose_nodes(nodes, done)
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
    detector = plugin.detectors[kind == "prod_high"].find(load.name) if kind in ("high", "prod_high") else None
    bounds, prod_bounds, size = load.bounds, load.prod_bounds, load.size
    prod = {name: size.get(name, 0) for name, low in prod_bounds.low.items() if low < size.get(name, 0)}
    return NodeLoadReport(
        node=load.name,
        standing=_WORDS[kind] + (", but cordoned" if load.node.spec.unschedulable else ""),
        used=_percent_of_node(load.usage, size),
        low=_percent_of_node(bounds.low, size),
        high=_percent_of_node(bounds.high, size),
        prod_used=_percent_of_node(load.prod_usage, prod),
        prod_low=_percent_of_node(prod_bounds.low, prod),
        prod_high=_percent_of_node(prod_bounds.high, prod),
        rounds=detector.abnormal_count if detector is not None else 0,
        certain=kind in ("high", "prod_high")
        and (pool.detector_condition.is_immediate or (detector is not None and detector.is_anomalous(now_s))),
    )


def _percent_of_node(amounts: Mapping[str, int], size: Mapping[str, int]) -> dict[str, float]:
    """Return the amounts in percent of the node's size; a resource that the node lacks is left out."""
    return {name: round(amount / size[name] * 100, 1) for name, amount in sorted(amounts.items()) if size.get(name)}
