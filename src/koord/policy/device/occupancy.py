"""Who holds which devices of a node, laid out by NUMA node and PCIe switch. Drawing it is left to others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import ascii_letters

import msgspec

from koord.api import device as wire
from koord.api.annotations.codec import Malformed
from koord.api.resource_name import FPGA, GPU_MEMORY_RATIO, RDMA
from koord.policy.device import holding
from koord.policy.device.annotation import held_by
from koord.policy.device.holding import NO_AMOUNTS, NO_MINORS, NOTHING, Amounts, Holdings, functions_of
from koord.policy.device.inventory import WHOLE, Card, DeviceInventory
from koord.policy.device.ledger import DeviceLedger

FREE = "."
LOST = "x"  # of a card that is not healthy
_MEASURES = {wire.GPU: GPU_MEMORY_RATIO, wire.RDMA: RDMA, wire.FPGA: FPGA}
_CELLS = 10  # of ten percents each


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    name: str
    annotations: Mapping[str, str]
    reservation: bool = False
    lives_in: str = ""  # the UID of a reservation


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One device. `cells` has the mark of a holder for every ten percent."""

    type: str
    minor: int
    healthy: bool
    cells: str
    used_percent: int
    functions: int = 0
    functions_used: int = 0


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Devices behind one PCIe switch; None means that the topology is unknown."""

    numa: int | None
    pcie: str | None
    places: tuple[Place, ...]


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    mark: str
    name: str
    reservation: bool
    devices: dict[str, dict[int, dict[str, int]]]  # type -> minor -> amounts
    functions: tuple[str, ...] = ()


class Occupancy(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    vendor: str = ""
    model: str = ""
    groups: tuple[Group, ...] = ()
    holders: tuple[Holder, ...] = ()
    flaws: tuple[str, ...] = ()


def occupancy(inventory: DeviceInventory, tenants: Iterable[Tenant]) -> Occupancy:
    """Compute the occupancy. A reservation's devices that its pods have taken are shown as the pods'."""
    flaws = [str(problem) for problem in inventory.problems]
    held: dict[str, Holdings] = {}
    known = {tenant.uid: tenant for tenant in tenants}
    for tenant in known.values():
        found = held_by(tenant.annotations, inventory.node, "")
        if isinstance(found, Malformed):
            flaws.append(f"{tenant.name}: {found}")
        elif found is not None:
            held[tenant.uid] = found
    for uid, tenant in known.items():
        if tenant.lives_in in held and uid in held:
            inside = holding.common(held[tenant.lives_in], held[uid])
            held[tenant.lives_in] = holding.minus(held[tenant.lives_in], inside)
    ledger = DeviceLedger(inventory)
    for uid, holdings in held.items():
        ledger = ledger.taken(uid, holdings)
    flaws += [
        f"{one.device_type} {one.minor}: {one.held} of {one.total} {one.resource} are held" for one in ledger.excesses()
    ]
    flaws += [f"{kind} {minor} is held and not listed in the Device object" for kind, minor in ledger.strangers()]
    marks = {
        uid: ascii_letters[number % len(ascii_letters)]
        for number, uid in enumerate(sorted(held, key=lambda uid: known[uid].name))
    }
    return Occupancy(
        node=inventory.node,
        vendor=inventory.vendor,
        model=inventory.model,
        groups=_groups(inventory, ledger, marks),
        holders=tuple(_holder(mark, known[uid], held[uid]) for uid, mark in marks.items() if held[uid]),
        flaws=tuple(flaws),
    )


def _groups(inventory: DeviceInventory, ledger: DeviceLedger, marks: Mapping[str, str]) -> tuple[Group, ...]:
    cards = [card for minors in inventory.cards.values() for card in minors.values()]
    order = {(card.numa, card.pcie): None for card in sorted(cards, key=_seat)}
    return tuple(
        Group(
            numa=numa,
            pcie=pcie,
            places=tuple(_place(card, ledger, marks) for card in cards if (card.numa, card.pcie) == (numa, pcie)),
        )
        for numa, pcie in order
    )


def _seat(card: Card) -> tuple[bool, int, bool, str]:
    return card.numa is None, card.numa or 0, card.pcie is None, card.pcie or ""


def _place(card: Card, ledger: DeviceLedger, marks: Mapping[str, str]) -> Place:
    measure = _MEASURES.get(card.type, "")
    used = ledger.used_of(card.type).get(card.minor, NO_AMOUNTS)
    percent = used.get(measure, 0)
    cells = ""
    for uid, mark in marks.items():
        mine = ledger.allocations.get(uid, NOTHING).get(card.type, NO_MINORS).get(card.minor, NO_AMOUNTS)
        share = mine.get(measure, 0)
        if share or functions_of(mine):
            cells += mark * max(share * _CELLS // WHOLE, 1)
    empty = FREE if card.healthy else LOST
    return Place(
        type=card.type,
        minor=card.minor,
        healthy=card.healthy,
        cells=cells + empty * (_CELLS - len(cells)),
        used_percent=percent,
        functions=len(card.functions),
        functions_used=len(functions_of(used)),
    )


def _holder(mark: str, tenant: Tenant, held: Holdings) -> Holder:
    functions: list[str] = []
    devices: dict[str, dict[int, dict[str, int]]] = {}
    for kind, minors in held.items():
        for minor, amounts in sorted(minors.items()):
            functions += functions_of(amounts)
            devices.setdefault(kind, {})[minor] = _counted(amounts)
    return Holder(
        mark=mark, name=tenant.name, reservation=tenant.reservation, devices=devices, functions=tuple(functions)
    )


def _counted(amounts: Amounts) -> dict[str, int]:
    return {name: amount for name, amount in sorted(amounts.items()) if not holding.is_function(name)}
