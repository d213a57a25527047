"""This module is `koord deschedule --dry-run`: what a round of the descheduler would do, on a live cluster or
a snapshot, printed plugin by plugin, then what was declined and which nodes were not judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from koord.cli.printing import plain_table
from koord.descheduler.explain.account import EVICT, Proposal, Refusal, RoundAccount
from koord.descheduler.explain.load import CALM, PoolStanding

if TYPE_CHECKING:
    from rich.console import Console

MANY = 30  # rows of one table


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    configuration: str  # where it came from
    plugins: list[str]
    certain: bool
    nodes: int
    pods: int
    notes: list[str]
    round: RoundAccount
    pools: list[PoolStanding] = []  # as LowNodeLoad sees them


def print_dry_run(console: Console, found: DryRun) -> None:
    asked = ", ".join(found.plugins) or "none"
    at = found.round.at
    console.print(f"A dry run over {found.nodes} nodes and {found.pods} pods. Nothing is changed.", style="bold")
    console.print(f"  configuration  {found.configuration}")
    console.print(f"  plugins        {asked}")
    if at is not None:
        console.print(f"  as of          {at:%Y-%m-%d %H:%M:%S} UTC")
    for note in found.notes:
        console.print(f"Note: {note}")
    for pool in found.pools:
        print_pool(console, pool)
    if found.round.error:
        console.print(f"\nThe round would end early: {found.round.error}", style="bold red")
    print_round(console, found.round)


def print_round(console: Console, account: RoundAccount) -> None:
    if not account.proposals:
        console.print("\nNothing would move.", style="bold")
    for plugin in dict.fromkeys(one.plugin for one in account.proposals):
        mine = [one for one in account.proposals if one.plugin == plugin]
        console.print(f"\n{plugin} would {_counted(mine)}:", style="bold green")
        _print_moves(console, [one for one in mine if one.does == EVICT])
        for one in mine:
            if one.does != EVICT:
                console.print(f"  {_other(one)}: {one.reason}")
    _print_refusals(console, "Wanted, and declined", account.refusals)
    _print_refusals(console, "Looked at, and not proposed", account.passed_over)
    if account.left_out:
        console.print("\nNodes that could not be judged:", style="bold yellow")
        table = plain_table(("  NODE", "left"), ("BY", "left"), ("WHY", "left"))
        for out in account.left_out:
            table.add_row(f"  {out.node}", out.plugin, out.why)
        console.print(table)


def print_pool(console: Console, pool: PoolStanding) -> None:
    """Print the nodes of a pool; nodes within their thresholds are only counted when there are many."""
    title = f" of pool {pool.pool}" if pool.pool else ""
    shown = [one for one in pool.nodes if one.standing != CALM] if len(pool.nodes) > MANY else pool.nodes
    if shown:
        console.print(f"\nLowNodeLoad sees the nodes{title} so:", style="bold")
        resources = list(dict.fromkeys(name for one in shown for name in one.used))
        columns = [(f"{name.upper()} % (LOW..HIGH)", "right") for name in resources]
        table = plain_table(("  NODE", "left"), *columns, ("STANDING", "left"))
        for one in shown:
            cells = [_cell(one.used.get(name), one.low.get(name), one.high.get(name)) for name in resources]
            table.add_row(f"  {one.node}", *cells, one.standing)
        console.print(table)
    if len(shown) < len(pool.nodes):
        console.print(f"  and {len(pool.nodes) - len(shown)} more that are {CALM}")
    if pool.stops:
        console.print(f"LowNodeLoad does nothing{title}: {pool.stops}.")


def _cell(used: float | None, low: float | None, high: float | None) -> str:
    if used is None:
        return "-"
    return f"{used:.1f}" if low == high == 100 else f"{used:.1f} ({low:g}..{high:g})"


def _print_refusals(console: Console, title: str, refusals: list[Refusal]) -> None:
    if not refusals:
        return
    console.print(f"\n{title}:", style="bold yellow")
    table = plain_table(
        ("  POD", "left"), ("ON", "left"), ("PLUGIN", "left"), ("DECLINED BY", "left"), ("BECAUSE", "left")
    )
    for no in refusals[:MANY]:
        table.add_row(f"  {no.pod}", no.node, no.plugin, no.by, no.why)
    console.print(table)
    if len(refusals) > MANY:
        console.print(f"  and {len(refusals) - MANY} more; -o json has all")


def _print_moves(console: Console, moves: list[Proposal]) -> None:
    if not moves:
        return
    table = plain_table(("  POD", "left"), ("FROM", "left"), ("TO", "left"), ("BY", "left"), ("WHY", "left"))
    for one in moves:
        table.add_row(f"  {one.pod}", one.node, one.target or "(scheduler)", one.evictor, one.reason)
    console.print(table)


def _counted(mine: list[Proposal]) -> str:
    moves = sum(one.does == EVICT for one in mine)
    rest = len(mine) - moves
    parts = [f"move {moves} pod{'s' * (moves != 1)}"] * bool(moves)
    parts += [f"change {rest} other object{'s' * (rest != 1)}"] * bool(rest)
    return " and ".join(parts)


def _other(one: Proposal) -> str:
    if one.pod:
        set_to = ", ".join(f"{name}={value}" for name, value in sorted(one.annotations.items()))
        return f"annotate {one.pod} with {set_to}"
    return f"{one.does} {one.node}"
