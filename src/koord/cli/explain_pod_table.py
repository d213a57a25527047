"""This module is `koord explain pod`: where a pod stands with the scheduler, asked of the scheduler itself and
printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from koord.cli import wording
from koord.cli.printing import plain_table
from koord.scheduler.explain.account import Account, LastAttempt
from koord.scheduler.framework.decision import Miss, Ranked

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_COLOURS = {
    "bound": "green",
    "ended": "green",
    "unschedulable": "red",
    "backing-off": "red",
    "gated": "yellow",
    "waiting": "yellow",
    "not-ours": "yellow",
}
_EXAMPLES = 3


def print_account(console: Console, account: Account, now: float) -> None:
    console.print(f"Pod        {account.pod}", style="bold")
    console.print(f"Scheduler  {account.scheduler}")
    console.print(f"State      {account.state}", style=_COLOURS.get(account.state, ""))
    console.print(f"           {account.headline}")
    if account.gates:
        console.print(f"Gates      {', '.join(account.gates)}")
    if account.nominated:
        console.print(f"Promised   room on {account.nominated}, where pods are making way for it")
    if account.queued_for_s is not None:
        console.print(f"Waiting    for {wording.span(account.queued_for_s)}, {account.attempts} attempts")
    if account.last is not None:
        print_attempt(console, account.last, f"Last attempt, number {account.last.number}", now - account.last.at)
    if account.wakes_on:
        console.print(f"\nLooked at again after: {', '.join(account.wakes_on)}")


def print_attempt(console: Console, last: LastAttempt, title: str, age_s: float | None = None) -> None:
    when = f", {wording.span(age_s)} ago: decided in {last.took_ms:.1f} ms" if age_s is not None else ""
    console.print(f"\n{title}{when}", style="bold")
    if last.refusals:
        table = plain_table(("NODES", "right"), ("PLUGIN", "left"), ("REASON", "left"), ("FOR EXAMPLE", "left"))
        for said in last.refusals:
            examples = ", ".join(said.examples[:_EXAMPLES])
            table.add_row(str(said.nodes or ""), said.plugin, said.reason, examples)
        console.print(table)
    if last.nearest is not None:
        console.print(f"Nearest    {_miss(last.nearest)}")
    for search in last.searches:
        if not search.nodes:
            continue
        missing = "; ".join(f"{count} {reason}" for reason, count in sorted(search.without.items()))
        looked = f"{search.plugin} looked for some on {_nodes(search.nodes)}, found them on {search.candidates}"
        console.print(f"Victims    {looked}{f': {missing}' if missing else ''}")
        if search.nearest is not None:
            console.print(f"           nearest with every lesser pod gone: {_miss(search.nearest)}")
    if last.victims:
        console.print(f"           to make way: {', '.join(last.victims)}")
    if last.ranking:
        console.print(f"It fits on {_nodes(last.feasible)}; the best:")
        console.print(_ranking(last.ranking))


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _miss(miss: Miss) -> str:
    short = ", ".join(
        f"{wording.amount(name, amount)} {wording.short(name)}" for name, amount in sorted(miss.lacking.items())
    )
    said = f"{miss.node}: {', '.join(miss.reasons)}{f' (short of {short})' if short else ''}"
    return "; ".join((said, *miss.details))


def _ranking(ranking: Sequence[Ranked]) -> Table:
    plugins = [name for name in ranking[0].scores if any(ranked.scores.get(name) for ranked in ranking)]
    table = plain_table(("NODE", "left"), ("TOTAL", "right"), *((name, "right") for name in plugins))
    for ranked in ranking:
        table.add_row(ranked.node, str(ranked.total), *(str(ranked.scores.get(name, 0)) for name in plugins))
    return table
