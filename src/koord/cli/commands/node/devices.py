"""This module is `koord node devices`: a drawing of who holds which GPU, network card or other device of a
node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from koord.api.koordinator import custom_kinds
from koord.api.koordinator.resource_name import FPGA, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from koord.cli import amount_format, cluster_access
from koord.cli.commands.node.occupants import list_occupants, show_node
from koord.cli.printing import plain_table
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.scheduler.plugins.device_share.inventory import build_inventory
from koord.scheduler.plugins.device_share.occupancy import (
    FREE_CELL,
    UNHEALTHY_CELL,
    DeviceCells,
    DeviceGroup,
    DeviceHolder,
    DeviceOccupancy,
    DeviceOccupant,
    device_occupancy,
)

if TYPE_CHECKING:
    from rich.console import Console

_SHORT = {GPU_CORE: "core", GPU_MEMORY_RATIO: "memory", RDMA: "of it", FPGA: "of it"}


@click.command()
@click.argument("name")
@cluster_access.output_option
@cluster_access.cluster_options
def devices(name: str, output: str, kubeconfig: str, context: str) -> None:
    """Show who holds which device of a node.

    Ten letters for each device, one for every ten percents of it, laid out by NUMA node and PCIe switch. What cannot be
    read, and what contradicts itself, is told below the picture.
    """
    show_node(name, read_device_occupancy, print_device_occupancy, output, kubeconfig, context)


async def read_device_occupancy(client: Client, name: str) -> DeviceOccupancy:
    device = await client.get(custom_kinds.DEVICES, name)
    if isinstance(device, ApiError) and device.not_found:
        cluster_access.fail(f"there is no Device object of {name}: its koordlet reports one where it finds devices")
    tenants = [
        DeviceOccupant(
            uid=one.uid,
            name=one.name,
            annotations=one.annotations,
            lives_in=one.lives_in,
            reservation=one.reservation,
        )
        for one in await list_occupants(client, name)
    ]
    return device_occupancy(build_inventory(unwrap(device)), tenants)


def print_device_occupancy(console: Console, found: DeviceOccupancy) -> None:
    console.print(f"Node  {found.node}", style="bold")
    if found.vendor or found.model:
        console.print(f"GPUs of {found.vendor or 'unknown vendor'}, model {found.model or 'unknown'}")
    numa: object = object()
    for group in found.groups:
        if group.numa != numa:
            numa = group.numa
            console.print()
            console.print("NUMA node unknown" if group.numa is None else f"NUMA node {group.numa}")
        console.print(f"  PCIe {group.pcie or 'unknown':<8} {_group_line(group)}")
    console.print()
    console.print(f"{FREE_CELL} free   {UNHEALTHY_CELL} not healthy")
    if found.holders:
        table = plain_table(("", "left"), ("HOLDER", "left"), ("DEVICES", "left"), ("FUNCTIONS", "left"))
        for holder in found.holders:
            name = f"reservation {holder.name}" if holder.reservation else holder.name
            table.add_row(holder.mark, name, _held_devices_text(holder), ", ".join(holder.functions) or "-")
        console.print(table)
    else:
        console.print("Nobody holds devices here.")
    for flaw in found.flaws:
        console.print(f"! {flaw}", style="yellow")


def _group_line(group: DeviceGroup) -> str:
    return "   ".join(_device_text(place) for place in group.places)


def _device_text(place: DeviceCells) -> str:
    functions = f" {place.functions_used}/{place.functions} VFs" if place.functions else ""
    return f"{place.type} {place.minor} [{place.cells}] {place.used_percent:>3}%{functions}"


def _held_devices_text(holder: DeviceHolder) -> str:
    """Return the devices of which equal parts are held, together."""
    parts: dict[tuple[str, str], list[int]] = {}
    for kind, minors in holder.devices.items():
        for minor, amounts in minors.items():
            words = ", ".join(_amount(name, units) for name, units in amounts.items())
            parts.setdefault((kind, words), []).append(minor)
    return "; ".join(f"{kind} {','.join(map(str, minors))} ({words})" for (kind, words), minors in parts.items())


def _amount(name: str, units: int) -> str:
    if name == GPU_MEMORY:
        return amount_format.format_amount("memory", units)
    return f"{units}% {_SHORT[name]}" if name in _SHORT else f"{units} {amount_format.short_resource_name(name)}"
