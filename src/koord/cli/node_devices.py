"""This module is `koord node devices`: a drawing of who holds which GPU, network card or other device of a
node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from koord.api import custom
from koord.api.resource_name import FPGA, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from koord.cli import access, wording
from koord.cli.node_tenants import draw, residents
from koord.cli.printing import plain_table
from koord.kube.client import Client
from koord.kube.refused import Refused, ok
from koord.policy.device.inventory import inventory_of
from koord.policy.device.occupancy import FREE, LOST, Group, Holder, Occupancy, Place, Tenant, occupancy

if TYPE_CHECKING:
    from rich.console import Console

_SHORT = {GPU_CORE: "core", GPU_MEMORY_RATIO: "memory", RDMA: "of it", FPGA: "of it"}


@click.command()
@click.argument("name")
@access.output
@access.options
def devices(name: str, output: str, kubeconfig: str, context: str) -> None:
    """Who holds which device of a node.

    Ten letters for each device, one for every ten percents of it, laid out by NUMA node and PCIe switch. What cannot be
    read, and what contradicts itself, is told below the picture.
    """
    draw(name, look, print_occupancy, output, kubeconfig, context)


async def look(client: Client, name: str) -> Occupancy:
    device = await client.get(custom.DEVICES, name)
    if isinstance(device, Refused) and device.not_found:
        access.fail(f"there is no Device object of {name}: its koordlet reports one where it finds devices")
    tenants = [
        Tenant(
            uid=one.uid,
            name=one.name,
            annotations=one.annotations,
            lives_in=one.lives_in,
            reservation=one.reservation,
        )
        for one in await residents(client, name)
    ]
    return occupancy(inventory_of(ok(device)), tenants)


def print_occupancy(console: Console, found: Occupancy) -> None:
    console.print(f"Node  {found.node}", style="bold")
    if found.vendor or found.model:
        console.print(f"GPUs of {found.vendor or 'unknown vendor'}, model {found.model or 'unknown'}")
    numa: object = object()
    for group in found.groups:
        if group.numa != numa:
            numa = group.numa
            console.print()
            console.print("NUMA node unknown" if group.numa is None else f"NUMA node {group.numa}")
        console.print(f"  PCIe {group.pcie or 'unknown':<8} {_line(group)}")
    console.print()
    console.print(f"{FREE} free   {LOST} not healthy")
    if found.holders:
        table = plain_table(("", "left"), ("HOLDER", "left"), ("DEVICES", "left"), ("FUNCTIONS", "left"))
        for holder in found.holders:
            name = f"reservation {holder.name}" if holder.reservation else holder.name
            table.add_row(holder.mark, name, _devices(holder), ", ".join(holder.functions) or "-")
        console.print(table)
    else:
        console.print("Nobody holds devices here.")
    for flaw in found.flaws:
        console.print(f"! {flaw}", style="yellow")


def _line(group: Group) -> str:
    return "   ".join(_drawn(place) for place in group.places)


def _drawn(place: Place) -> str:
    functions = f" {place.functions_used}/{place.functions} VFs" if place.functions else ""
    return f"{place.type} {place.minor} [{place.cells}] {place.used_percent:>3}%{functions}"


def _devices(holder: Holder) -> str:
    """Return the devices of which equal parts are held, together."""
    parts: dict[tuple[str, str], list[int]] = {}
    for kind, minors in holder.devices.items():
        for minor, amounts in minors.items():
            words = ", ".join(_amount(name, units) for name, units in amounts.items())
            parts.setdefault((kind, words), []).append(minor)
    return "; ".join(f"{kind} {','.join(map(str, minors))} ({words})" for (kind, words), minors in parts.items())


def _amount(name: str, units: int) -> str:
    if name == GPU_MEMORY:
        return wording.amount("memory", units)
    return f"{units}% {_SHORT[name]}" if name in _SHORT else f"{units} {wording.short(name)}"
