"""The sums behind what a node or a NUMA zone lends, as lists of signed terms in whole units. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from koord.api.config.slo.colocation import MAX_USAGE_REQUEST, REQUEST, USAGE
from koord.api.resource_name import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koord.policy.colocation.amount import amplified
from koord.policy.colocation.batch import Formula, Terms, ZoneBatch
from koord.policy.colocation.decision import Decision
from koord.policy.colocation.difference import wanted
from koord.policy.colocation.held import Reserved
from koord.policy.colocation.mid import MidAmount
from koord.policy.colocation.ratio import Normalization
from koord.policy.colocation.strategy import Rules
from koord.policy.colocation.wire import Node
from koord.values.quantity import Quantity
from koord.values.resources import CPU

Sign = Literal["", "+", "-", "min", "x", "="]

_COUNTED = {
    USAGE: "used by prod and mid pods",
    REQUEST: "requested by prod and mid pods",
    MAX_USAGE_REQUEST: "larger of use and request, prod and mid pods",
}


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One term in milli-cores or bytes. With sign "x", `amount` is the sum so far times the factor in `note`."""

    sign: Sign
    name: str
    amount: int
    note: str = ""
    of: int | None = None  # what `amount` is a part of


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    terms: tuple[Term, ...]
    result: int
    binding: str  # the term that decided, in words


def of_node(node: Node, decision: Decision) -> dict[str, Sum]:
    """Return the sums by resource; resources that are not lent are left out."""
    found: dict[str, Sum] = {}
    shown = wanted(node, decision)
    batch, mid = decision.batch, decision.mid
    if batch is not None and batch.cpu_formula and batch.memory_formula and batch.terms:
        for name, formula in ((BATCH_CPU, batch.cpu_formula), (BATCH_MEMORY, batch.memory_formula)):
            final = shown.get(name)
            total = _batch(formula, batch.terms, batch.reserved, decision.rules)
            total = _normalized(name, total, decision.normalization)
            found[name] = _after_third_parties(total, total.result if final is None else final.value())
    if mid is not None and mid.cpu is not None and mid.memory is not None:
        found[MID_CPU] = _mid(mid.cpu, decision.rules, decision.rules.mid_cpu_percent)
        found[MID_MEMORY] = _mid(mid.memory, decision.rules, decision.rules.mid_memory_percent)
    return found


def of_zone(zone: ZoneBatch, normalization: Normalization | None) -> dict[str, Sum]:
    return {
        name: _normalized(name, _batch(formula, zone.terms, None, None), normalization)
        for name, formula in ((BATCH_CPU, zone.cpu), (BATCH_MEMORY, zone.memory))
    }


def _batch(formula: Formula, terms: Terms, reserved: Reserved | None, rules: Rules | None) -> Sum:
    is_cpu = formula.resource == CPU
    capacity, margin, kept, pods = (
        _units(amount, is_cpu) for amount in (formula.capacity, formula.margin, formula.held, formula.pods)
    )
    percent = None if rules is None else rules.cpu_reclaim_percent if is_cpu else rules.memory_reclaim_percent
    field = "cpuReclaimThresholdPercent" if is_cpu else "memoryReclaimThresholdPercent"
    reclaim = "" if percent is None else f"{100 - percent} % ({field} {percent})"
    listed = [
        Term(sign="", name="capacity", amount=capacity),
        Term(sign="-", name="safety margin", amount=margin, note=reclaim, of=capacity if reclaim else None),
        Term(sign="-", name=_holder(formula, terms, reserved, is_cpu), amount=kept),
        Term(sign="-", name=_COUNTED[formula.policy], amount=pods, note=_unsampled(terms)),
    ]
    if formula.limit is not None:
        field = "batchCPUThresholdPercent" if is_cpu else "batchMemoryThresholdPercent"
        note = f"{field} {formula.limit_percent}"
        listed.append(Term(sign="min", name="limit", amount=_units(formula.limit, is_cpu), note=note))
    result = _units(formula.result, is_cpu)
    return Sum(terms=tuple(listed), result=result, binding=_binding(formula, listed, is_cpu))


def _holder(formula: Formula, terms: Terms, reserved: Reserved | None, is_cpu: bool) -> str:
    """Return whose part is counted: the largest of the system's usage and the reservations."""

    def of(pair: object) -> Quantity:
        found: Quantity = getattr(pair, "cpu" if is_cpu else "memory")
        return found

    if formula.policy != REQUEST and of(terms.system_used) >= of(terms.reserved):
        return "used by the system"
    if reserved is not None and of(reserved.annotated) > of(reserved.kubelet):
        return "reserved by annotation"
    return "reserved by the kubelet" if reserved is not None else "reserved"


def _unsampled(terms: Terms) -> str:
    count = len(terms.consumption.estimated)
    if not count:
        return ""
    return f"of {count} {'pod' if count == 1 else 'pods'} without a sample the request"


def _binding(formula: Formula, listed: list[Term], is_cpu: bool) -> str:
    if formula.bound_by == "threshold":
        return "the limit"
    largest = max((term for term in listed if term.sign == "-"), key=lambda term: term.amount)
    if formula.bound_by == "nothing left":
        short = -_units(formula.room, is_cpu)
        return f"nothing is left ({largest.name} takes most; {short} more is taken than there is)"
    return largest.name


def _normalized(name: str, total: Sum, normalization: Normalization | None) -> Sum:
    ratio = None if normalization is None else normalization.ratio
    if name != BATCH_CPU or ratio is None or ratio <= 1.0:
        return total
    after = amplified(Quantity.from_value(total.result), ratio).value()
    term = Term(sign="x", name="CPU normalization", amount=after, note=f"ratio {ratio:.2f}")
    return Sum(terms=(*total.terms, term), result=after, binding=total.binding)


def _after_third_parties(total: Sum, final: int) -> Sum:
    if final == total.result:
        return total
    term = Term(sign="-", name="taken by other orchestrators", amount=total.result - final)
    return Sum(terms=(*total.terms, term), result=final, binding=total.binding)


def _mid(amount: MidAmount, rules: Rules, percent: int) -> Sum:
    limit = Term(sign="min", name="limit", amount=amount.limit, note=f"{percent} %", of=amount.capacity)
    if rules.mid_static:
        listed = [Term(sign="", name="static share of capacity", amount=amount.static_share), limit]
    else:
        share = Term(
            sign="+",
            name="share of what nobody requested",
            amount=amount.unallocated_share,
            note=f"midUnallocatedPercent {rules.mid_unallocated_percent}",
            of=amount.unallocated,
        )
        listed = [
            Term(sign="", name="prod requests that will not be used", amount=amount.prod_reclaimable),
            Term(sign="min", name="capacity that is not used", amount=max(0, amount.unused)),
            share,
            limit,
        ]
    words = {
        "reclaimable": listed[0].name,
        "static": listed[0].name,
        "unused": "capacity that is not used",
        "threshold": "the limit",
    }
    return Sum(terms=tuple(listed), result=amount.result, binding=words[amount.bound_by])


def _units(amount: Quantity, is_cpu: bool) -> int:
    return amount.milli_value() if is_cpu else amount.value()
