"""`koord node cpus`: a drawing of who holds which CPU of a node, from live objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from koord.api import builtin, custom
from koord.api.annotations import reservation_allocated
from koord.api.meta import Object
from koord.api.resource import Resource
from koord.cli import access, wording
from koord.cli.printing import plain_table, show
from koord.kube.client import Client
from koord.kube.refused import Refused, ok
from koord.policy.topology.node import node_topology
from koord.policy.topology.occupancy import CONTESTED, FREE, KEPT, Occupancy, Tenant, Zone, occupancy
from koord.policy.topology.status import read_allocation
from koord.telemetry.clock import Clock
from koord.values.names import dns1123_subdomain

if TYPE_CHECKING:
    from rich.console import Console

M = TypeVar("M", bound=Object)

_CORES_PER_LINE = 16
_ENDED = ("Succeeded", "Failed")


@click.command()
@click.argument("name")
@access.output
@access.options
def cpus(name: str, output: str, kubeconfig: str, context: str) -> None:
    """Who holds which CPU of a node.

    One letter for each CPU, the CPUs of a core side by side. What cannot be read, and what contradicts itself, is told
    below the picture.
    """
    if wrong := dns1123_subdomain(name):
        access.fail(f"{name!r} is no name of a node: {wrong[0]}")

    async def main(client: Client, clock: Clock) -> None:
        found = await look(client, name)
        show(found, output, lambda console: print_occupancy(console, found))

    access.run(main, kubeconfig, context)


async def look(client: Client, name: str) -> Occupancy:
    found = await client.get(builtin.NODES, name)
    if isinstance(found, Refused) and found.not_found:
        access.fail(f"there is no node {name}")
    node = ok(found)
    topology = await _optional(client, custom.NODE_RESOURCE_TOPOLOGIES, name)
    pods = ok(await client.list(builtin.PODS, fields=f"spec.nodeName={name}"))
    tenants = [
        Tenant(
            uid=pod.metadata.uid,
            name=f"{pod.metadata.namespace}/{pod.metadata.name}",
            given=read_allocation(pod.metadata.annotations),
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
            given = read_allocation(meta.annotations)
            tenants.append(Tenant(uid=meta.uid, name=meta.name, given=given, reservation=True))
    return occupancy(name, node_topology(topology, node.metadata.labels, node.metadata.annotations), tenants)


def _reservation_of(annotations: dict[str, str]) -> str:
    found = reservation_allocated.parse(annotations)
    return found.uid if isinstance(found, reservation_allocated.ReservationAllocated) else ""


async def _optional(client: Client, resource: Resource[M], name: str) -> M | None:
    """None when there is no such object, or no such kind."""
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
