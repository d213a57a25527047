"""This module asks the agent of a node about itself.

`koord node capabilities` shows every kernel file that strategies use, and whether it works on the node; `koord node
hooks` shows how the hooks are connected, and what each does and failed at.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.koordinator.resource_name import CPU
from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.cli import cluster_access, printing
from koord.cli.cluster_access import HOOKS_PATH, KoordletAddress
from koord.cli.printing import plain_table, print_result
from koord.host.capability import probe_capabilities as probed
from koord.host.cgroup import knob
from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host, HostPaths, strip_trailing_slashes
from koord.koordlet.agent_status import HookConnection, HooksStatus, HookStatus
from koord.koordlet.reporters.builders.node_conditions import (
    PREFIX,
    CapabilityRow,
    capability_rows,
    recommended_suppress_policy,
)
from koord.koordlet.settings import PORT
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.telemetry.clock import Clock, now
from koord.values import timestamp

if TYPE_CHECKING:
    from rich.console import Console

    from koord.cli.terminal import PlainTable


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


_TITLES = {"nri": "NRI", "proxy": "Proxy", "simulated": "Runtime"}
_BY = {"nri": "NRI", "proxy": "proxy"}


class NodeHooks(msgspec.Struct, frozen=True, kw_only=True):
    """NodeHooks is what the agent of a node says of its hooks, or the problem that kept it from being asked."""

    node: str
    hooks: HooksStatus | None = None
    problem: str = ""


@click.command()
@click.argument("name", metavar="[NODE]", required=False, default="")
@cluster_access.koordlet_options
@cluster_access.output_option
@cluster_access.cluster_options
def hooks(name: str, koordlet_namespace: str, koordlet_port: int, output: str, kubeconfig: str, context: str) -> None:
    """Show how runtime hooks work on NODE, asked of its koordlet; without NODE, one line for each node.

    Connected by NRI or the runtime proxy and since when; for each hook whether it is on, how many pods and containers
    it applies to, when it last did, its failures and how long its calls took.
    """
    address = KoordletAddress(namespace=koordlet_namespace, port=koordlet_port)

    async def main(client: Client, clock: Clock) -> None:
        if name:
            one = await node_hooks(client, name, address)
            print_result(one, output, lambda out: print_node_hooks(out, one, now(clock)))
        else:
            found = await all_hooks(client, address)
            print_result(found, output, lambda out: print_all_hooks(out, found, now(clock)))

    cluster_access.run_with_client(main, kubeconfig, context)


async def node_hooks(client: Client, name: str, address: KoordletAddress) -> NodeHooks:
    """Return the hooks of one node; end the command where nobody tells of them."""
    node = await cluster_access.get_node(client, name)
    answer = await cluster_access.ask_agent(client, node, address, HOOKS_PATH)
    if isinstance(answer, str):
        cluster_access.fail(answer)
    return NodeHooks(node=name, hooks=msgspec.convert(answer, HooksStatus))


async def all_hooks(client: Client, address: KoordletAddress) -> list[NodeHooks]:
    """Return the hooks of all nodes, by name; end the command where no agent answers at all."""
    answers = await cluster_access.ask_all_agents(client, address, HOOKS_PATH, HooksStatus)
    return [
        NodeHooks(node=name, problem=answer) if isinstance(answer, str) else NodeHooks(node=name, hooks=answer)
        for name, answer in answers
    ]


def print_node_hooks(out: Console, found: NodeHooks, at: datetime) -> None:
    status = found.hooks or HooksStatus()
    out.print(f"Node     {found.node}", style="bold")
    for connection in status.connections:
        title, text = _TITLES.get(connection.name, connection.name), _connection_text(connection, at)
        out.print(f"{title:<8} {text}", style="green" if connection.connected else "yellow")
    if status.safe_mode:
        out.print("Mode     safe mode: hooks only say what they would do", style="yellow")
    if not status.hooks:
        out.print("The agent has not found the machine's cgroups yet: no hook has run.", style="yellow")
        return
    out.print()
    out.print(_hooks_table(status.hooks, at))
    failed = [f"{hook.name}: {hook.last_failure}" for hook in status.hooks if hook.last_failure]
    off = [f"{hook.name}: {hook.why_off}" for hook in status.hooks if not hook.enabled]
    for title, lines, style in (("Failed", failed, "red"), ("Off", off, "")):
        for number, line in enumerate(lines):
            out.print(f"{'' if number else title:<8} {line}", style=style)


def print_all_hooks(out: Console, found: Sequence[NodeHooks], at: datetime) -> None:
    """Print one line for each node; those that nobody tells of come last, with the reason."""
    table = plain_table("NODE", "BY", "SINCE", "RUNTIME", "HOOKS", "APPLIED", ">FAILURES", ">P99")
    for one in found:
        if one.hooks is not None:
            table.add_row(one.node, *_summary(one.hooks, at), style="" if _connected(one.hooks) else "yellow")
    out.print(table)
    for one in found:
        if one.hooks is None:
            out.print(f"{one.node}  {one.problem}", style="red", soft_wrap=True)


def _summary(status: HooksStatus, at: datetime) -> tuple[str, ...]:
    ways, hooks = _connected(status), status.hooks
    enabled = f"{sum(hook.enabled for hook in hooks)} of {len(hooks)}"
    return (
        ", ".join(_BY.get(way.name, way.name) for way in ways) or "none",
        _age(min(way.since for way in ways), at) if ways else "-",
        ", ".join(way.details["runtime"] for way in ways if "runtime" in way.details) or "-",
        f"{enabled}, safe mode" if status.safe_mode else enabled,
        _age(max((hook.last_applied for hook in hooks), default=""), at),
        str(sum(hook.failures for hook in hooks)),
        _milliseconds(max((hook.p99_ms for hook in hooks if hook.p99_ms is not None), default=None)),
    )


def _connected(status: HooksStatus) -> list[HookConnection]:
    return [way for way in status.connections if way.connected]


def _hooks_table(hooks: Sequence[HookStatus], at: datetime) -> PlainTable:
    table = plain_table("HOOK", "STATE", ">PODS", ">CONTAINERS", "LAST APPLIED", ">CALLS", ">FAILURES", ">P50", ">P99")
    for hook in hooks:
        table.add_row(
            hook.name,
            "on" if hook.enabled else "off",
            str(hook.pods),
            str(hook.containers),
            _age(hook.last_applied, at),
            str(hook.calls),
            str(hook.failures),
            _milliseconds(hook.p50_ms),
            _milliseconds(hook.p99_ms),
            style="red" if hook.failures else "" if hook.enabled else "dim",
        )
    return table


def _connection_text(connection: HookConnection, at: datetime) -> str:
    details = dict(connection.details)
    runtime = details.pop("runtime", "")
    lasting = f"for {_age(connection.since, at).removesuffix(' ago')}" if connection.since else ""
    words = [f"{connection.state} {lasting}".strip(), *([runtime] if runtime else [])]
    return ", ".join((*words, *(f"{name} {text}" for name, text in details.items())))


def _age(text: str, at: datetime) -> str:
    return printing.format_age(timestamp.parse(text) if text else None, at)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}ms"
