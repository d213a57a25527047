"""This module is `koord top gpus`: what each card and each container with a share of it uses, asked of the agents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.node import Node
from koord.cli import cluster_access, koordlet_access
from koord.cli.koordlet_access import GPUS_PATH, KoordletAddress
from koord.cli.printing import format_bytes, plain_table, print_result
from koord.koordlet.gpu_shares import GpuCardStatus, GpuShareStatus, GpusStatus
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import Clock

if TYPE_CHECKING:
    from rich.console import Console

_AT_ONCE = 16  # agents that are asked at the same time


class NodeGpus(msgspec.Struct, frozen=True, kw_only=True):
    """NodeGpus is what the agent of a node says of its GPUs, or why it says nothing."""

    node: str
    gpus: GpusStatus | None = None
    problem: str = ""


@click.command()
@click.option("--node", default="", help="Only this node.")
@koordlet_access.koordlet_options
@cluster_access.watch_option
@cluster_access.output_option
@cluster_access.cluster_options
def gpus(
    node: str, koordlet_namespace: str, koordlet_port: int, watch: bool, output: str, kubeconfig: str, context: str
) -> None:
    """Cores and memory of every GPU, and of every container that has one: used, granted, and by whom it is limited.

    What containers use is HAMi-core's own count where it limits them (gate HamiCoreVGPUMonitor), NVML's otherwise.
    """
    address = KoordletAddress(namespace=koordlet_namespace, port=koordlet_port)

    async def main(client: Client, clock: Clock) -> None:
        found = await node_gpus(client, address, node)
        print_result(found, output, lambda out: print_gpus(out, found))

    cluster_access.run_with_client(main, kubeconfig, context, watch=watch)


async def node_gpus(client: Client, address: KoordletAddress, only: str = "") -> list[NodeGpus]:
    """Ask the agents of all nodes, or of one; nodes without cards are left out."""
    nodes = [await koordlet_access.get_node(client, only)] if only else unwrap(await client.list(NODES)).items
    turn = asyncio.Semaphore(_AT_ONCE)

    async def ask(node: Node) -> NodeGpus:
        name = node.metadata.name
        async with turn:
            answer = await koordlet_access.ask_agent(client, node, address, GPUS_PATH)
        if isinstance(answer, str):
            return NodeGpus(node=name, problem=answer)
        return NodeGpus(node=name, gpus=msgspec.convert(answer, GpusStatus))

    found = await asyncio.gather(*(ask(node) for node in nodes))
    shown = [one for one in found if one.gpus is None or one.gpus.cards or one.gpus.shares]
    return sorted(shown, key=lambda one: one.node)


def print_gpus(out: Console, found: Sequence[NodeGpus]) -> None:
    """Print a line for each card and below it one for each container; nodes that did not answer come last."""
    if not any(one.gpus for one in found):
        out.print("No agent tells of GPUs (koordlet's gate Accelerators).")
    else:
        columns = ("NODE", "GPU", "CONTAINER", "PROVIDER", ">CORES", ">GRANTED", ">MEMORY", ">GRANTED", "")
        table = plain_table(*columns)
        for one in found:
            for row in _node_rows(one):
                table.add_row(*row)
        out.print(table)
    for one in found:
        if one.gpus is None:
            out.print(f"{one.node}  {one.problem}", style="red", soft_wrap=True)


def _node_rows(found: NodeGpus) -> list[tuple[str, ...]]:
    status = found.gpus or GpusStatus()
    rows: list[tuple[str, ...]] = []
    problems = {daemon.minor: daemon.problem for daemon in status.daemons if daemon.problem}
    for card in status.cards:
        rows.append((found.node, *_card_cells(card, problems.get(card.minor, ""))))
        rows += [(found.node, *_share_cells(one)) for one in status.shares if one.minor == card.minor]
    listed = {card.minor for card in status.cards}
    rows += [(found.node, *_share_cells(one)) for one in status.shares if one.minor not in listed]
    return rows


def _card_cells(card: GpuCardStatus, problem: str) -> tuple[str, ...]:
    told = f"MPS daemon: {problem}" if problem else ""
    return (
        str(card.minor),
        card.model,
        "",
        _percent(card.core_used_percent),
        "",
        _bytes(card.memory_used_bytes),
        _bytes(card.total_bytes),
        told,
    )


def _share_cells(one: GpuShareStatus) -> tuple[str, ...]:
    return (
        str(one.minor),
        f"  {one.namespace}/{one.pod}/{one.container}",
        one.provider or "-",
        _percent(one.core_used_percent),
        _percent(one.core_limit_percent),
        _bytes(one.memory_used_bytes),
        _bytes(one.memory_limit_bytes),
        one.problem,
    )


def _percent(share: int | None) -> str:
    return "-" if share is None else f"{share} %"


def _bytes(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else format_bytes(size_bytes)
