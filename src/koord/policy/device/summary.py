"""A node's devices for people: the summary of the debugging endpoint and the occupancy drawing. Serving and
drawing them is left to others.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.policy.device.holding import Amounts, ByMinor, is_function
from koord.policy.device.ledger import DeviceLedger
from koord.values import resources as vector

Detail = dict[str, dict[int, dict[str, str]]]


class NodeDeviceSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    device_total: dict[str, str]
    device_free: dict[str, str]
    device_used: dict[str, str]
    device_total_detail: Detail
    device_free_detail: Detail
    device_used_detail: Detail
    allocate_set: dict[str, dict[str, dict[int, dict[str, str]]]]  # type -> "namespace/name" -> minor


def summary_of(ledger: DeviceLedger, names: Mapping[str, str]) -> NodeDeviceSummary:
    """Summarize the node's devices. `names` maps pod UID to "namespace/name"; an unknown pod is shown by its UID."""
    kinds = ledger.inventory.cards
    total = {kind: {minor: card.total for minor, card in minors.items()} for kind, minors in kinds.items()}
    free = {kind: ledger.free_of(kind) for kind in kinds}
    allocated: dict[str, dict[str, dict[int, dict[str, str]]]] = {}
    for uid, holdings in sorted(ledger.allocations.items()):
        for kind, minors in holdings.items():
            allocated.setdefault(kind, {})[names.get(uid, uid)] = _shown(minors)
    return NodeDeviceSummary(
        device_total=_sum(total),
        device_free=_sum(free),
        device_used=_sum(ledger.used),
        device_total_detail={kind: _shown(minors) for kind, minors in total.items()},
        device_free_detail={kind: _shown(minors) for kind, minors in free.items()},
        device_used_detail={kind: _shown(minors) for kind, minors in ledger.used.items()},
        allocate_set=allocated,
    )


def _sum(holdings: Mapping[str, ByMinor]) -> dict[str, str]:
    total: dict[str, int] = {}
    for minors in holdings.values():
        for amounts in minors.values():
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + amount
    return _listed(total)


def _shown(minors: ByMinor) -> dict[int, dict[str, str]]:
    return {minor: _listed(amounts) for minor, amounts in minors.items()}


def _listed(amounts: Amounts) -> dict[str, str]:
    counted = {name: amount for name, amount in amounts.items() if not is_function(name)}
    return vector.to_wire(vector.materialise(counted))
