"""One descheduling round: run every profile's plugins and collect what they propose within the limits.

ready nodes -> all Deschedule plugins -> all Balance plugins -> effects
                    |  filters, limits, evictor accepts  |
                    +-- later plugins see each proposal as if it were already under way
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec

from koord.api.kubernetes.node import Node
from koord.descheduler.framework.plugin import (
    DeclinedProposal,
    DeschedulingProfile,
    EvictorHandle,
    RoundEffect,
    RoundLimits,
    RoundState,
)
from koord.descheduler.framework.snapshot import ClusterSnapshot
from koord.values.selector import Selector

CLUSTER_TOO_SMALL = "the cluster size is 0 or 1 meaning eviction causes service disruption or degradation"


class RoundOutcome(msgspec.Struct, frozen=True):
    """The result of one round. `passed_over` are the first pods that filters or plugins kept from being proposed."""

    effects: tuple[RoundEffect, ...] = ()
    declined: tuple[DeclinedProposal, ...] = ()
    error: str = ""
    passed_over: tuple[DeclinedProposal, ...] = ()
    plugin_errors: tuple[Exception, ...] = ()  # what plugins raised: mistakes in them, for the log


def ready_nodes(snapshot: ClusterSnapshot, chosen: Selector | None) -> list[Node]:
    """Return the nodes that are ready or report no readiness, also cordoned ones, sorted by name for determinism."""
    return [
        node
        for _, node in sorted(snapshot.nodes.items())
        if _is_selected(node, chosen) and all(c.status == "True" for c in node.status.conditions if c.type == "Ready")
    ]


def run_round(
    profiles: Sequence[DeschedulingProfile],
    snapshot: ClusterSnapshot,
    limits: RoundLimits,
    *,
    nodes: Selector | None = None,
    dry_run: bool = False,
) -> RoundOutcome:
    """Run the whole round. A plugin's error ends it; what was proposed before stays proposed."""
    ready = ready_nodes(snapshot, nodes)
    state = RoundState(snapshot, limits, dry_run=dry_run)
    errors, broken = ([CLUSTER_TOO_SMALL] if len(ready) <= 1 else []), list[Exception]()
    for point, profile in itertools.product(("deschedule", "balance"), profiles):
        if not errors:
            chosen = [node for node in ready if _is_selected(node, profile.nodes)]
            errors = _run_plugins(profile, point, chosen, state, broken)
    effects, declined = tuple(state.effects), tuple(state.declined)
    return RoundOutcome(effects, declined, "; ".join(errors), state.passed_over(), tuple(broken))


def _run_plugins(
    profile: DeschedulingProfile, point: str, nodes: Sequence[Node], state: RoundState, broken: list[Exception]
) -> list[str]:
    errors = []
    for plugin in getattr(profile, point):
        run: Callable[[Sequence[Node], EvictorHandle], str | None] = getattr(plugin, point)
        try:
            error = run(nodes, EvictorHandle(state, profile, plugin))
        except Exception as raised:  # noqa: BLE001  one bad plugin, or one bad object, must not end the program: it is told
            broken.append(raised)
            error = f"{type(raised).__name__}: {raised}"
        if error is not None:
            errors.append(f"{plugin.name}: {error}")
    return errors


def _is_selected(node: Node, chosen: Selector | None) -> bool:
    return chosen is None or chosen.matches(node.metadata.labels)
