"""This module is `koord node cpus` and `koord node devices`: drawings of who holds which CPU, GPU, network card or
other device of a node. Holders are its pods and available reservations.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from koord.api.annotations import reservation_codecs
from koord.api.koordinator import custom_kinds
from koord.api.koordinator.resource_name import (
    BATCH_CPU,
    BATCH_MEMORY,
    CPU,
    FPGA,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    MEMORY,
    MID_CPU,
    MID_MEMORY,
    RDMA,
)
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.pod_resources import HUGE_PAGES_PREFIX
from koord.cli import cluster_access, printing
from koord.cli.cluster_access import get_if_exists
from koord.cli.printing import plain_table, print_result
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.scheduler.plugins.device_share import occupancy
from koord.scheduler.plugins.device_share.inventory import build_inventory
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
from koord.telemetry.clock import Clock
from koord.values.names import dns1123_subdomain

if TYPE_CHECKING:
    from rich.console import Console


F = TypeVar("F", bound=msgspec.Struct)

_ENDED_PHASES = ("Succeeded", "Failed")


class NodeOccupant(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    name: str
    annotations: Mapping[str, str]
    lives_in: str = ""  # uid of the reservation that it uses
    reservation: bool = False


def show_node(
    name: str,
    look: Callable[[Client, str], Coroutine[Any, Any, F]],
    picture: Callable[[Console, F], None],
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Print what is found of a node, as a picture or as data."""
    if wrong := dns1123_subdomain(name):
        cluster_access.fail(f"{name!r} is no name of a node: {wrong[0]}")

    async def main(client: Client, clock: Clock) -> None:
        found = await look(client, name)
        print_result(found, output, lambda console: picture(console, found))

    cluster_access.run_with_client(main, kubeconfig, context)


async def list_occupants(client: Client, node: str) -> list[NodeOccupant]:
    pods = unwrap(await client.list(builtin_kinds.PODS, fields=f"spec.nodeName={node}"))
    found = [
        NodeOccupant(
            uid=pod.metadata.uid,
            name=f"{pod.metadata.namespace}/{pod.metadata.name}",
            annotations=pod.metadata.annotations,
            lives_in=_consumed_reservation_uid(pod.metadata.annotations),
        )
        for pod in pods.items
        if pod.status.phase not in _ENDED_PHASES
    ]
    return found + await _available_reservations(client, node)


async def _available_reservations(client: Client, node: str) -> list[NodeOccupant]:
    reservations = await client.list(custom_kinds.RESERVATIONS)
    if isinstance(reservations, ApiError) and not reservations.not_found:
        cluster_access.fail(str(reservations))
    if isinstance(reservations, ApiError):  # a cluster without the kind has none
        return []
    return [
        NodeOccupant(
            uid=held.metadata.uid, name=held.metadata.name, annotations=held.metadata.annotations, reservation=True
        )
        for held in reservations.items
        if held.status.node_name == node and held.status.phase == "Available"
    ]


def _consumed_reservation_uid(annotations: Mapping[str, str]) -> str:
    found = reservation_codecs.parse_reservation_allocated(annotations)
    return found.uid if isinstance(found, reservation_codecs.ReservationAllocated) else ""


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
        table = plain_table("", "HOLDER", ">CPUS", "LIST", "NUMA")
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
    amounts = [
        f"{printing.short_resource_name(name)} {_amount_of(name, zone.left.get(name, 0))} of {_amount_of(name, total)}"
        for name, total in sorted(zone.amounts.items())
        if total  # huge pages that nobody set up, for example
    ]
    left = f", left: {', '.join(amounts)}" if amounts else ""
    console.print(f"{_sockets_text(zone)}NUMA node {zone.number}  CPUs {zone.cpus or 'unknown'}{left}")
    for first in range(0, len(zone.cores), _CORES_PER_LINE):
        console.print("  " + " ".join(zone.cores[first : first + _CORES_PER_LINE]))


def _sockets_text(zone: ZoneOccupancy) -> str:
    if not zone.sockets:
        return ""
    return f"Socket{'s' if len(zone.sockets) > 1 else ''} {', '.join(map(str, zone.sockets))}, "


def _amounts(amounts: Mapping[str, int]) -> str:
    return ", ".join(
        f"{printing.short_resource_name(name)} {_amount_of(name, units)}" for name, units in sorted(amounts.items())
    )


def _amount_of(name: str, units: int) -> str:
    counted = name in _TIER_RESOURCES or name.startswith(HUGE_PAGES_PREFIX)
    return printing.format_amount(name, units) if counted else str(units)


_TIER_RESOURCES = frozenset((CPU, MEMORY, BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY))
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


async def read_device_occupancy(client: Client, name: str) -> occupancy.DeviceOccupancy:
    device = await client.get(custom_kinds.DEVICES, name)
    if isinstance(device, ApiError) and device.not_found:
        cluster_access.fail(f"there is no Device object of {name}: its koordlet reports one where it finds devices")
    tenants = [
        occupancy.DeviceOccupant(
            uid=one.uid, name=one.name, annotations=one.annotations, lives_in=one.lives_in, reservation=one.reservation
        )
        for one in await list_occupants(client, name)
    ]
    return occupancy.device_occupancy(build_inventory(unwrap(device)), tenants)


def print_device_occupancy(console: Console, found: occupancy.DeviceOccupancy) -> None:
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
    console.print(f"{occupancy.FREE_CELL} free   {occupancy.UNHEALTHY_CELL} not healthy")
    if found.holders:
        table = plain_table("", "HOLDER", "DEVICES", "FUNCTIONS")
        for holder in found.holders:
            name = f"reservation {holder.name}" if holder.reservation else holder.name
            table.add_row(holder.mark, name, _held_devices_text(holder), ", ".join(holder.functions) or "-")
        console.print(table)
    else:
        console.print("Nobody holds devices here.")
    for flaw in found.flaws:
        console.print(f"! {flaw}", style="yellow")


def _group_line(group: occupancy.DeviceGroup) -> str:
    return "   ".join(_device_text(place) for place in group.places)


def _device_text(place: occupancy.DeviceCells) -> str:
    functions = f" {place.functions_used}/{place.functions} VFs" if place.functions else ""
    return f"{place.type} {place.minor} [{place.cells}] {place.used_percent:>3}%{functions}"


def _held_devices_text(holder: occupancy.DeviceHolder) -> str:
    """Return the devices of which equal parts are held, together."""
    parts: dict[tuple[str, str], list[int]] = {}
    for kind, minors in holder.devices.items():
        for minor, amounts in minors.items():
            words = ", ".join(_amount(name, units) for name, units in amounts.items())
            parts.setdefault((kind, words), []).append(minor)
    return "; ".join(f"{kind} {','.join(map(str, minors))} ({words})" for (kind, words), minors in parts.items())


def _amount(name: str, units: int) -> str:
    if name == GPU_MEMORY:
        return printing.format_amount("memory", units)
    return f"{units}% {_SHORT[name]}" if name in _SHORT else f"{units} {printing.short_resource_name(name)}"
