"""This module is `koord node capabilities`: every kernel file that strategies use, and whether it works on a
node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.builtin import NODES
from koord.cli import access, koordlet_access
from koord.cli.printing import plain_table, show
from koord.host.capability import capabilities as probed
from koord.host.cgroup.detection import Undetected, open_tree
from koord.host.host import Host
from koord.host.paths import Paths, trimmed
from koord.koordlet.capability import PREFIX, Row, rows
from koord.koordlet.settings import PORT
from koord.kube.client import Client
from koord.kube.refused import Refused
from koord.telemetry.clock import Clock

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("name", required=False, default="")
@click.option("--koordlet-namespace", default=access.NAMESPACE, show_default=True, help="Where koordlet runs.")
@click.option("--koordlet-port", default=PORT, show_default=True, help="The port of its --addr.")
@click.option("--cgroup-root", default="", help="Without NAME: where cgroups are mounted on this machine.")
@click.option("--look-only", is_flag=True, help="Without NAME: write nothing, so that files that are there count.")
@access.output
@access.options
def capabilities(
    name: str,
    koordlet_namespace: str,
    koordlet_port: int,
    cgroup_root: str,
    look_only: bool,
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Which kernel files work on node NAME, asked of its koordlet; without NAME, on this machine.

    supported: it took its own value. degraded: with a difference that HOW tells. off: it is not there. rejected: it is
    there and refuses.
    """
    if not name:
        found = here(cgroup_root, look_only)
        show(found, output, lambda out: print_rows(out, found))
        return

    async def main(client: Client, clock: Clock) -> None:
        found = await of_node(client, name, koordlet_namespace, koordlet_port)
        show(found, output, lambda out: print_rows(out, found))

    access.run(main, kubeconfig, context)


def here(cgroup_root: str, look_only: bool) -> list[Row]:
    paths = trimmed(msgspec.structs.replace(Paths(), cgroup=cgroup_root)) if cgroup_root else Paths()
    tree = open_tree(Host.here(paths))
    if isinstance(tree, Undetected):
        access.fail(str(tree))
    return rows(probed(tree, probe=not look_only))


async def of_node(client: Client, name: str, namespace: str, port: int) -> list[Row]:
    """Return the capabilities from the agent itself; while it does not answer, what it last wrote to the Node."""
    simulated = await koordlet_access.ask_simulated(client, name, "/apis/v1/capabilities")
    if isinstance(simulated, dict):
        return msgspec.convert(simulated["capabilities"], list[Row])
    agents = await koordlet_access.agents(client, namespace, name)
    said = agents if isinstance(agents, str) else f"no koordlet runs on {name} in namespace {namespace}"
    for agent in [] if isinstance(agents, str) else agents:
        answer = await koordlet_access.ask(client, agent, port, "/apis/v1/capabilities")
        if isinstance(answer, dict):
            return msgspec.convert(answer["capabilities"], list[Row])
        said = answer
    node = await client.get(NODES, name)
    if isinstance(node, Refused):
        access.fail(node.message)
    told = [
        Row(knob=one.type.removeprefix(PREFIX), state=one.reason.lower(), how=one.message, strategies=())
        for one in node.status.conditions
        if one.type.startswith(PREFIX)
    ]
    if not told:
        access.fail(f"nothing is known of {name}: {said}")
    click.echo(f"koord: {said}; the Node's conditions say, by strategy:", err=True)
    return told


def print_rows(out: Console, found: list[Row]) -> None:
    table = plain_table(("FILE", "left"), ("STATE", "left"), ("ERRNO", "left"), ("USED BY", "left"), ("HOW", "left"))
    for row in found:
        table.add_row(row.knob, row.state, row.errno or "-", ", ".join(row.strategies) or "-", row.how)
    out.print(table)
