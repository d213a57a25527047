"""`koord node devices`: a drawing of who holds which GPU, network card or other device of a node, from live objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from koord.api import builtin, custom
from koord.api.annotations import reservation_allocated
from koord.api.resource_name import FPGA, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from koord.cli import access, wording
from koord.cli.printing import plain_table, show
from koord.kube.client import Client
from koord.kube.refused import Refused, ok
from koord.policy.device.inventory import inventory_of
from koord.policy.device.occupancy import FREE, LOST, Group, Holder, Occupancy, Place, Tenant, occupancy
from koord.telemetry.clock import Clock
from koord.values.names import dns1123_subdomain

if TYPE_CHECKING:
    from rich.console import Console

_ENDED = ("Succeeded", "Failed")
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
    if wrong := dns1123_subdomain(name):
        access.fail(f"{name!r} is no name of a node: {wrong[0]}")

    async def main(client: Client, clock: Clock) -> None:
        found = await look(client, name)
        show(found, output, lambda console: print_occupancy(console, found))

    access.run(main, kubeconfig, context)


async def look(client: Client, name: str) -> Occupancy:
    device = await client.get(custom.DEVICES, name)
    if isinstance(device, Refused) and device.not_found:
        access.fail(f"there is no Device object of {name}: its koordlet reports one where it finds devices")
    pods = ok(await client.list(builtin.PODS, fields=f"spec.nodeName={name}"))
    tenants = [
        Tenant(
            uid=pod.metadata.uid,
            name=f"{pod.metadata.namespace}/{pod.metadata.name}",
            annotations=pod.metadata.annotations,
            lives_in=_reservation_of(pod.metadata.annotations),
        )
        for pod in pods.items
        if pod.status.phase not in _ENDED
    ]
    reservations = await client.list(custom.RESERVATIONS)
    if isinstance(reservations, Refused) and not reservations.not_found:
        access.fail(str(reservations))
    for held in () if isinstance(reservations, Refused) else reservations.items:
        if held.status.node_name == name and held.status.phase == "Available":
            meta = held.metadata
            tenants.append(Tenant(uid=meta.uid, name=meta.name, annotations=meta.annotations, reservation=True))
    return occupancy(inventory_of(ok(device)), tenants)


def _reservation_of(annotations: dict[str, str]) -> str:
    found = reservation_allocated.parse(annotations)
    return found.uid if isinstance(found, reservation_allocated.ReservationAllocated) else ""


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
    """Devices of which equal parts are held, together."""
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
