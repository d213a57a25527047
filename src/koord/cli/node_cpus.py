"""This module is `koord node cpus`: a drawing of who holds which CPU of a node, from live objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from koord.api import builtin, custom
from koord.api.meta import Object
from koord.api.resource import Resource
from koord.cli import access, wording
from koord.cli.node_tenants import draw, residents
from koord.cli.printing import plain_table
from koord.kube.client import Client
from koord.kube.refused import Refused, ok
from koord.policy.topology.node import node_topology
from koord.policy.topology.occupancy import CONTESTED, FREE, KEPT, Occupancy, Tenant, Zone, occupancy
from koord.policy.topology.status import read_allocation

if TYPE_CHECKING:
    from rich.console import Console

M = TypeVar("M", bound=Object)

_CORES_PER_LINE = 16


@click.command()
@click.argument("name")
@access.output
@access.options
def cpus(name: str, output: str, kubeconfig: str, context: str) -> None:
    """Who holds which CPU of a node.

    One letter for each CPU, the CPUs of a core side by side. What cannot be read, and what contradicts itself, is told
    below the picture.
    """
    draw(name, look, print_occupancy, output, kubeconfig, context)


async def look(client: Client, name: str) -> Occupancy:
    found = await client.get(builtin.NODES, name)
    if isinstance(found, Refused) and found.not_found:
        access.fail(f"there is no node {name}")
    node = ok(found)
    topology = await _optional(client, custom.NODE_RESOURCE_TOPOLOGIES, name)
    tenants = [
        Tenant(
            uid=one.uid,
            name=one.name,
            given=read_allocation(one.annotations),
            lives_in=one.lives_in,
            reservation=one.reservation,
        )
        for one in await residents(client, name)
    ]
    return occupancy(name, node_topology(topology, node.metadata.labels, node.metadata.annotations), tenants)


async def _optional(client: Client, resource: Resource[M], name: str) -> M | None:
    """Return the object, or None when there is no such object or no such kind."""
    found = await client.get(resource, name)
    return None if isinstance(found, Refused) and found.not_found else ok(found)


def print_occupancy(console: Console, found: Occupancy) -> None:
    console.print(f"Node  {found.node}", style="bold")
    console.print(f"CPU bind policy  {found.bind_policy}, NUMA topology policy  {found.numa_policy}")
    for zone in found.zones:
        console.print()
        _print_zone(console, zone)
    console.print()
    console.print(f"{FREE} free for all   {KEPT} reserved for the system   {CONTESTED} held twice")
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


def _print_zone(console: Console, zone: Zone) -> None:
    left = f", left: {_amounts(zone.left)} of {_amounts(zone.amounts)}" if zone.amounts else ""
    console.print(f"NUMA node {zone.number}  CPUs {zone.cpus or 'unknown'}{left}")
    for first in range(0, len(zone.cores), _CORES_PER_LINE):
        console.print("  " + " ".join(zone.cores[first : first + _CORES_PER_LINE]))


def _amounts(amounts: object) -> str:
    assert isinstance(amounts, dict)
    return ", ".join(
        f"{name} {wording.amount(name, units) if name in ('cpu', 'memory') else units}"
        for name, units in sorted(amounts.items())
    )
