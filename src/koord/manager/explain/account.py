"""The account of one node: every term of what it lends, what stands on it now, and why the two differ. Pure.

The numbers are those of the decision itself; nothing is computed a second time here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from koord.api.annotations import amplification, cpu_normalization
from koord.api.annotations.codec import Malformed
from koord.api.part import QuantityText
from koord.api.resource_name import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koord.manager.explain import difference, sums
from koord.manager.explain.sums import Sum
from koord.policy.colocation.decision import Decision, NodeView
from koord.policy.colocation.difference import decide_write, wanted
from koord.values.quantity import Quantity

LENT = (BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY)


class Line(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One resource. Amounts are milli-cores of CPU or bytes; None: the resource is absent."""

    resource: str
    sum: Sum | None = None  # None: nothing is lent, and `why` says so
    computed: int | None = None
    shown: int | None = None
    state: difference.State
    why: str = ""


class Zone(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    lines: tuple[Line, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of the node's NodeMetric; `flaw` says why nothing is lent by it."""

    at: datetime | None = None
    age_seconds: int | None = None
    good_for_seconds: int | None = None  # below 0: that long over
    flaw: str = ""


class Layers(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The sources of the node's settings."""

    enabled: bool
    cluster_enabled: bool
    node_config: str | None = None
    annotation: bool = False
    labels: tuple[str, ...] = ()
    ignored: str = ""


class Ratio(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A normalization or amplification ratio: computed, shown on the node, and the error if there is none."""

    computed: dict[str, float] = {}
    shown: dict[str, float] = {}
    cpu_model: str = ""
    error: str = ""


class Account(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    node: str
    at: datetime
    settings: Layers
    report: Report
    lines: tuple[Line, ...]
    zones: tuple[Zone, ...] = ()
    normalization: Ratio = Ratio()
    amplification: Ratio = Ratio()
    estimated: tuple[str, ...] = ()  # pods without a sample: their request is counted
    gone: tuple[str, ...] = ()  # samples of pods that are not on the node any more, and still count


def account_of(view: NodeView, decision: Decision) -> Account:
    batch = decision.batch
    consumption = None if batch is None or batch.terms is None else batch.terms.consumption
    resolved = decision.resolved
    return Account(
        node=view.node.metadata.name,
        at=view.now,
        settings=Layers(
            enabled=resolved.enabled,
            cluster_enabled=resolved.cluster_enabled,
            node_config=resolved.layer,
            annotation=resolved.annotated,
            labels=resolved.labelled,
            ignored=resolved.ignored,
        ),
        report=_report(view, decision),
        lines=_lines(view, decision),
        zones=_zones(view, decision),
        normalization=_normalization(view, decision),
        amplification=_amplification(view, decision),
        estimated=() if consumption is None else tuple("/".join(key) for key in consumption.estimated),
        gone=() if consumption is None else tuple("/".join(key) for key in consumption.dangling),
    )


def _lines(view: NodeView, decision: Decision) -> tuple[Line, ...]:
    node = view.node
    target, found = wanted(node, decision), sums.of_node(node, decision)
    sized = bool(node.status.capacity and node.status.allocatable)
    due = decide_write(node, decision, 0.0).status_due
    lines = []
    for name in LENT:
        shown = amount(node.status.allocatable, name)
        if name not in target:
            lines.append(Line(resource=name, shown=shown, state="NotComputed", why="the plugin is switched off"))
            continue
        aim = target[name]
        computed = None if aim is None else aim.value()
        state, why = difference.judge(shown, computed, sized=sized, due=due, decision=decision)
        lines.append(Line(resource=name, sum=found.get(name), computed=computed, shown=shown, state=state, why=why))
    return tuple(lines)


def _zones(view: NodeView, decision: Decision) -> tuple[Zone, ...]:
    topology, batch = view.topology, decision.batch
    if topology is None or batch is None:
        return ()
    shown = [{r.name: r.allocatable for r in zone.resources} for zone in topology.zones]
    zones = []
    for position, zone in enumerate(batch.zones):
        listed: Mapping[str, QuantityText] = shown[position] if position < len(shown) else {}
        lines = []
        for name, total in sums.of_zone(zone, decision.normalization).items():
            now = amount(listed, name)
            due = now is None or abs(total.result - now) > now * decision.rules.diff_threshold
            state, why = difference.judge(now, total.result, sized=True, due=due, decision=decision)
            lines.append(Line(resource=name, sum=total, computed=total.result, shown=now, state=state, why=why))
        zones.append(Zone(name=zone.name, lines=tuple(lines)))
    return tuple(zones)


def _report(view: NodeView, decision: Decision) -> Report:
    flaw = "" if decision.degraded is None else str(decision.degraded)
    at = None if view.metric is None else view.metric.status.update_time
    if at is None:
        return Report(flaw=flaw)
    age = int((view.now - at).total_seconds())
    return Report(at=at, age_seconds=age, good_for_seconds=decision.rules.degrade_minutes * 60 - age, flaw=flaw)


def _normalization(view: NodeView, decision: Decision) -> Ratio:
    shown = cpu_normalization.parse_ratio(view.node.metadata.annotations)
    found = decision.normalization
    return Ratio(
        computed={} if found is None or found.ratio is None else {"cpu": found.ratio},
        shown={"cpu": shown} if isinstance(shown, float) else {},
        cpu_model="" if found is None else found.cpu_model,
        error=found.error if found is not None else "",
    )


def _amplification(view: NodeView, decision: Decision) -> Ratio:
    shown = amplification.parse_ratios(view.node.metadata.annotations)
    found = decision.amplification
    return Ratio(
        computed={} if found is None else found.ratios,
        shown={} if shown is None or isinstance(shown, Malformed) else dict(shown),
        error=found.error if found is not None else "",
    )


def amount(listed: Mapping[str, QuantityText], name: str) -> int | None:
    return _units(listed.get(name))


def _units(text: QuantityText | None) -> int | None:
    """Parse the amount; batch-cpu and mid-cpu are in milli-cores already."""
    return None if text is None else Quantity.parse(text).value()
