"""RDMA network cards of this machine, from sysfs: their ports' health and their virtual functions."""

from __future__ import annotations

import re

import msgspec

from koord.host import pci
from koord.host.fault import Fault
from koord.host.host import Host
from koord.host.pci import Seat
from koord.values.quotation import integer

_NETWORK = "0x02"  # the class of network controllers
_NUMBERED = re.compile(r"mlx\d+_(\d+)")


class RdmaCard(msgspec.Struct, frozen=True, kw_only=True):
    """One RDMA network card."""
    address: str
    minor: int
    healthy: bool  # every port is active
    seat: Seat
    functions: tuple[str, ...] = ()  # addresses of virtual functions, when they are switched on


def rdma_cards(host: Host) -> list[RdmaCard] | Fault:
    """Return the cards by minor. Cards whose name has no number cannot be told apart and are left out."""
    addresses = pci.addresses(host)
    if isinstance(addresses, Fault):
        return addresses
    found: list[RdmaCard] = []
    for address in addresses:
        folder = pci.folder(host, address)
        if not pci.attribute(host, address, "class").startswith(_NETWORK) or host.exists(f"{folder}/physfn"):
            continue  # no network card, or itself a virtual function
        names = host.names(f"{folder}/infiniband")
        numbered = _NUMBERED.fullmatch(names[0]) if not isinstance(names, Fault) and names else None
        if isinstance(names, Fault) or numbered is None:
            continue
        found.append(
            RdmaCard(
                address=address,
                minor=int(numbered[1]),
                healthy=all(_active(host, f"{folder}/infiniband/{name}/ports") for name in names),
                seat=pci.seat(host, address),
                functions=_functions(host, address),
            )
        )
    return sorted(found, key=lambda card: card.minor)


def _active(host: Host, ports: str) -> bool:
    numbers = host.names(ports)
    if isinstance(numbers, Fault) or not numbers:
        return False
    states = [host.read(f"{ports}/{number}/state") for number in numbers]
    return all(isinstance(state, str) and "ACTIVE" in state for state in states)


def _functions(host: Host, address: str) -> tuple[str, ...]:
    if (integer(pci.attribute(host, address, "sriov_numvfs")) or 0) <= 0:
        return ()
    names = host.names(pci.folder(host, address))
    links = [name for name in ([] if isinstance(names, Fault) else names) if name.startswith("virtfn")]
    links.sort(key=lambda name: integer(name.removeprefix("virtfn")) or 0)
    targets = [host.link(f"{pci.folder(host, address)}/{name}") for name in links]
    return tuple(target.rpartition("/")[2] for target in targets if isinstance(target, str))
