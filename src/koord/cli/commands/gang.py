"""This module is `koord gang`: the members of a gang, their state and what holds them, asked of the scheduler
itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.koordinator.protocol import SCHEDULER
from koord.cli import cluster_access
from koord.cli.printing import plain_table, print_result
from koord.kube.client.typed_client import Client
from koord.scheduler.plugins.coscheduling.explain import GangReport
from koord.telemetry.clock import Clock

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("name", default="", metavar="[[NAMESPACE/]NAME]")
@click.option("-n", "--namespace", default="", help="The gang's namespace, if it is not part of its name.")
@cluster_access.scheduler_options
@cluster_access.watch_option
@cluster_access.output_option
@cluster_access.cluster_options
def gang(
    name: str,
    namespace: str,
    scheduler_namespace: str,
    scheduler_port: int,
    watch: bool,
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Gangs: how many members are there, bound and waiting, and for what. With NAME, every member and what holds it."""
    space, _, short = name.rpartition("/")
    space = space or cluster_access.namespace_or_current(namespace, kubeconfig, context)

    async def main(client: Client, clock: Clock) -> None:
        one_path = f"/{space}/{short}" if short else ""
        found = await read_gangs(client, one_path, scheduler_namespace, scheduler_port)
        if short:
            print_result(found[0], output, lambda console: print_gang(console, found[0]))
            return
        if namespace:
            found = [each for each in found if each.name.startswith(f"{namespace}/")]
        print_result(found, output, lambda console: print_gangs(console, found))

    cluster_access.run_with_client(main, kubeconfig, context, watch=watch)


async def read_gangs(client: Client, one_path: str, namespace: str, port: int) -> list[GangReport]:
    """Ask koord-scheduler for all gangs, or for the one at "/NAMESPACE/NAME"."""
    path = f"/apis/v1/explain/gangs{one_path}"
    answer = await cluster_access.ask_program(client, SCHEDULER, path, namespace, port)
    if isinstance(answer, str):
        cluster_access.fail(f"koord-scheduler says: {answer}")
    return [msgspec.convert(answer, GangReport)] if one_path else msgspec.convert(answer["gangs"], list[GangReport])


def print_gangs(console: Console, found: list[GangReport]) -> None:
    if not found:
        console.print("There are no gangs.")
        return
    table = plain_table("GANG", ">MINIMUM", ">MEMBERS", ">BOUND", ">WAITING", "STATE")
    for one in found:
        minimum = "?" if one.minimum is None else str(one.minimum)
        table.add_row(one.name, minimum, str(one.members), str(one.bound), str(one.waiting), one.told)
    console.print(table)


def print_gang(console: Console, one: GangReport) -> None:
    minimum = "?" if one.minimum is None else one.minimum
    console.print(f"{one.name}: {one.told}")
    console.print(
        f"  members   {one.members} of at least {minimum}; {one.bound} bound, {one.waiting} waiting at their node"
    )
    console.print(f"  rules     {one.mode}, {one.policy}, members wait up to {one.wait_seconds:g} s for each other")
    if len(one.group) > 1:
        console.print(f"  group     {', '.join(one.group)}")
    if one.warning:
        console.print(f"  warning   {one.warning}")
    if one.last_failure:
        console.print(f"  last try  {one.last_failure}")
    table = plain_table("POD", "STATE", "NODE", "WHY")
    for each in one.standings:
        table.add_row(each.pod, each.state, each.node or "-", each.why)
    console.print(table)
