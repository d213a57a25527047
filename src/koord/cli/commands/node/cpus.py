"""This module is `koord node cpus`: a drawing of who holds which CPU of a node, from live objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from koord.api.koordinator import custom_kinds
from koord.api.kubernetes import builtin_kinds
from koord.cli import amount_format, cluster_access
from koord.cli.cluster_access import get_if_exists
from koord.cli.commands.node.occupants import list_occupants, show_node
from koord.cli.printing import plain_table
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.scheduler.plugins.node_numa_resource.ledger import parse_allocation
from koord.scheduler.plugins.node_numa_resource.occupancy import (
    CONTESTED_CPU,
    FREE_CPU,
    RESERVED_CPU,
    CpuOccupancy,
    CpuOccupant,
    ZoneOccupancy,
    cpu_occupancy,
)
from koord.scheduler.plugins.node_numa_resource.topology_options import read_topology_options

if TYPE_CHECKING:
    from rich.console import Console


_CORES_PER_LINE = 16


@click.command()
@click.argument("name")
@cluster_access.output_option
@cluster_access.cluster_options
def cpus(name: str, output: str, kubeconfig: str, context: str) -> None:
    """Show who holds which CPU of a node.

    One letter for each CPU, the CPUs of a core side by side. What cannot be read, and what contradicts itself, is told
    below the picture.
    """
    show_node(name, read_cpu_occupancy, print_cpu_occupancy, output, kubeconfig, context)


async def read_cpu_occupancy(client: Client, name: str) -> CpuOccupancy:
    found = await client.get(builtin_kinds.NODES, name)
    if isinstance(found, ApiError) and found.not_found:
        cluster_access.fail(f"there is no node {name}")
    node = unwrap(found)
    topology = await get_if_exists(client, custom_kinds.NODE_RESOURCE_TOPOLOGIES, name)
    tenants = [
        CpuOccupant(
            uid=one.uid,
            name=one.name,
            given=parse_allocation(one.annotations),
            lives_in=one.lives_in,
            reservation=one.reservation,
        )
        for one in await list_occupants(client, name)
    ]
    return cpu_occupancy(
        name, read_topology_options(topology, node.metadata.labels, node.metadata.annotations), tenants
    )


def print_cpu_occupancy(console: Console, found: CpuOccupancy) -> None:
    console.print(f"Node  {found.node}", style="bold")
    console.print(f"CPU bind policy  {found.bind_policy}, NUMA topology policy  {found.numa_policy}")
    for zone in found.zones:
        console.print()
        _print_zone(console, zone)
    console.print()
    console.print(f"{FREE_CPU} free for all   {RESERVED_CPU} reserved for the system   {CONTESTED_CPU} held twice")
    if found.holders:
        table = plain_table(("", "left"), ("HOLDER", "left"), ("CPUS", "right"), ("LIST", "left"), ("NUMA", "left"))
        for holder in found.holders:
            name = f"reservation {holder.name}" if holder.reservation else holder.name
            alone = f" ({holder.exclusive})" if holder.exclusive not in ("", "None") else ""
            zones = "; ".join(f"{number}: {_amounts(amounts)}" for number, amounts in sorted(holder.zones.items()))
            table.add_row(holder.mark, name, str(holder.count), (holder.cpus or "shared") + alone, zones or "-")
        console.print(table)
    else:
        console.print("Nobody has CPUs or NUMA nodes of its own here.")
    for flaw in found.flaws:
        console.print(f"! {flaw}", style="yellow")


def _print_zone(console: Console, zone: ZoneOccupancy) -> None:
    left = f", left: {_amounts(zone.left)} of {_amounts(zone.amounts)}" if zone.amounts else ""
    console.print(f"NUMA node {zone.number}  CPUs {zone.cpus or 'unknown'}{left}")
    for first in range(0, len(zone.cores), _CORES_PER_LINE):
        console.print("  " + " ".join(zone.cores[first : first + _CORES_PER_LINE]))


def _amounts(amounts: object) -> str:
    assert isinstance(amounts, dict)
    return ", ".join(
        f"{name} {amount_format.format_amount(name, units) if name in ('cpu', 'memory') else units}"
        for name, units in sorted(amounts.items())
    )
