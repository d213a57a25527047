"""This module is `koord gpu`: whether the limits of a share of a GPU hold, measured from inside of the container, and
what is known of all shares of a cluster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.device_codecs import parse_device_allocated
from koord.api.koordinator.protocol import L_GPU_ISOLATION_PROVIDER
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Pod
from koord.cli import cluster_access
from koord.cli.printing import format_bytes, plain_table, print_result
from koord.gpu import isolation, probe
from koord.gpu.driver import CudaError
from koord.gpu.isolation import GpuLimits
from koord.gpu.probe import VerifyReport
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import Clock, now
from koord.values import timestamp
from koord.values.quantity import Quantity, QuantityError

if TYPE_CHECKING:
    from rich.console import Console

ALLOCATED_ENV, POD_NAME_ENV, POD_NAMESPACE_ENV = "KOORD_DEVICE_ALLOCATED", "POD_NAME", "POD_NAMESPACE"
_SHORTEST_S, _LONGEST_S = 0.2, 60.0
_TERMINATION_BYTES = 4096  # that the kubelet keeps of a container's message
_ENDED_PHASES = ("Succeeded", "Failed")


class GpuPodReport(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's share as far as it is known: `verified` is its condition, "" where nobody measured it."""

    node: str
    namespace: str
    pod: str
    provider: str
    minors: tuple[int, ...]
    memory_bytes: int | None = None
    core_percent: int | None = None
    verified: str = ""
    message: str = ""


@click.group()
def gpu() -> None:
    """Measure whether shares of GPUs are isolated, and show what is known of all of them."""


@gpu.command()
@click.option("--memory", default="", help="GPU memory that was asked for, such as 10Gi.")
@click.option("--cores", type=click.IntRange(1, 100), help="Percent of the card's cores that was asked for.")
@click.option(
    "--seconds",
    type=click.FloatRange(_SHORTEST_S, _LONGEST_S),
    default=2.0,
    show_default=True,
    help="How long the cores are measured.",
)
@click.option(
    "--whole-card",
    type=click.FloatRange(min=0.0),
    default=0.0,
    help="Multiply-adds a second of the whole card. [default: by its multiprocessors and the clock that is measured]",
)
@click.option("--condition", is_flag=True, help=f"Set the condition {probe.CONDITION} of the pod POD_NAME.")
@click.option(
    "--termination-log",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the verdict there too, such as /dev/termination-log.",
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to print.", show_default=True
)
@cluster_access.cluster_options
def verify(
    memory: str,
    cores: int | None,
    seconds: float,
    whole_card: float,
    condition: bool,
    termination_log: Path | None,
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Measure whether the limits of this process's share of a GPU hold.

    What was asked is --memory and --cores, else the annotation scheduling.koordinator.sh/device-allocated in the
    variable KOORD_DEVICE_ALLOCATED; what was granted is what the environment tells the provider. Memory is allocated
    up to 4 % above the limit and given back; arithmetic runs on the card for some seconds.

    The status is 0 where the limits hold, 1 where they do not, 3 where it cannot be told.
    """
    asked = asked_limits(memory, cores, os.environ)
    if isinstance(asked, str):
        cluster_access.fail(asked, 2)
    report = verify_here(asked, os.environ, seconds, whole_card)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        click.echo(report_text(report))
    if termination_log is not None:
        termination_log.write_text(f"{report.verdict}: {report.message}"[:_TERMINATION_BYTES])
    if condition:
        _set_condition(report, os.environ, kubeconfig, context)
    sys.exit(probe.EXIT_CODES[report.verdict])


def asked_limits(memory: str, cores: int | None, environ: Mapping[str, str]) -> GpuLimits | str:
    """Return what was asked for; text says what is wrong with it."""
    size: int | None = None
    if memory:
        try:
            size = Quantity.parse(memory).value()
        except QuantityError as wrong:
            return f"--memory {memory}: {wrong}"
    if size is not None or cores is not None:
        return GpuLimits(memory_bytes=size, core_percent=cores)
    annotation = environ.get(ALLOCATED_ENV, "")
    return isolation.allocated_share(annotation) if annotation else isolation.NO_LIMITS


def verify_here(asked: GpuLimits, environ: Mapping[str, str], seconds: float, whole_card: float = 0.0) -> VerifyReport:
    """Measure in this process and compare."""
    granted = isolation.limits_in(environ)
    wanted = probe.wanted_limits(asked, granted)
    if not wanted.is_share:
        return probe.judge(asked, granted, "no share was asked for or granted")
    measured = probe.measure(wanted, environ, seconds=seconds, whole_card_fma_per_s=whole_card)
    return probe.judge(asked, granted, str(measured) if isinstance(measured, CudaError) else measured)


def report_text(report: VerifyReport) -> str:
    """Return the report for people, without the packages that tables need: containers have none."""
    rows: list[tuple[str, ...]] = [("", "ASKED", "GRANTED", "MEASURED", "VERDICT")]
    for one in report.limits:
        amounts = (one.asked, one.granted, one.measured)
        cells = [_amount_text(one.resource, amount) for amount in amounts]
        rows.append((one.resource, *cells, f"{one.verdict}: {one.reason}"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [f"{report.card or 'no card'}, limited by {report.provider or 'nobody'}: {report.verdict}"]
    lines += [
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4])) for row in rows
    ]
    return "\n".join(lines)


def _amount_text(resource: str, amount: float | None) -> str:
    if amount is None:
        return "-"
    return format_bytes(int(amount)) if resource == "memory" else f"{amount:.0f} %"


def _set_condition(report: VerifyReport, environ: Mapping[str, str], kubeconfig: str, context: str) -> None:
    name, namespace = environ.get(POD_NAME_ENV, ""), environ.get(POD_NAMESPACE_ENV, "")
    if not name or not namespace:
        cluster_access.fail(f"--condition needs {POD_NAME_ENV} and {POD_NAMESPACE_ENV}, by the downward API", 2)

    async def main(client: Client, clock: Clock) -> None:
        await write_condition(client, namespace, name, report, timestamp.text(now(clock)))

    cluster_access.run_with_client(main, kubeconfig, context, exit_code=probe.EXIT_CODES[probe.UNKNOWN])


async def write_condition(client: Client, namespace: str, name: str, report: VerifyReport, at: str) -> None:
    """Set the condition of a pod; conditions of others stay."""
    change = {"status": {"conditions": [msgspec.to_builtins(probe.condition_of(report, at))]}}
    unwrap(await client.patch(PODS, name, change, namespace, kind="strategic", subresource="status"))


@gpu.command()
@click.option("-n", "--namespace", default="", help="Only pods of this namespace.")
@click.option("--node", default="", help="Only pods on this node.")
@cluster_access.output_option
@cluster_access.cluster_options
def report(namespace: str, node: str, output: str, kubeconfig: str, context: str) -> None:
    """Show every pod with GPUs: its share, who enforces it, and whether that was measured to hold.

    The status is 1 where a share was measured not to hold.
    """

    async def main(client: Client, clock: Clock) -> None:
        found = await pod_reports(client, namespace, node)
        print_result(found, output, lambda out: print_reports(out, found))
        if any(one.verified == "False" for one in found):
            sys.exit(1)

    cluster_access.run_with_client(main, kubeconfig, context)


async def pod_reports(client: Client, namespace: str = "", node: str = "") -> list[GpuPodReport]:
    """Return the pods with GPUs, by node and name."""
    where = f"spec.nodeName={node}" if node else "spec.nodeName!="
    pods = unwrap(await client.list(PODS, namespace, fields=where)).items
    found = [one for pod in pods if pod.status.phase not in _ENDED_PHASES and (one := pod_report(pod)) is not None]
    return sorted(found, key=lambda one: (one.node, one.namespace, one.pod))


def pod_report(pod: Pod) -> GpuPodReport | None:
    """Return what is known of a pod's GPUs; None where it has none."""
    meta = pod.metadata
    allocated = parse_device_allocated(meta.annotations)
    broken = isinstance(allocated, MalformedAnnotation)
    cards = () if allocated is None or isinstance(allocated, MalformedAnnotation) else allocated.get(isolation.GPU, ())
    if not cards and not broken:
        return None
    provider = meta.labels.get(L_GPU_ISOLATION_PROVIDER, "")
    limits = isolation.share_of(cards[0], provider or "a share") if cards else str(allocated)
    condition = next((one for one in pod.status.conditions if one.type == probe.CONDITION), None)
    message = "" if condition is None else condition.message
    if isinstance(limits, str):
        message = limits
    elif limits.is_share and not provider:
        message = message or "nobody enforces this share"
    return GpuPodReport(
        node=pod.spec.node_name,
        namespace=meta.namespace,
        pod=meta.name,
        provider=provider,
        minors=tuple(one.minor for one in cards),
        memory_bytes=None if isinstance(limits, str) else limits.memory_bytes,
        core_percent=None if isinstance(limits, str) else limits.core_percent,
        verified="" if condition is None else condition.status,
        message=message,
    )


_VERIFIED = {"True": "holds", "False": "does not hold", "Unknown": "cannot tell", "": "not measured"}


def print_reports(out: Console, found: list[GpuPodReport]) -> None:
    if not found:
        out.print("No pods with GPUs.")
        return
    table = plain_table("NODE", "NAMESPACE", "POD", "GPUS", "PROVIDER", ">CORES", ">MEMORY", "ISOLATION", "")
    for one in found:
        whole = one.memory_bytes is None and not one.message
        table.add_row(
            one.node,
            one.namespace,
            one.pod,
            ",".join(map(str, one.minors)) or "-",
            one.provider or "-",
            _amount_text("cores", one.core_percent),
            _amount_text("memory", one.memory_bytes),
            "whole card" if whole else _VERIFIED.get(one.verified, one.verified),
            one.message,
            style="red" if one.verified == "False" else "",
        )
    out.print(table)
