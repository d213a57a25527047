"""This module is `koord explain interference`: which pods are disturbed, by which batch pod, and what was done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli import cluster_access, printing
from koord.cli.cluster_access import INTERFERENCE_PATH, KoordletAddress
from koord.cli.printing import plain_table, print_result
from koord.koordlet.agent_status import InterferenceRecord, InterferenceStatus
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.telemetry.clock import Clock, now
from koord.values import timestamp

if TYPE_CHECKING:
    from rich.console import Console


class NodeInterference(msgspec.Struct, frozen=True, kw_only=True):
    """NodeInterference is what the agent of a node says, or the problem that kept it from being asked."""

    node: str
    pod: str = ""  # NAMESPACE/POD, where one was asked for
    interference: InterferenceStatus | None = None
    problem: str = ""


@click.command()
@click.argument("name", metavar="[NODE | NAMESPACE/POD]", required=False, default="")
@cluster_access.koordlet_options
@cluster_access.output_option
@cluster_access.cluster_options
def interference(
    name: str, koordlet_namespace: str, koordlet_port: int, output: str, kubeconfig: str, context: str
) -> None:
    """Explain which containers run worse than their own past on NODE, and which batch pod disturbs them; without NODE,
    one line for each node.

    For NAMESPACE/POD: its baselines, and incidents in which it was disturbed or the culprit. Asked of the node's
    koordlet, which detects interference with the gate InterferenceDetection; baselines do not outlive its process.
    """
    address = KoordletAddress(namespace=koordlet_namespace, port=koordlet_port)

    async def main(client: Client, clock: Clock) -> None:
        if name:
            one = await find_interference(client, name, address)
            print_result(one, output, lambda out: print_interference(out, one, now(clock)))
        else:
            found = await find_all_interference(client, address)
            print_result(found, output, lambda out: print_nodes(out, found))

    cluster_access.run_with_client(main, kubeconfig, context)


async def find_interference(client: Client, name: str, address: KoordletAddress) -> NodeInterference:
    """Ask the agent of a node, or of a pod's node; end the command where nobody answers."""
    namespace, slash, pod_name = name.partition("/")
    if slash and not (namespace and pod_name and "/" not in pod_name):
        cluster_access.fail(f"{name!r} is neither NODE nor NAMESPACE/POD")
    node_name = name
    if slash:
        found = await client.get(PODS, pod_name, namespace)
        if isinstance(found, ApiError) and found.not_found:
            cluster_access.fail(f"there is no pod {name}")
        node_name = unwrap(found).spec.node_name
        if not node_name:
            cluster_access.fail(f"pod {name} is on no node yet: koord explain pod says why")
    node = await cluster_access.get_node(client, node_name)
    query = {"namespace": namespace, "name": pod_name} if slash else None
    answer = await cluster_access.ask_agent(client, node, address, INTERFERENCE_PATH, query)
    if isinstance(answer, str):
        cluster_access.fail(answer)
    status = msgspec.convert(answer, InterferenceStatus)
    return NodeInterference(node=node_name, pod=name if slash else "", interference=status)


async def find_all_interference(client: Client, address: KoordletAddress) -> list[NodeInterference]:
    """Ask the agents of all nodes; end the command where none answers at all."""
    answers = await cluster_access.ask_all_agents(client, address, INTERFERENCE_PATH, InterferenceStatus)
    return [
        NodeInterference(node=name, problem=answer)
        if isinstance(answer, str)
        else NodeInterference(node=name, interference=answer)
        for name, answer in answers
    ]


def print_nodes(out: Console, found: Sequence[NodeInterference]) -> None:
    table = plain_table("NODE", "WATCHED", "LEARNING", "ACTION", "DISTURBED", "CULPRIT")
    for one in found:
        status = one.interference
        if status is None or not status.enabled:
            table.add_row(one.node, "-", "-", "-", one.problem or (status.why if status is not None else ""), "")
            continue
        disturbed = ", ".join(dict.fromkeys(record.full_name for record in status.incidents)) or "none"
        culprits = ", ".join(dict.fromkeys(record.culprit for record in status.incidents if record.culprit))
        table.add_row(one.node, str(status.watched), str(status.learning), status.action, disturbed, culprits)
    out.print(table)


def print_interference(out: Console, found: NodeInterference, at: datetime) -> None:
    status = found.interference or InterferenceStatus()
    out.print(f"Node      {found.node}", style="bold")
    if found.pod:
        out.print(f"Pod       {found.pod}", style="bold")
    if not status.enabled:
        out.print(f"Off       {status.why}", style="yellow")
        return
    judged = f"by {', '.join(status.metrics)}" if status.metrics else "no samples yet"
    out.print(f"Watched   {status.watched} containers {judged}; {status.learning} without a baseline yet")
    out.print(f"Since     {_age(status.since, at)}, when this agent began to learn")
    out.print(f"Action    {status.action}")
    if status.why:
        out.print(f"Limited   {status.why}", style="yellow")
    for throttled in status.throttled:
        out.print(
            f"Throttled {throttled.namespace}/{throttled.pod} to {throttled.milli}m until {throttled.until},"
            f" for {throttled.victim}",
            style="yellow",
        )
    if status.baselines:
        out.print()
        table = plain_table("CONTAINER", "METRIC", "NORMAL", "LATEST", "OUTLIERS", "SAMPLES")
        for one in status.baselines:
            normal = "learning" if one.learning else f"{one.mean:.3g} ± {one.deviation:.2g}"
            table.add_row(
                one.container, one.metric, normal, f"{one.latest:.3g}", f"{one.outliers} of 5", str(one.samples)
            )
        out.print(table)
    if not status.incidents and not status.ended:
        out.print()
        out.print("No incident is known.")
    for record in (*status.incidents, *status.ended):
        out.print()
        _print_record(out, record, at)


def _print_record(out: Console, record: InterferenceRecord, at: datetime) -> None:
    verb, over = ("was", f", ended {_age(record.ended, at)}") if record.ended else ("is", "")
    out.print(
        f"{record.full_name}/{record.container} {verb} disturbed: began {_age(record.since, at)}{over}",
        style="" if record.ended else "red",
    )
    out.print(f"  Measured  {record.why}")
    out.print(f"  Culprit   {record.culprit or 'none named'}")
    if record.suspects:
        listed = ", ".join(f"{one.full_name} {one.score:.2f} ({one.cores:.2f} cores)" for one in record.suspects)
        out.print(f"  Suspects  {listed}")
    out.print(f"  Action    {record.action}: {record.outcome or 'not decided yet'}")


def _age(moment: str, at: datetime) -> str:
    return printing.format_age(timestamp.parse(moment) if moment else None, at)
