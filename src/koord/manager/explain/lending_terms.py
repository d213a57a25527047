"""The sums behind what a node or a NUMA zone lends, as lists of signed terms in whole units. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from koord.api.config.slo.colocation import CALCULATE_BY_MAX_USAGE_REQUEST, CALCULATE_BY_REQUEST, CALCULATE_BY_USAGE
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koord.manager.colocation.batch import BatchFormula, BatchTerms, ZoneBatch
from koord.manager.colocation.decision import ColocationDecision
from koord.manager.colocation.mid import MidAmount
from koord.manager.colocation.models import ColocationNode, amplify_cpu
from koord.manager.colocation.node_patch import desired_resources
from koord.manager.colocation.normalization import CpuNormalizationDecision
from koord.manager.colocation.reserved_usage import NodeReserved
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
            found[name] = _without_third_party_share(total, total.result if final is None else final.value())
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


def _without_third_party_share(total: LendingSum, final: int) -> LendingSum:
    if final == total.result:
        return total
    term = LendingTerm(sign="-", name="taken by other orchestrators", amount=total.result - final)
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
