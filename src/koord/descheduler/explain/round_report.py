"""Reports on one round: what it proposed, what was declined by whom, and which nodes it could not judge."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.plugin import (
    CordonEffect,
    DeschedulerPlugin,
    DeschedulingProfile,
    EvictionProposal,
    RoundEffect,
)
from koord.descheduler.framework.round import DeclinedProposal, RoundOutcome, RoundState
from koord.descheduler.framework.snapshot import ClusterSnapshot
from koord.descheduler.migration.plugin import MigrationControllerPlugin
from koord.descheduler.plugins.low_node_load.plugin import LowNodeLoad

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
