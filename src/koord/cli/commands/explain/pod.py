"""This module is `koord explain pod`: where a pod stands with the scheduler, asked of the scheduler itself and
printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.koordinator.protocol import SCHEDULER
from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli import cluster_access, printing
from koord.cli.printing import plain_table, print_result
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.scheduler.explain.report import LastAttemptReport, PodReport
from koord.scheduler.framework.decision import NearestNode, ScoredNode, VictimSearch
from koord.telemetry.clock import Clock

if TYPE_CHECKING:
    from rich.console import Console

    from koord.cli.terminal import PlainTable


_STATE_COLOURS = {
    "bound": "green",
    "ended": "green",
    "unschedulable": "red",
    "backing-off": "red",
    "gated": "yellow",
    "waiting": "yellow",
    "not-ours": "yellow",
}
_MAX_EXAMPLES = 3


def print_pod_explanation(console: Console, account: PodReport, now: float) -> None:
    console.print(f"Pod        {account.pod}", style="bold")
    console.print(f"Scheduler  {account.scheduler}")
    console.print(f"State      {account.state}", style=_STATE_COLOURS.get(account.state, ""))
    console.print(f"           {account.headline}")
    if account.gates:
        console.print(f"Gates      {', '.join(account.gates)}")
    if account.nominated:
        console.print(f"Promised   room on {account.nominated}, where pods are making way for it")
    if account.queued_for_s is not None:
        attempts = printing.counted(account.attempts, "attempt")
        console.print(f"Waiting    for {printing.format_duration(account.queued_for_s)}, {attempts}")
    if account.last is not None:
        print_attempt(console, account.last, f"Last attempt, number {account.last.number}", now - account.last.at)
    if account.wakes_on:
        console.print(f"\nLooked at again after: {', '.join(account.wakes_on)}")


def print_attempt(console: Console, last: LastAttemptReport, title: str, age_s: float | None = None) -> None:
    when = f", {printing.format_duration(age_s)} ago: decided in {last.took_ms:.1f} ms" if age_s is not None else ""
    console.print(f"\n{title}{when}", style="bold")
    if last.refusals:
        table = plain_table(">NODES", "PLUGIN", "REASON", "FOR EXAMPLE")
        for said in last.refusals:
            examples = ", ".join(said.examples[:_MAX_EXAMPLES])
            table.add_row(str(said.nodes or ""), said.plugin, said.reason, examples)
        console.print(table)
    if last.nearest is not None:
        console.print(f"Nearest    {_near_miss_text(last.nearest)}")
    for plugins, search in _distinct_searches(last.searches):
        missing = "; ".join(f"{count} {reason}" for reason, count in sorted(search.without.items()))
        looked = f"{plugins} looked for some on {_count_nodes(search.nodes)}, found them on {search.candidates}"
        console.print(f"Victims    {looked}{f': {missing}' if missing else ''}")
        if search.nearest is not None:
            console.print(f"           nearest with every lesser pod gone: {_near_miss_text(search.nearest)}")
    if last.victims:
        console.print(f"           to make way: {', '.join(last.victims)}")
    if last.ranking:
        console.print(f"It fits on {_count_nodes(last.feasible)}; the best:")
        console.print(_ranking_table(last.ranking))


def _distinct_searches(searches: Sequence[VictimSearch]) -> list[tuple[str, VictimSearch]]:
    """Return what searches for victims found, each result once, with the plugins that found it."""
    found: list[tuple[list[str], VictimSearch]] = []
    for search in searches:
        if not search.nodes:
            continue
        same = next((one for one in found if msgspec.structs.replace(one[1], plugin=search.plugin) == search), None)
        if same is None:
            found.append(([search.plugin], search))
        else:
            same[0].append(search.plugin)
    return [(" and ".join(plugins), search) for plugins, search in found]


def _count_nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _near_miss_text(miss: NearestNode) -> str:
    short = ", ".join(
        f"{printing.format_amount(name, amount)} {printing.short_resource_name(name)}"
        for name, amount in sorted(miss.lacking.items())
    )
    said = f"{miss.node}: {', '.join(miss.reasons)}{f' (short of {short})' if short else ''}"
    ruled_out = "every node is ruled out, whatever runs there; " if miss.ruled_out_by else ""
    return ruled_out + "; ".join((said, *miss.details))


def _ranking_table(ranking: Sequence[ScoredNode]) -> PlainTable:
    plugins = [name for name in ranking[0].scores if any(ranked.scores.get(name) for ranked in ranking)]
    table = plain_table("NODE", ">TOTAL", *(f">{name}" for name in plugins))
    for ranked in ranking:
        table.add_row(ranked.node, str(ranked.total), *(str(ranked.scores.get(name, 0)) for name in plugins))
    return table


@click.command()
@click.argument("pod", metavar="[NAMESPACE/]NAME")
@click.option("-n", "--namespace", default="", help="The pod's namespace, if it is not part of its name.")
@cluster_access.scheduler_options
@cluster_access.output_option
@cluster_access.cluster_options
def pod(
    pod: str, namespace: str, scheduler_namespace: str, scheduler_port: int, output: str, kubeconfig: str, context: str
) -> None:
    """Say why a pod is where it is.

    Held back before the queue and by whom, queued, backing off, refused by which plugins on how many nodes, waiting to
    be allowed, or bound and how the best nodes scored.
    """
    space, _, name = pod.rpartition("/")
    space = space or cluster_access.namespace_or_current(namespace, kubeconfig, context)

    async def main(client: Client, clock: Clock) -> None:
        found = await explain_pod(client, space, name, scheduler_namespace, scheduler_port)
        print_result(found, output, lambda console: print_pod_explanation(console, found, clock.time()))

    cluster_access.run_with_client(main, kubeconfig, context)


async def explain_pod(client: Client, space: str, name: str, namespace: str, port: int) -> PodReport:
    """Ask koord-scheduler; end the command where it knows nothing of the pod."""
    path = f"/apis/v1/explain/pods/{space}/{name}"
    answer = await cluster_access.ask_program(client, SCHEDULER, path, namespace, port)
    if isinstance(answer, str):
        known = await client.get(PODS, name, space)
        if isinstance(known, ApiError):
            cluster_access.fail(known.message)
        cluster_access.fail(f"koord-scheduler gives no account of {space}/{name}: {answer}")
    return msgspec.convert(answer, PodReport)
