"""This module is `koord top`: what nodes and pods use, what pods requested, what is lent, and which pods
others interfere with.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from koord.api.resource_name import CPU, MEMORY
from koord.cli import access, wording
from koord.cli.printing import plain_table, show
from koord.kube.client import Client
from koord.kube.refused import Refused, ok
from koord.manager.explain.pod_share import PodUse, pod_uses
from koord.policy.colocation import wire
from koord.telemetry.clock import Clock, now

if TYPE_CHECKING:
    from rich.console import Console

SORTS: dict[str, Callable[[PodUse], float]] = {
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
    type=click.Choice(list(SORTS)),
    default="name",
    show_default=True,
    help="name, cpu and memory (used), interference (the most disturbed first).",
)
@access.output
@access.options
def pods(namespace: str, selector: str, node: str, sort_by: str, output: str, kubeconfig: str, context: str) -> None:
    """QoS, priority, used and requested CPU and memory of every pod on a node.

    Used amounts are those of the node's last report. A pod that others disturb has a mark when its koordlet runs with
    --tell-interference.
    """

    async def main(client: Client, clock: Clock) -> None:
        found = await look(client, namespace, selector, node)
        found.sort(key=lambda one: (SORTS[sort_by](one), one.namespace, one.name))
        show(found, output, lambda out: print_pods(out, found, now(clock)))

    access.run(main, kubeconfig, context)


async def look(client: Client, namespace: str = "", selector: str = "", node: str = "") -> list[PodUse]:
    where = f"spec.nodeName={node}" if node else "spec.nodeName!="
    listed = ok(await client.list(wire.PODS, namespace, labels=selector, fields=where))
    metrics = await client.list(wire.NODE_METRICS, fields=f"metadata.name={node}" if node else "")
    if isinstance(metrics, Refused) and not metrics.not_found:
        access.fail(str(metrics))
    reports = {} if isinstance(metrics, Refused) else {one.metadata.name: one for one in metrics.items}
    return pod_uses(listed.items, reports)


def print_pods(out: Console, found: list[PodUse], at: datetime) -> None:
    if not found:
        out.print("No pods on nodes.")
        return
    left = ("NAMESPACE", "NAME", "NODE", "QOS", "CLASS")
    right = ("PRIORITY", "CPU USED", "REQ", "%", "MEMORY USED", "REQ", "%", "REPORT")
    table = plain_table(*((title, "left") for title in left), *((title, "right") for title in right), ("", "left"))
    for one in found:
        table.add_row(
            one.namespace,
            one.name,
            one.node,
            one.qos or "-",
            one.priority_class.removeprefix("koord-") or "-",
            "-" if one.priority is None else str(one.priority),
            *_amounts(CPU, one.cpu_used, one.cpu_requested),
            *_amounts(MEMORY, one.memory_used, one.memory_requested),
            wording.age(one.reported, at),
            mark(one),
        )
    out.print(table)


def mark(one: PodUse) -> str:
    """Return what interferes with the pod, against what is normal for it, and since when."""
    words = [
        f"{metric} {found.now:.3g}, normal {found.baseline:.3g} since"
        f" {datetime.fromtimestamp(found.since_s, UTC):%H:%M:%S}"
        for metric, found in sorted(one.disturbed.items())
    ]
    return f"disturbed: {'; '.join(words)}" if words else ""


def _amounts(resource: str, used: int | None, requested: int) -> tuple[str, str, str]:
    share = "-" if used is None or not requested else f"{100 * used / requested:.0f}"
    asked = wording.amount(resource, requested) if requested else "-"
    return wording.amount(resource, used), asked, share
