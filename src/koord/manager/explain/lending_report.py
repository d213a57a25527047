"""The report on one node: the sums behind what it or a NUMA zone lends, as lists of signed terms in whole units, what
the node shows now, and why the two differ. Pure.

The numbers are those of the decision itself; nothing is computed a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import msgspec

from koord.api.annotations import cpu_codecs, node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.config.slo.slo_documents import CALCULATE_BY_MAX_USAGE_REQUEST, CALCULATE_BY_REQUEST, CALCULATE_BY_USAGE
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koord.api.model import QuantityText
from koord.manager.colocation.decision import ColocationDecision, ColocationNodeView
from koord.manager.colocation.models import ColocationNode, amplify_cpu
from koord.manager.colocation.node_metric import NodeReserved
from koord.manager.colocation.node_patch import decide_node_patch, desired_resources, third_party_holders
from koord.manager.colocation.normalization import CpuNormalizationDecision
from koord.manager.colocation.overcommitment import BatchFormula, BatchTerms, MidAmount, ZoneBatch
from koord.manager.colocation.strategy import ColocationRules
from koord.values.quantity import Quantity
from koord.values.resources import CPU

TermSign = Literal["", "+", "-", "min", "x", "="]

_COUNTED = {
    CALCULATE_BY_USAGE: "used by prod and mid pods",
    CALCULATE_BY_REQUEST: "requested by prod and mid pods",
    CALCULATE_BY_MAX_USAGE_REQUEST: "larger of use and request, prod and mid pods",
}


class LendingTerm(msgspec.Struct, frozen=True, kw_only=True):
    """One term in milli-cores or bytes. With sign "x", `amount` is the sum so far times the factor in `note`."""

    sign: TermSign
    name: str
    amount: int
    note: str = ""
    of: int | None = None  # what `amount` is a part of


class LendingSum(msgspec.Struct, frozen=True, kw_only=True):
    terms: tuple[LendingTerm, ...]
    result: int
    binding: str  # the term that decided, in words


def node_sums(node: ColocationNode, decision: ColocationDecision) -> dict[str, LendingSum]:
    """Return the sums by resource; resources that are not lent are left out."""
    found: dict[str, LendingSum] = {}
    shown = desired_resources(node, decision)
    batch, mid = decision.batch, decision.mid
    if batch is not None and batch.cpu_formula and batch.memory_formula and batch.terms:
        for name, formula in ((BATCH_CPU, batch.cpu_formula), (BATCH_MEMORY, batch.memory_formula)):
            final = shown.get(name)
            total = _batch_sum(formula, batch.terms, batch.reserved, decision.rules)
            total = _with_normalization(name, total, decision.normalization)
            holders = ", ".join(third_party_holders(node.metadata.annotations, name))
            found[name] = _without_third_party_share(total, total.result if final is None else final.value(), holders)
    if mid is not None and mid.cpu is not None and mid.memory is not None:
        found[MID_CPU] = _mid_sum(mid.cpu, decision.rules, decision.rules.mid_cpu_percent)
        found[MID_MEMORY] = _mid_sum(mid.memory, decision.rules, decision.rules.mid_memory_percent)
    return found


def zone_sums(zone: ZoneBatch, normalization: CpuNormalizationDecision | None) -> dict[str, LendingSum]:
    return {
        name: _with_normalization(name, _batch_sum(formula, zone.terms, None, None), normalization)
        for name, formula in ((BATCH_CPU, zone.cpu), (BATCH_MEMORY, zone.memory))
    }


def _batch_sum(
    formula: BatchFormula, terms: BatchTerms, reserved: NodeReserved | None, rules: ColocationRules | None
) -> LendingSum:
    is_cpu = formula.resource == CPU
    capacity, margin, kept, pods = (
        _units(amount, is_cpu) for amount in (formula.capacity, formula.margin, formula.held, formula.pods)
    )
    percent = None if rules is None else rules.cpu_reclaim_percent if is_cpu else rules.memory_reclaim_percent
    field = "cpuReclaimThresholdPercent" if is_cpu else "memoryReclaimThresholdPercent"
    reclaim = "" if percent is None else f"{100 - percent} % ({field} {percent})"
    listed = [
        LendingTerm(sign="", name="capacity", amount=capacity),
        LendingTerm(sign="-", name="safety margin", amount=margin, note=reclaim, of=capacity if reclaim else None),
        LendingTerm(sign="-", name=_holder_name(formula, terms, reserved, is_cpu), amount=kept),
        LendingTerm(sign="-", name=_COUNTED[formula.policy], amount=pods, note=_unsampled_note(terms)),
    ]
    if formula.limit is not None:
        field = "batchCPUThresholdPercent" if is_cpu else "batchMemoryThresholdPercent"
        note = f"{field} {formula.limit_percent}"
        listed.append(LendingTerm(sign="min", name="limit", amount=_units(formula.limit, is_cpu), note=note))
    result = _units(formula.result, is_cpu)
    return LendingSum(terms=tuple(listed), result=result, binding=_binding_term(formula, listed, is_cpu))


def _holder_name(formula: BatchFormula, terms: BatchTerms, reserved: NodeReserved | None, is_cpu: bool) -> str:
    """Return whose part is counted: the largest of the system's usage and the reservations."""

    def amount(pair: object) -> Quantity:
        found: Quantity = getattr(pair, "cpu" if is_cpu else "memory")
        return found

    if formula.policy != CALCULATE_BY_REQUEST and amount(terms.system_used) >= amount(terms.reserved):
        return "used by the system"
    if reserved is not None and amount(reserved.annotated) > amount(reserved.kubelet):
        return "reserved by annotation"
    return "reserved by the kubelet" if reserved is not None else "reserved"


def _unsampled_note(terms: BatchTerms) -> str:
    count = len(terms.consumption.estimated)
    if not count:
        return ""
    return f"of {count} {'pod' if count == 1 else 'pods'} without a sample the request"


def _binding_term(formula: BatchFormula, listed: list[LendingTerm], is_cpu: bool) -> str:
    if formula.bound_by == "threshold":
        return "the limit"
    largest = max((term for term in listed if term.sign == "-"), key=lambda term: term.amount)
    if formula.bound_by == "nothing left":
        short = -_units(formula.room, is_cpu)
        return f"nothing is left ({largest.name} takes most; {short} more is taken than there is)"
    return largest.name


def _with_normalization(name: str, total: LendingSum, normalization: CpuNormalizationDecision | None) -> LendingSum:
    ratio = None if normalization is None else normalization.ratio
    if name != BATCH_CPU or ratio is None or ratio <= 1.0:
        return total
    after = amplify_cpu(Quantity.from_value(total.result), ratio).value()
    term = LendingTerm(sign="x", name="CPU normalization", amount=after, note=f"ratio {ratio:.2f}")
    return LendingSum(terms=(*total.terms, term), result=after, binding=total.binding)


def _without_third_party_share(total: LendingSum, final: int, holders: str) -> LendingSum:
    if final == total.result:
        return total
    amount = total.result - final
    term = LendingTerm(sign="-", name="taken by other orchestrators", amount=amount, note=holders)
    return LendingSum(terms=(*total.terms, term), result=final, binding=total.binding)


def _mid_sum(amount: MidAmount, rules: ColocationRules, percent: int) -> LendingSum:
    limit = LendingTerm(sign="min", name="limit", amount=amount.limit, note=f"{percent} %", of=amount.capacity)
    if rules.mid_static:
        listed = [LendingTerm(sign="", name="static share of capacity", amount=amount.static_share), limit]
    else:
        share = LendingTerm(
            sign="+",
            name="share of what nobody requested",
            amount=amount.unallocated_share,
            note=f"midUnallocatedPercent {rules.mid_unallocated_percent}",
            of=amount.unallocated,
        )
        listed = [
            LendingTerm(sign="", name="prod requests that will not be used", amount=amount.prod_reclaimable),
            LendingTerm(sign="min", name="capacity that is not used", amount=max(0, amount.unused)),
            share,
            limit,
        ]
    words = {
        "reclaimable": listed[0].name,
        "static": listed[0].name,
        "unused": "capacity that is not used",
        "threshold": "the limit",
    }
    return LendingSum(terms=tuple(listed), result=amount.result, binding=words[amount.bound_by])


def _units(amount: Quantity, is_cpu: bool) -> int:
    return amount.milli_value() if is_cpu else amount.value()


ResourceState = Literal["UpToDate", "WithinThreshold", "WriteDue", "Withheld", "NoCapacity", "NotComputed"]


def explain_difference(
    shown: int | None, computed: int | None, *, sized: bool, due: bool, decision: ColocationDecision
) -> tuple[ResourceState, str]:
    """Explain why a node shows another amount than was computed just now. `due`: the next reconcile writes at once."""
    if not sized:
        return "NoCapacity", "the node states no capacity or no allocatable: nothing is written"
    if shown == computed:
        if computed is None:
            return "Withheld", explain_withheld(decision)
        return "UpToDate", ""
    if computed is None:
        return "WriteDue", f"{explain_withheld(decision)}; the resource is about to be removed"
    if due or not shown:
        return "WriteDue", "differs by more than the threshold: koord-manager writes it with the node's next report"
    rules = decision.rules
    percent = 100 * abs(computed - shown) / shown
    return (
        "WithinThreshold",
        f"differs by {percent:.1f} %, not more than resourceDiffThreshold ({100 * rules.diff_threshold:g} %):"
        f" written with the first report {rules.update_seconds} s after the last write",
    )


def explain_withheld(decision: ColocationDecision) -> str:
    resolved = decision.resolved
    if not resolved.cluster_enabled:
        return "co-location is off: colocation-config does not say enable: true for the cluster"
    if not resolved.enabled:
        layers = [f"nodeConfig {resolved.layer}"] if resolved.layer is not None else []
        layers += ["the node's annotation"] if resolved.annotated else []
        return f"co-location is off for this node by {' or '.join(layers) or 'its settings'}"
    if decision.degraded is not None:
        return f"nothing is lent: {decision.degraded}"
    return "koord-manager does not compute it"


LENT_RESOURCES = (BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY)


class ResourceReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One resource. Amounts are milli-cores of CPU or bytes; None: the resource is absent."""

    resource: str
    sum: LendingSum | None = None  # None: nothing is lent, and `why` says so
    computed: int | None = None
    shown: int | None = None
    state: ResourceState
    why: str = ""


class ZoneReport(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    lines: tuple[ResourceReport, ...]


class NodeMetricReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of the node's NodeMetric; `flaw` says why nothing is lent by it."""

    at: datetime | None = None
    age_seconds: int | None = None
    good_for_seconds: int | None = None  # below 0: that long over
    flaw: str = ""


class StrategySources(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    enabled: bool
    cluster_enabled: bool
    node_config: str | None = None
    annotation: bool = False
    labels: tuple[str, ...] = ()
    ignored: str = ""


class RatioReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A normalization or amplification ratio: computed, shown on the node, and the error if there is none."""

    computed: dict[str, float] = {}
    shown: dict[str, float] = {}
    cpu_model: str = ""
    error: str = ""


class NodeResourceReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    node: str
    at: datetime
    settings: StrategySources
    report: NodeMetricReport
    lines: tuple[ResourceReport, ...]
    zones: tuple[ZoneReport, ...] = ()
    normalization: RatioReport = RatioReport()
    amplification: RatioReport = RatioReport()
    estimated: tuple[str, ...] = ()  # pods without a sample: their request is counted
    gone: tuple[str, ...] = ()  # samples of pods that are not on the node any more, and still count


def report_node(view: ColocationNodeView, decision: ColocationDecision) -> NodeResourceReport:
    batch = decision.batch
    consumption = None if batch is None or batch.terms is None else batch.terms.consumption
    resolved = decision.resolved
    return NodeResourceReport(
        node=view.node.metadata.name,
        at=view.now,
        settings=StrategySources(
            enabled=resolved.enabled,
            cluster_enabled=resolved.cluster_enabled,
            node_config=resolved.layer,
            annotation=resolved.annotated,
            labels=resolved.labelled,
            ignored=resolved.ignored,
        ),
        report=_report_metric(view, decision),
        lines=_report_resources(view, decision),
        zones=_report_zones(view, decision),
        normalization=_report_normalization(view, decision),
        amplification=_report_amplification(view, decision),
        estimated=() if consumption is None else tuple("/".join(key) for key in consumption.estimated),
        gone=() if consumption is None else tuple("/".join(key) for key in consumption.dangling),
    )


def _report_resources(view: ColocationNodeView, decision: ColocationDecision) -> tuple[ResourceReport, ...]:
    node = view.node
    target, found = desired_resources(node, decision), node_sums(node, decision)
    sized = bool(node.status.capacity and node.status.allocatable)
    due = decide_node_patch(node, decision, 0.0).status_due
    lines = []
    for name in LENT_RESOURCES:
        shown = listed_amount(node.status.allocatable, name)
        if name not in target:
            lines.append(
                ResourceReport(resource=name, shown=shown, state="NotComputed", why="the plugin is switched off")
            )
            continue
        aim = target[name]
        computed = None if aim is None else aim.value()
        state, why = explain_difference(shown, computed, sized=sized, due=due, decision=decision)
        lines.append(
            ResourceReport(resource=name, sum=found.get(name), computed=computed, shown=shown, state=state, why=why)
        )
    return tuple(lines)


def _report_zones(view: ColocationNodeView, decision: ColocationDecision) -> tuple[ZoneReport, ...]:
    topology, batch = view.topology, decision.batch
    if topology is None or batch is None:
        return ()
    shown = [{r.name: r.allocatable for r in zone.resources} for zone in topology.zones]
    zones = []
    for position, zone in enumerate(batch.zones):
        listed: Mapping[str, QuantityText] = shown[position] if position < len(shown) else {}
        lines = []
        for name, total in zone_sums(zone, decision.normalization).items():
            now = listed_amount(listed, name)
            due = now is None or abs(total.result - now) > now * decision.rules.diff_threshold
            state, why = explain_difference(now, total.result, sized=True, due=due, decision=decision)
            lines.append(
                ResourceReport(resource=name, sum=total, computed=total.result, shown=now, state=state, why=why)
            )
        zones.append(ZoneReport(name=zone.name, lines=tuple(lines)))
    return tuple(zones)


def _report_metric(view: ColocationNodeView, decision: ColocationDecision) -> NodeMetricReport:
    flaw = "" if decision.degraded is None else str(decision.degraded)
    at = None if view.metric is None else view.metric.status.update_time
    if at is None:
        return NodeMetricReport(flaw=flaw)
    age = int((view.now - at).total_seconds())
    return NodeMetricReport(
        at=at, age_seconds=age, good_for_seconds=decision.rules.degrade_minutes * 60 - age, flaw=flaw
    )


def _report_normalization(view: ColocationNodeView, decision: ColocationDecision) -> RatioReport:
    shown = cpu_codecs.parse_cpu_normalization_ratio(view.node.metadata.annotations)
    found = decision.normalization
    return RatioReport(
        computed={} if found is None or found.ratio is None else {"cpu": found.ratio},
        shown={"cpu": shown} if isinstance(shown, float) else {},
        cpu_model="" if found is None else found.cpu_model,
        error=found.error if found is not None else "",
    )


def _report_amplification(view: ColocationNodeView, decision: ColocationDecision) -> RatioReport:
    shown = node_codecs.parse_amplification_ratios(view.node.metadata.annotations)
    found = decision.amplification
    return RatioReport(
        computed={} if found is None else found.ratios,
        shown={} if shown is None or isinstance(shown, MalformedAnnotation) else dict(shown),
        error=found.error if found is not None else "",
    )


def listed_amount(listed: Mapping[str, QuantityText], name: str) -> int | None:
    """Return the amount in whole units; batch-cpu and mid-cpu are in milli-cores already."""
    text = listed.get(name)
    return None if text is None else Quantity.parse(text).value()
