"""This module is `koord reservation`: what is reserved for whom, who holds it and who waits, live from the API
server.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from koord.api.builtin import PODS
from koord.api.custom import RESERVATIONS
from koord.cli import access, wording
from koord.cli.printing import plain_table, show
from koord.kube.client import Client
from koord.kube.refused import Refused, ok
from koord.policy.reservation.statement import Statement, statements
from koord.telemetry.clock import Clock, now

if TYPE_CHECKING:
    from rich.console import Console

NEVER = "never"


@click.command()
@click.argument("name", default="")
@access.output
@access.options
def reservation(name: str, output: str, kubeconfig: str, context: str) -> None:
    """Reservations: where they are, who holds them, who waits. With NAME, everything about one."""

    async def main(client: Client, clock: Clock) -> None:
        if name:
            one = await client.get(RESERVATIONS, name)
            if isinstance(one, Refused) and one.not_found:
                access.fail(f"there is no reservation {name}")
            listed = [ok(one)]
        else:
            listed = list(ok(await client.list(RESERVATIONS)).items)
        found = statements(listed, ok(await client.list(PODS)).items)
        moment = now(clock)
        if name:
            show(found[0], output, lambda console: print_one(console, found[0], moment))
        else:
            show(found, output, lambda console: print_all(console, found, moment))

    access.run(main, kubeconfig, context)


def print_all(console: Console, found: list[Statement], moment: datetime) -> None:
    if not found:
        console.print("There are no reservations.")
        return
    table = plain_table(
        ("NAME", "left"),
        ("PHASE", "left"),
        ("NODE", "left"),
        ("RESERVED", "left"),
        ("LEFT", "left"),
        ("HELD BY", "right"),
        ("WAITING", "right"),
        ("ENDS IN", "right"),
    )
    for one in found:
        table.add_row(
            one.name,
            one.phase,
            one.node or "-",
            _amounts(one.reserved),
            _amounts(one.left),
            str(len(one.holders)),
            str(len(one.waiting)),
            _ends(one, moment),
        )
    console.print(table)


def print_one(console: Console, one: Statement, moment: datetime) -> None:
    console.print(f"{one.name}: {one.phase}{f' on {one.node}' if one.node else ''}")
    if one.message:
        console.print(f"  {one.message}")
    times = "for one pod" if one.once else "for any number of pods"
    console.print(f"  policy    {one.policy}, {times}")
    console.print(f"  reserved  {_amounts(one.reserved)}")
    console.print(f"  left      {_amounts(one.left)}")
    if one.phase not in ("Succeeded", "Failed"):
        console.print(f"  ends in   {_ends(one, moment)}")
    console.print("Held by:" if one.holders else "Held by nobody.")
    for part in one.holders:
        console.print(f"  {part.pod}  {_amounts(part.amounts)}")
    if one.waiting:
        console.print("Waiting:")
        for waiter in one.waiting:
            console.print(f"  {waiter.pod}{f'  {waiter.why}' if waiter.why else ''}")


def _amounts(found: dict[str, int]) -> str:
    listed = [f"{wording.short(name)} {_amount(name, n)}" for name, n in sorted(found.items()) if n]
    return ", ".join(listed) or "-"


def _amount(name: str, units: int) -> str:
    return wording.amount(name, units) if name.endswith(("cpu", "memory", "storage")) else str(units)


def _ends(one: Statement, moment: datetime) -> str:
    if one.phase in ("Succeeded", "Failed"):
        return "-"
    return NEVER if one.ends is None else wording.span(max(0.0, (one.ends - moment).total_seconds()))
