"""This module is `koord top`: what nodes use, what pods requested, and what is lent, live from the API server."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from koord.cli import access, wording
from koord.cli.printing import show
from koord.cli.top_pods import pods
from koord.kube.client import Client
from koord.kube.refused import Refused, ok
from koord.manager.explain.share import TOTAL, NodeShare, Share, Tier, share, total
from koord.policy.colocation import wire
from koord.telemetry.clock import Clock, now

if TYPE_CHECKING:
    from rich.console import Console

SORTS: dict[str, Callable[[NodeShare], float]] = {
    "name": lambda _: 0.0,
    "used": lambda one: -_ratio(one.cpu.used, one.cpu.capacity),
    "prod": lambda one: -_ratio(one.cpu.prod.requested, one.cpu.prod.room),
    "batch": lambda one: float(one.cpu.batch.requested - one.cpu.batch.room),
}


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[NodeShare, ...]
    total: NodeShare


@click.group()
def top() -> None:
    """Show what nodes use, have promised and lend, and what pods use of what they asked for."""


top.add_command(pods)


@top.command()
@click.option("-l", "--selector", default="", help="Only nodes with these labels, for example pool=gpu.")
@click.option(
    "--sort-by",
    type=click.Choice(list(SORTS)),
    default="name",
    show_default=True,
    help="name, used (share of CPU), prod (share of CPU requested), batch (CPU that batch pods can still get).",
)
@click.option("--resource", type=click.Choice(["cpu", "memory"]), help="Only this resource.")
@access.output
@access.options
def nodes(selector: str, sort_by: str, resource: str | None, output: str, kubeconfig: str, context: str) -> None:
    """Prod, mid and batch of every node: room, requested, used.

    The room of prod is allocatable; that of mid and batch is what koord-manager lends. Free pods count as batch.
    """

    async def main(client: Client, clock: Clock) -> None:
        found = await look(client, selector)
        ordered = sorted(found, key=lambda one: (SORTS[sort_by](one), _natural(one.name)))
        fleet = Fleet(nodes=tuple(ordered), total=total(ordered))
        shown = (resource,) if resource is not None else ("cpu", "memory")
        show(fleet, output, lambda console: print_fleet(console, fleet, shown, now(clock)))

    access.run(main, kubeconfig, context)


async def look(client: Client, selector: str) -> list[NodeShare]:
    nodes = ok(await client.list(wire.NODES, labels=selector))
    running = ok(await client.list(wire.PODS, fields="spec.nodeName!="))
    metrics = await client.list(wire.NODE_METRICS)
    if isinstance(metrics, Refused) and not metrics.not_found:
        access.fail(str(metrics))
    reports = {} if isinstance(metrics, Refused) else {one.metadata.name: one for one in metrics.items}
    placed: dict[str, list[wire.Pod]] = {}
    for pod in running.items:
        placed.setdefault(pod.spec.node_name, []).append(pod)
    return [share(node, placed.get(node.metadata.name, ()), reports.get(node.metadata.name)) for node in nodes.items]


def print_fleet(console: Console, fleet: Fleet, resources: tuple[str, ...], at: datetime) -> None:
    from rich.table import Table

    if not fleet.nodes:
        console.print("No nodes.")
        return
    for resource in resources:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column(f"NODE ({resource})", overflow="fold")
        titles = ("CAPACITY", "USED", "%", "PROD ROOM", "REQ", "USED", "MID LENT", "REQ", "USED")
        for title in (*titles, "BATCH LENT", "REQ", "USED", "REPORT"):
            table.add_column(title, justify="right", no_wrap=True)
        for one in fleet.nodes:
            table.add_row(*_row(one, resource), wording.age(one.reported, at))
        table.add_row(*_row(fleet.total, resource), "", style="bold")
        console.print(table)
        if resource != resources[-1]:
            console.print()


def _row(one: NodeShare, resource: str) -> tuple[str, ...]:
    found: Share = one.cpu if resource == "cpu" else one.memory

    known = one.reported is not None or one.name == TOTAL

    def words(units: int) -> str:
        return wording.amount(resource, units)

    def used(units: int) -> str:
        return words(units) if known else "-"

    def tier(of: Tier) -> tuple[str, ...]:
        return words(of.room), words(of.requested), used(of.used)

    percent = f"{100 * _ratio(found.used, found.capacity):.0f}" if known else "-"
    return (
        one.name,
        words(found.capacity),
        used(found.used),
        percent,
        *tier(found.prod),
        *tier(found.mid),
        *tier(found.batch),
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts node-2 before node-10."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
