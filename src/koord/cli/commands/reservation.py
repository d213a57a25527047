"""This module is `koord reservation`: what is reserved for whom, who holds it and who waits, live from the API
server.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli import cluster_access, printing
from koord.cli.printing import plain_table, print_result
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.scheduler.plugins.reservation.report import ReservationReport, reservation_reports
from koord.telemetry.clock import Clock, now

if TYPE_CHECKING:
    from rich.console import Console

NEVER = "never"


@click.command()
@click.argument("name", default="")
@cluster_access.watch_option
@cluster_access.output_option
@cluster_access.cluster_options
def reservation(name: str, watch: bool, output: str, kubeconfig: str, context: str) -> None:
    """Reservations: where they are, who holds them, who waits. With NAME, everything about one."""

    async def main(client: Client, clock: Clock) -> None:
        found = await read_reservations(client, name)
        moment = now(clock)
        if name:
            print_result(found[0], output, lambda console: print_reservation(console, found[0], moment))
        else:
            print_result(found, output, lambda console: print_reservations(console, found, moment))

    cluster_access.run_with_client(main, kubeconfig, context, watch=watch)


async def read_reservations(client: Client, name: str = "") -> list[ReservationReport]:
    """Report all reservations, or the one of this name."""
    if name:
        one = await client.get(RESERVATIONS, name)
        if isinstance(one, ApiError) and one.not_found:
            cluster_access.fail(f"there is no reservation {name}")
        listed = [unwrap(one)]
    else:
        answer = await client.list(RESERVATIONS)
        if isinstance(answer, ApiError) and answer.not_found:
            cluster_access.fail("this cluster has no Reservations: koord crds prints what it lacks")
        listed = list(unwrap(answer).items)
    return reservation_reports(listed, unwrap(await client.list(PODS)).items)


def print_reservations(console: Console, found: list[ReservationReport], moment: datetime) -> None:
    if not found:
        console.print("There are no reservations.")
        return
    table = plain_table("NAME", "PHASE", "NODE", "RESERVED", "LEFT", ">HELD BY", ">WAITING", ">ENDS IN")
    for one in found:
        table.add_row(
            one.name,
            one.phase,
            one.node or "-",
            _amounts(one.reserved),
            _amounts(one.left),
            str(len(one.holders)),
            str(len(one.waiting)),
            _expiry_text(one, moment),
        )
    console.print(table)
    for one in found:
        if one.message and not one.node:
            console.print(f"{one.name} has no node: {one.message}")


def print_reservation(console: Console, one: ReservationReport, moment: datetime) -> None:
    console.print(f"{one.name}: {one.phase}{f' on {one.node}' if one.node else ''}")
    if one.message:
        console.print(f"  {one.message}")
    times = "for one pod" if one.once else "for any number of pods"
    console.print(f"  policy    {one.policy}, {times}")
    console.print(f"  reserved  {_amounts(one.reserved)}")
    console.print(f"  left      {_amounts(one.left)}")
    if one.phase == "Available":  # while it waits for a node its time does not run
        console.print(f"  ends in   {_expiry_text(one, moment)}")
    console.print("Held by:" if one.holders else "Held by nobody.")
    for part in one.holders:
        console.print(f"  {part.pod}  {_amounts(part.amounts)}")
    if one.waiting:
        console.print("Waiting:")
        for waiter in one.waiting:
            console.print(f"  {waiter.pod}{f'  {waiter.why}' if waiter.why else ''}")


def _amounts(found: dict[str, int]) -> str:
    listed = [f"{printing.short_resource_name(name)} {_amount(name, n)}" for name, n in sorted(found.items()) if n]
    return ", ".join(listed) or "-"


def _amount(name: str, units: int) -> str:
    return printing.format_amount(name, units) if name.endswith(("cpu", "memory", "storage")) else str(units)


def _expiry_text(one: ReservationReport, moment: datetime) -> str:
    if one.phase != "Available":
        return "-"
    return NEVER if one.ends is None else printing.format_duration(max(0.0, (one.ends - moment).total_seconds()))
