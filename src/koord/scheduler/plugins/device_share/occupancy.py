"""A node's devices for people: the summary of the debugging endpoint and the occupancy drawing's data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import ascii_letters

import msgspec

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator import scheduling as wire
from koord.api.koordinator.resource_name import FPGA, GPU_MEMORY_RATIO, RDMA
from koord.scheduler.plugins.device_share import device_amounts
from koord.scheduler.plugins.device_share.annotations import pod_device_amounts
from koord.scheduler.plugins.device_share.inventory import FULL_CARD_PERCENT, Card, DeviceInventory
from koord.scheduler.plugins.device_share.node_devices import DeviceLedger
from koord.values import resources as vector

DeviceDetail = dict[str, dict[int, dict[str, str]]]


class NodeDeviceSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    device_total: dict[str, str]
    device_free: dict[str, str]
    device_used: dict[str, str]
    device_total_detail: DeviceDetail
    device_free_detail: DeviceDetail
    device_used_detail: DeviceDetail
    allocate_set: dict[str, dict[str, dict[int, dict[str, str]]]]  # type -> "namespace/name" -> minor


def summarize_node_devices(ledger: DeviceLedger, names: Mapping[str, str]) -> NodeDeviceSummary:
    """Summarize the node's devices. `names` maps pod UID to "namespace/name"; an unknown pod is shown by its UID."""
    kinds = ledger.inventory.cards
    total = {kind: {minor: card.total for minor, card in minors.items()} for kind, minors in kinds.items()}
    free = {kind: ledger.free_by_type(kind) for kind in kinds}
    allocated: dict[str, dict[str, dict[int, dict[str, str]]]] = {}
    for uid, holdings in sorted(ledger.allocations.items()):
        for kind, minors in holdings.items():
            allocated.setdefault(kind, {})[names.get(uid, uid)] = _minor_quantities(minors)
    return NodeDeviceSummary(
        device_total=_total_quantities(total),
        device_free=_total_quantities(free),
        device_used=_total_quantities(ledger.used),
        device_total_detail={kind: _minor_quantities(minors) for kind, minors in total.items()},
        device_free_detail={kind: _minor_quantities(minors) for kind, minors in free.items()},
        device_used_detail={kind: _minor_quantities(minors) for kind, minors in ledger.used.items()},
        allocate_set=allocated,
    )


def _total_quantities(holdings: Mapping[str, device_amounts.MinorAmounts]) -> dict[str, str]:
    total: dict[str, int] = {}
    for minors in holdings.values():
        for amounts in minors.values():
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + amount
    return _quantities(total)


def _minor_quantities(minors: device_amounts.MinorAmounts) -> dict[int, dict[str, str]]:
    return {minor: _quantities(amounts) for minor, amounts in minors.items()}


def _quantities(amounts: device_amounts.Amounts) -> dict[str, str]:
    counted = {name: amount for name, amount in amounts.items() if not device_amounts.is_vf_key(name)}
    return vector.to_wire(vector.materialise(counted))


FREE_CELL = "."
UNHEALTHY_CELL = "x"  # of a card that is not healthy
_MEASURES = {wire.GPU: GPU_MEMORY_RATIO, wire.RDMA: RDMA, wire.FPGA: FPGA}
_CELLS = 10  # of ten percents each


class DeviceOccupant(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    name: str
    annotations: Mapping[str, str]
    reservation: bool = False
    lives_in: str = ""  # the UID of a reservation


class DeviceCells(msgspec.Struct, frozen=True, kw_only=True):
    """One device. `cells` has the mark of a holder for every ten percent."""

    type: str
    minor: int
    healthy: bool
    cells: str
    used_percent: int
    functions: int = 0
    functions_used: int = 0


class DeviceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Devices behind one PCIe switch; None means that the topology is unknown."""

    numa: int | None
    pcie: str | None
    places: tuple[DeviceCells, ...]


class DeviceHolder(msgspec.Struct, frozen=True, kw_only=True):
    mark: str
    name: str
    reservation: bool
    devices: dict[str, dict[int, dict[str, int]]]  # type -> minor -> amounts
    functions: tuple[str, ...] = ()


class DeviceOccupancy(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    vendor: str = ""
    model: str = ""
    groups: tuple[DeviceGroup, ...] = ()
    holders: tuple[DeviceHolder, ...] = ()
    flaws: tuple[str, ...] = ()


def device_occupancy(inventory: DeviceInventory, tenants: Iterable[DeviceOccupant]) -> DeviceOccupancy:
    """Compute the occupancy. A reservation's devices that its pods have taken are shown as the pods'."""
    flaws = [str(problem) for problem in inventory.problems]
    held: dict[str, device_amounts.DeviceAmounts] = {}
    known = {tenant.uid: tenant for tenant in tenants}
    for tenant in known.values():
        found = pod_device_amounts(tenant.annotations, inventory.node, "")
        if isinstance(found, MalformedAnnotation):
            flaws.append(f"{tenant.name}: {found}")
        elif found is not None:
            held[tenant.uid] = found
    for uid, tenant in known.items():
        if tenant.lives_in in held and uid in held:
            inside = device_amounts.intersection(held[tenant.lives_in], held[uid])
            held[tenant.lives_in] = device_amounts.subtract(held[tenant.lives_in], inside)
    ledger = DeviceLedger(inventory)
    for uid, holdings in held.items():
        ledger = ledger.with_allocation(uid, holdings)
    flaws += [
        f"{one.device_type} {one.minor}: {one.held} of {one.total} {one.resource} are held"
        for one in ledger.overcommits()
    ]
    flaws += [
        f"{kind} {minor} is held and not listed in the Device object" for kind, minor in ledger.unlisted_devices()
    ]
    marks = {
        uid: ascii_letters[number % len(ascii_letters)]
        for number, uid in enumerate(sorted(held, key=lambda uid: known[uid].name))
    }
    return DeviceOccupancy(
        node=inventory.node,
        vendor=inventory.vendor,
        model=inventory.model,
        groups=_device_groups(inventory, ledger, marks),
        holders=tuple(_holder(mark, known[uid], held[uid]) for uid, mark in marks.items() if held[uid]),
        flaws=tuple(flaws),
    )


def _device_groups(
    inventory: DeviceInventory, ledger: DeviceLedger, marks: Mapping[str, str]
) -> tuple[DeviceGroup, ...]:
    cards = [card for minors in inventory.cards.values() for card in minors.values()]
    order = {(card.numa, card.pcie): None for card in sorted(cards, key=_location_key)}
    return tuple(
        DeviceGroup(
            numa=numa,
            pcie=pcie,
            places=tuple(
                _device_cells(card, ledger, marks) for card in cards if (card.numa, card.pcie) == (numa, pcie)
            ),
        )
        for numa, pcie in order
    )


def _location_key(card: Card) -> tuple[bool, int, bool, str]:
    return card.numa is None, card.numa or 0, card.pcie is None, card.pcie or ""


def _device_cells(card: Card, ledger: DeviceLedger, marks: Mapping[str, str]) -> DeviceCells:
    measure = _MEASURES.get(card.type, "")
    used = ledger.used_by_type(card.type).get(card.minor, device_amounts.NO_AMOUNTS)
    percent = used.get(measure, 0)
    cells = ""
    for uid, mark in marks.items():
        mine = (
            ledger.allocations.get(uid, device_amounts.NO_DEVICE_AMOUNTS)
            .get(card.type, device_amounts.NO_MINORS)
            .get(card.minor, device_amounts.NO_AMOUNTS)
        )
        share = mine.get(measure, 0)
        if share or device_amounts.vf_bus_ids(mine):
            cells += mark * max(share * _CELLS // FULL_CARD_PERCENT, 1)
    empty = FREE_CELL if card.healthy else UNHEALTHY_CELL
    return DeviceCells(
        type=card.type,
        minor=card.minor,
        healthy=card.healthy,
        cells=cells + empty * (_CELLS - len(cells)),
        used_percent=percent,
        functions=len(card.virtual_functions),
        functions_used=len(device_amounts.vf_bus_ids(used)),
    )


def _holder(mark: str, tenant: DeviceOccupant, held: device_amounts.DeviceAmounts) -> DeviceHolder:
    functions: list[str] = []
    devices: dict[str, dict[int, dict[str, int]]] = {}
    for kind, minors in held.items():
        for minor, amounts in sorted(minors.items()):
            functions += device_amounts.vf_bus_ids(amounts)
            devices.setdefault(kind, {})[minor] = _without_vfs(amounts)
    return DeviceHolder(
        mark=mark, name=tenant.name, reservation=tenant.reservation, devices=devices, functions=tuple(functions)
    )


def _without_vfs(amounts: device_amounts.Amounts) -> dict[str, int]:
    return {name: amount for name, amount in sorted(amounts.items()) if not device_amounts.is_vf_key(name)}
