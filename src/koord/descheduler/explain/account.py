"""Reports on one round: what it proposed, what was declined by whom, and which nodes it could not judge."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from koord.descheduler.framework.effect import Cordon, Effect, Evict
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.profile import Profile
from koord.descheduler.framework.round import Declined, Outcome, Sight
from koord.descheduler.plugins.low_node_load import LowNodeLoad
from koord.descheduler.plugins.migration_controller import MigrationController
from koord.descheduler.snapshot import Snapshot
from koord.descheduler.wire import Pod

EVICT, CORDON, UNCORDON, ANNOTATE = "evict", "cordon", "uncordon", "annotate"


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
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


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    pod: str
    node: str
    plugin: str
    by: str
    why: str


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    plugin: str
    why: str


class RoundAccount(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime | None = None  # None: there was none yet
    error: str = ""
    proposals: list[Proposal] = []
    refusals: list[Refusal] = []
    passed_over: list[Refusal] = []  # filters kept them from being proposed
    left_out: list[LeftOut] = []


class PodAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a pod may be moved.

    `forbidden` ends a job for it at once, `limited` makes a job wait; `refused` are the filters' reasons by
    profile.
    """

    pod: str
    node: str
    forbidden: str = ""
    limited: str = ""
    refused: dict[str, str] = {}


def round_account(outcome: Outcome, plugins: Iterable[Plugin], at_s: float) -> RoundAccount:
    left_out = [
        LeftOut(node=one.node, plugin=plugin.name, why=one.why)
        for plugin in plugins
        if isinstance(plugin, LowNodeLoad)
        for one in plugin.left_out
    ]
    return RoundAccount(
        at=datetime.fromtimestamp(at_s, UTC),
        error=outcome.error,
        proposals=[proposal(effect) for effect in outcome.effects],
        refusals=[_refusal(one) for one in outcome.declined],
        passed_over=[_refusal(one) for one in outcome.passed_over],
        left_out=left_out,
    )


def _refusal(one: Declined) -> Refusal:
    return Refusal(pod=key(one.pod), node=one.pod.spec.node_name, plugin=one.plugin, by=one.by, why=one.why)


def proposal(effect: Effect) -> Proposal:
    if isinstance(effect, Evict):
        return Proposal(
            does=EVICT,
            plugin=effect.plugin,
            profile=effect.profile,
            node=effect.node,
            reason=effect.reason,
            pod=key(effect.pod),
            target=effect.target,
            evictor=effect.evictor,
            dry_run=effect.dry_run,
        )
    node = effect.node if isinstance(effect, Cordon) else effect.pod.spec.node_name
    return Proposal(
        does=(CORDON if effect.unschedulable else UNCORDON) if isinstance(effect, Cordon) else ANNOTATE,
        plugin=effect.plugin,
        profile=effect.profile,
        node=node,
        reason=effect.reason,
        pod="" if isinstance(effect, Cordon) else key(effect.pod),
        annotations={} if isinstance(effect, Cordon) else dict(effect.annotations),
        dry_run=effect.dry_run,
    )


def pod_account(pod: Pod, snapshot: Snapshot, profiles: Iterable[Profile]) -> PodAccount:
    sight = Sight(snapshot)
    forbidden, limited, refused = "", "", {}
    for profile in profiles:
        why = next((said for one in profile.filter if (said := one.refuses(pod, sight)) is not None), None)
        if why is not None:
            refused[profile.name] = why
        if isinstance(profile.evict, MigrationController):
            forbidden = forbidden or profile.evict.protection.refuses(pod, snapshot) or ""
            limited = limited or profile.evict.limiter.refuses(pod, snapshot.now_s) or ""
    return PodAccount(pod=key(pod), node=pod.spec.node_name, forbidden=forbidden, limited=limited, refused=refused)


def key(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
