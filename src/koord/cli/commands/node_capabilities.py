"""This module is `koord node capabilities`: every kernel file that strategies use, and whether it works on a node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.koordinator.resource_name import CPU
from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.cli import cluster_access
from koord.cli.printing import plain_table, print_result
from koord.host.capability import probe_capabilities as probed
from koord.host.cgroup import knob
from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host, HostPaths, strip_trailing_slashes
from koord.koordlet.reporters.builders.node_conditions import (
    PREFIX,
    CapabilityRow,
    capability_rows,
    recommended_suppress_policy,
)
from koord.koordlet.settings import PORT
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.telemetry.clock import Clock

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("name", required=False, default="")
@click.option("--koordlet-namespace", default=cluster_access.NAMESPACE, show_default=True, help="Where koordlet runs.")
@click.option("--koordlet-port", default=PORT, show_default=True, help="The port of its --addr.")
@click.option("--cgroup-root", default="", help="Without NAME: where cgroups are mounted on this machine.")
@click.option("--look-only", is_flag=True, help="Without NAME: write nothing, so that files that are there count.")
@cluster_access.output_option
@cluster_access.cluster_options
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
    """List which kernel files work on node NAME, asked of its koordlet; without NAME, on this machine.

    supported: it took its own value. degraded: with a difference that HOW tells. off: it is not there. rejected: it is
    there and refuses.
    """
    if not name:
        found = local_capabilities(cgroup_root, look_only)
        print_result(found, output, lambda out: print_capabilities(out, found, os.cpu_count()))
        return

    async def main(client: Client, clock: Clock) -> None:
        found = await node_capabilities(client, name, koordlet_namespace, koordlet_port)
        node = await client.get(NODES, name)
        cpus = None if isinstance(node, ApiError) else resource_amounts(node.status.capacity).get(CPU, 0) // 1000
        print_result(found, output, lambda out: print_capabilities(out, found, cpus or None))

    cluster_access.run_with_client(main, kubeconfig, context)


def local_capabilities(cgroup_root: str, look_only: bool) -> list[CapabilityRow]:
    paths = (
        strip_trailing_slashes(msgspec.structs.replace(HostPaths(), cgroup=cgroup_root)) if cgroup_root else HostPaths()
    )
    tree = open_tree(Host.local(paths))
    if isinstance(tree, LayoutNotDetected):
        cluster_access.fail(str(tree))
    return capability_rows(probed(tree, probe=not look_only))


async def node_capabilities(client: Client, name: str, namespace: str, port: int) -> list[CapabilityRow]:
    """Return the capabilities from the agent itself; while it does not answer, what it last wrote to the Node."""
    simulated = await cluster_access.ask_simulated_koordlet(client, name, "/apis/v1/capabilities")
    if isinstance(simulated, dict):
        return msgspec.convert(simulated["capabilities"], list[CapabilityRow])
    agents = await cluster_access.list_koordlets(client, namespace, name)
    said = agents if isinstance(agents, str) else f"no koordlet runs on {name} in namespace {namespace}"
    for agent in [] if isinstance(agents, str) else agents:
        answer = await cluster_access.ask_koordlet(client, agent, port, "/apis/v1/capabilities")
        if isinstance(answer, dict):
            return msgspec.convert(answer["capabilities"], list[CapabilityRow])
        said = answer
    node = await client.get(NODES, name)
    if isinstance(node, ApiError):
        cluster_access.fail(node.message)
    told = [
        CapabilityRow(knob=one.type.removeprefix(PREFIX), state=one.reason.lower(), how=one.message, strategies=())
        for one in node.status.conditions
        if one.type.startswith(PREFIX)
    ]
    if not told:
        cluster_access.fail(f"nothing is known of {name}: {said}")
    click.echo(f"koord: {said}; the Node's conditions say, by strategy:", err=True)
    return told


def print_capabilities(out: Console, found: list[CapabilityRow], cpus: int | None) -> None:
    table = plain_table("FILE", "STATE", "ERRNO", "USED BY", "HOW")
    for row in found:
        table.add_row(row.knob, row.state, row.errno or "-", ", ".join(row.strategies) or "-", row.how)
    out.print(table)
    if any(row.knob == knob.CPUSET for row in found):  # a Node's conditions name strategies instead
        out.print(recommended_suppress_policy(found, cpus))
