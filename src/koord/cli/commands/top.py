"""This module is `koord top`: what nodes and pods use, what pods requested, what is lent, and which pods others
interfere with; `koord top gpus`: what each card and each container with a share of it uses, asked of the agents.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.node import Node
from koord.cli import cluster_access, printing
from koord.cli.cluster_access import GPUS_PATH, KoordletAddress
from koord.cli.printing import format_bytes, plain_table, print_result
from koord.koordlet.gpu_shares import GpuCardStatus, GpuShareStatus, GpusStatus
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.manager.colocation import models
from koord.manager.explain import tier_usage
from koord.telemetry.clock import Clock, now

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
@cluster_access.koordlet_options
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
    nodes = [await cluster_access.get_node(client, only)] if only else unwrap(await client.list(NODES)).items
    turn = asyncio.Semaphore(_AT_ONCE)

    async def ask(node: Node) -> NodeGpus:
        name = node.metadata.name
        async with turn:
            answer = await cluster_access.ask_agent(client, node, address, GPUS_PATH)
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


POD_SORT_KEYS: dict[str, Callable[[tier_usage.PodTierUsage], float]] = {
    "name": lambda _: 0.0,
    "cpu": lambda one: -float(one.cpu_used or 0),
    "memory": lambda one: -float(one.memory_used or 0),
    "interference": lambda one: -max((found.score for found in one.disturbed.values()), default=0.0),
}


@click.command()
@click.option("-n", "--namespace", default="", help="Only pods of this namespace.")
@click.option("-l", "--selector", default="", help="Only pods with these labels, for example app=web.")
@click.option("--node", default="", help="Only pods on this node.")
@click.option(
    "--sort-by",
    type=click.Choice(list(POD_SORT_KEYS)),
    default="name",
    show_default=True,
    help="name, cpu and memory (used), interference (the most disturbed first).",
)
@cluster_access.watch_option
@cluster_access.output_option
@cluster_access.cluster_options
def pods(
    namespace: str, selector: str, node: str, sort_by: str, watch: bool, output: str, kubeconfig: str, context: str
) -> None:
    """QoS, priority, used and requested CPU and memory of every pod on a node.

    Used amounts are those of the node's last report. A pod that others disturb has a mark when its koordlet runs with
    --tell-interference.
    """

    async def main(client: Client, clock: Clock) -> None:
        found = await read_pod_uses(client, namespace, selector, node)
        found.sort(key=lambda one: (POD_SORT_KEYS[sort_by](one), one.namespace, one.name))
        print_result(found, output, lambda out: print_pods(out, found, now(clock)))

    cluster_access.run_with_client(main, kubeconfig, context, watch=watch)


async def read_pod_uses(
    client: Client, namespace: str = "", selector: str = "", node: str = ""
) -> list[tier_usage.PodTierUsage]:
    where = f"spec.nodeName={node}" if node else "spec.nodeName!="
    listed = unwrap(await client.list(models.PODS, namespace, labels=selector, fields=where))
    metrics = await client.list(models.NODE_METRICS, fields=f"metadata.name={node}" if node else "")
    if isinstance(metrics, ApiError) and not metrics.not_found:
        cluster_access.fail(str(metrics))
    reports = {} if isinstance(metrics, ApiError) else {one.metadata.name: one for one in metrics.items}
    return tier_usage.pod_tier_usages(listed.items, reports)


def print_pods(out: Console, found: list[tier_usage.PodTierUsage], at: datetime) -> None:
    if not found:
        out.print("No pods on nodes.")
        return
    left = ("NAMESPACE", "NAME", "NODE", "QOS", "CLASS")
    right = ("PRIORITY", "CPU|USED", "CPU|REQ", "CPU|%", "MEM|USED", "MEM|REQ", "MEM|%", "REPORT")
    table = plain_table(*left, *(f">{title}" for title in right), "", keys=2)
    for one in found:
        table.add_row(
            one.namespace,
            one.name,
            one.node,
            one.qos or "-",
            one.priority_class.removeprefix("koord-") or "-",
            "-" if one.priority is None else str(one.priority),
            *_usage_cells(CPU, one.cpu_used, one.cpu_requested),
            *_usage_cells(MEMORY, one.memory_used, one.memory_requested),
            printing.format_age(one.reported, at),
            interference_text(one),
        )
    out.print(table)


def interference_text(one: tier_usage.PodTierUsage) -> str:
    """Return what interferes with the pod, against what is normal for it, and since when."""
    words = [
        f"{metric} {found.now:.3g}, normal {found.baseline:.3g} since"
        f" {datetime.fromtimestamp(found.since_s, UTC):%H:%M:%S}{f', by {found.culprit}' if found.culprit else ''}"
        for metric, found in sorted(one.disturbed.items())
    ]
    return f"disturbed: {'; '.join(words)}" if words else ""


def _usage_cells(resource: str, used: int | None, requested: int) -> tuple[str, str, str]:
    share = "-" if used is None or not requested else f"{100 * used / requested:.0f}"
    asked = printing.format_amount(resource, requested) if requested else "-"
    return printing.format_amount(resource, used), asked, share


NODE_SORT_KEYS: dict[str, Callable[[tier_usage.NodeTierUsage], float]] = {
    "name": lambda _: 0.0,
    "used": lambda one: -_ratio(one.cpu.used, one.cpu.capacity),
    "prod": lambda one: -_ratio(one.cpu.prod.requested, one.cpu.prod.room),
    "batch": lambda one: float(one.cpu.batch.requested - one.cpu.batch.room),
}


class NodeShareTable(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[tier_usage.NodeTierUsage, ...]
    total: tier_usage.NodeTierUsage


@click.group()
def top() -> None:
    """Show what nodes use, have promised and lend, and what pods use of what they asked for."""


top.add_command(pods)
top.add_command(gpus)


@top.command()
@click.option("-l", "--selector", default="", help="Only nodes with these labels, for example pool=gpu.")
@click.option(
    "--sort-by",
    type=click.Choice(list(NODE_SORT_KEYS)),
    default="name",
    show_default=True,
    help="name, used (share of CPU), prod (share of CPU requested), batch (CPU that batch pods can still get).",
)
@click.option("--resource", type=click.Choice(["cpu", "memory"]), help="Only this resource.")
@cluster_access.watch_option
@cluster_access.output_option
@cluster_access.cluster_options
def nodes(
    selector: str, sort_by: str, resource: str | None, watch: bool, output: str, kubeconfig: str, context: str
) -> None:
    """Prod, mid and batch of every node: room, requested, used.

    The room of prod is allocatable; that of mid and batch is what koord-manager lends. Free pods count as batch.
    """

    async def main(client: Client, clock: Clock) -> None:
        found = await read_node_shares(client, selector)
        ordered = sorted(found, key=lambda one: (NODE_SORT_KEYS[sort_by](one), _natural_sort_key(one.name)))
        fleet = NodeShareTable(nodes=tuple(ordered), total=tier_usage.total_tier_usage(ordered))
        shown = (resource,) if resource is not None else ("cpu", "memory")
        print_result(fleet, output, lambda console: print_node_shares(console, fleet, shown, now(clock)))

    cluster_access.run_with_client(main, kubeconfig, context, watch=watch)


async def read_node_shares(client: Client, selector: str) -> list[tier_usage.NodeTierUsage]:
    nodes = unwrap(await client.list(models.NODES, labels=selector))
    running = unwrap(await client.list(models.PODS, fields="spec.nodeName!="))
    metrics = await client.list(models.NODE_METRICS)
    if isinstance(metrics, ApiError) and not metrics.not_found:
        cluster_access.fail(str(metrics))
    reports = {} if isinstance(metrics, ApiError) else {one.metadata.name: one for one in metrics.items}
    placed: dict[str, list[models.ColocationPod]] = {}
    for pod in running.items:
        placed.setdefault(pod.spec.node_name, []).append(pod)
    return [
        tier_usage.node_tier_usage(node, placed.get(node.metadata.name, ()), reports.get(node.metadata.name))
        for node in nodes.items
    ]


_ROOM_TITLES = {"PROD": "ROOM", "MID": "LENT", "BATCH": "LENT"}


def print_node_shares(console: Console, fleet: NodeShareTable, resources: tuple[str, ...], at: datetime) -> None:
    if not fleet.nodes:
        console.print("No nodes.")
        return
    for resource in resources:
        tiers = (f"{tier}|{word}" for tier in ("PROD", "MID", "BATCH") for word in (_ROOM_TITLES[tier], "REQ", "USED"))
        titles = ("CAPACITY", "USED", "%", "REPORT", *tiers)
        table = plain_table(f"NODE ({resource})", *(f">{title}" for title in titles))
        for one in fleet.nodes:
            table.add_row(*_node_cells(one, resource, printing.format_age(one.reported, at)))
        table.add_row(*_node_cells(fleet.total, resource, ""), style="bold")
        console.print(table)
        if resource != resources[-1]:
            console.print()


def _node_cells(one: tier_usage.NodeTierUsage, resource: str, report: str) -> tuple[str, ...]:
    found: tier_usage.ResourceTierUsage = one.cpu if resource == "cpu" else one.memory

    known = one.reported is not None or one.name == tier_usage.TOTAL

    def words(units: int) -> str:
        return printing.format_amount(resource, units)

    def used(units: int) -> str:
        return words(units) if known else "-"

    def tier(of: tier_usage.TierUsage) -> tuple[str, ...]:
        return words(of.room), words(of.requested), used(of.used)

    percent = f"{100 * _ratio(found.used, found.capacity):.0f}" if known else "-"
    return (
        one.name,
        words(found.capacity),
        used(found.used),
        percent,
        report,
        *tier(found.prod),
        *tier(found.mid),
        *tier(found.batch),
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _natural_sort_key(name: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts node-2 before node-10."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
