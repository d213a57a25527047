"""This module is `koord quota`: the tree of quotas, and what they would say to pods that do not exist yet."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.koordinator.protocol import SCHEDULER
from koord.cli import cluster_access, printing, scheduler_setup
from koord.cli.commands import simulate
from koord.cli.commands.object_lists import ManifestObject, read_objects
from koord.cli.printing import plain_table, print_result
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.explain.what_if import ApiSnapshot, SnapshotHandle
from koord.scheduler.plugins.elastic_quota.explain import (
    QuotaTreeReport,
    QuotaVerdict,
    quota_cache_of,
    report_quota_verdicts,
)
from koord.scheduler.plugins.elastic_quota.http import QUOTA_TREE_PATH
from koord.scheduler.plugins.elastic_quota.report import QuotaLoan, QuotaReport
from koord.telemetry.clock import Clock
from koord.values.resources import from_units

if TYPE_CHECKING:
    from rich.console import Console


def check_against_file(
    assembly: CompletedConfig, files: tuple[str, ...], namespace: str, snapshot: str
) -> list[QuotaVerdict]:
    return _check_pods(assembly, ApiSnapshot(read_objects(snapshot)), _read_pods(files, namespace))


async def check_against_cluster(
    client: Client, assembly: CompletedConfig, files: tuple[str, ...], namespace: str
) -> list[QuotaVerdict]:
    """Check pods against the live cluster. The server completes each pod by a dry-run create, so its webhooks apply."""
    ready: list[ManifestObject] = []
    refused: list[QuotaVerdict] = []
    for pod in _read_pods(files, namespace):
        answer = await simulate.dry_run_create(client, pod)
        if isinstance(answer, ApiError):
            key = f"{pod['metadata']['namespace']}/{simulate.pod_display_name(pod)}"
            refused.append(QuotaVerdict(pod=key, message=f"the API server refuses it: {answer.message}"))
        else:
            ready.append(answer)
    return [*refused, *_check_pods(assembly, await simulate.read_live_snapshot(client, assembly), ready)]


def _read_pods(files: tuple[str, ...], namespace: str) -> list[ManifestObject]:
    pods = [pod for file in files for pod in simulate.pods_from_objects(read_objects(file), namespace, None)]
    if not pods:
        cluster_access.fail(f"{', '.join(files)}: there is no Pod and nothing with a pod template in it")
    return pods


def _check_pods(assembly: CompletedConfig, snapshot: ApiSnapshot, pods: list[ManifestObject]) -> list[QuotaVerdict]:
    snapshot = snapshot.with_pod_transform(assembly.pod_transform)
    state = snapshot.state()
    ledger = quota_cache_of(assembly.make_profiles(SnapshotHandle(snapshot, state, time.time())))
    if ledger is None:
        cluster_access.fail("no profile of the scheduler enables ElasticQuota")
    asking = [state.pod_info(snapshot.transform_pod(pod)) for pod in simulate.complete_pods(snapshot, pods)]
    return report_quota_verdicts(ledger, asking)


_UNLIMITED = 1 << 60
_COLUMNS = (
    "QUOTA",
    "RESOURCE",
    ">GUARANTEED",
    ">CAP",
    ">ENTITLED NOW",
    ">IN USE",
    ">ASKED FOR",
    "LENT TO",
    "BORROWED FROM",
)


def print_quota_tree(console: Console, found: QuotaTreeReport, now: float) -> None:
    if not found.quotas:
        console.print("No quotas.")
    table = plain_table(*_COLUMNS, keys=2)
    for one in found.quotas:
        for place, resource in enumerate(sorted({*one.cap, *one.used, *one.asked, *one.guaranteed}) or ["-"]):
            table.add_row(_indented_name(one) if not place else "", resource, *_amount_cells(one, resource))
    if found.quotas:
        console.print(table)
    for line in _remarks(found, now):
        console.print(line)


def _indented_name(one: QuotaReport) -> str:
    return f"{'  ' * one.depth}{one.quota}"


def _amount_cells(one: QuotaReport, resource: str) -> tuple[str, ...]:
    def words(units: int | None) -> str:
        if units is None:
            return "-"
        return "unlimited" if units >= _UNLIMITED else str(from_units(resource, units))

    guaranteed = words(one.guaranteed.get(resource))
    now = one.guaranteed_now.get(resource)
    if now is not None and now < one.guaranteed.get(resource, 0):
        guaranteed += f" (now {words(now)})"
    return (
        guaranteed,
        words(one.cap.get(resource)),
        words(one.entitled.get(resource)),
        words(one.used.get(resource, 0)),
        words(one.asked.get(resource, 0)),
        _loans_text(one.lent_to, resource),
        _loans_text(one.borrowed_from, resource),
    )


def _loans_text(loans: Iterable[QuotaLoan], resource: str) -> str:
    found = [
        f"{loan.quota} {from_units(resource, loan.amounts[resource])}" for loan in loans if resource in loan.amounts
    ]
    return ", ".join(found) or "-"


def _remarks(found: QuotaTreeReport, now: float) -> list[str]:
    lines = []
    for one in found.quotas:
        if one.adrift:
            lines.append(f"{one.quota} has no place in its tree: {one.adrift}")
        if one.overused:
            amounts = ", ".join(f"{name} {from_units(name, n)}" for name, n in sorted(one.overused.items()))
            lines.append(f"{one.quota} uses more than it is entitled to: {amounts}")
        last = one.last_refusal
        if last is not None:
            ago = printing.format_duration(max(0.0, now - last.at))
            lines.append(f"{one.quota} last refused {last.pod} {ago} ago: {last.refusal.message}")
    lines += [f"{key} counts for nothing: {why}" for key, why in sorted(found.unreadable.items())]
    return ["", *lines] if lines else []


def print_quota_verdicts(console: Console, found: list[QuotaVerdict]) -> None:
    for one in found:
        belongs = f" of quota {one.quota}" if one.quota else ""
        how = f" (by {one.found_by})" if one.found_by else ""
        if one.message:
            console.print(f"{one.pod}{belongs}{how}: would have to wait. {one.message}")
        elif one.quota:
            console.print(f"{one.pod}{belongs}{how}: would be let in.")
        else:
            console.print(f"{one.pod}: belongs to no quota, and none limits it.")
        if one.statement is not None and one.message:
            print_quota_tree(console, QuotaTreeReport((one.statement,)), 0.0)


@click.group()
def quota() -> None:
    """Show what quotas may use now, and who lends to whom."""


@quota.command()
@click.argument("name", default="")
@cluster_access.scheduler_options
@cluster_access.watch_option
@cluster_access.output_option
@cluster_access.cluster_options
def tree(
    name: str, scheduler_namespace: str, scheduler_port: int, watch: bool, output: str, kubeconfig: str, context: str
) -> None:
    """A statement of all quotas, or of NAME and those below it.

    Guaranteed (min), cap (max), entitled now, in use, asked for, lent to whom, borrowed from whom, and why the last pod
    was refused. The numbers are the running scheduler's own.
    """

    async def main(client: Client, clock: Clock) -> None:
        found = _subtree(await read_quota_tree(client, scheduler_namespace, scheduler_port), name)
        if name and not found.quotas:
            cluster_access.fail(f"there is no quota {name}")
        print_result(found, output, lambda console: print_quota_tree(console, found, clock.time()))

    cluster_access.run_with_client(main, kubeconfig, context, watch=watch)


async def read_quota_tree(client: Client, scheduler_namespace: str, scheduler_port: int) -> QuotaTreeReport:
    path = f"/apis/v1{QUOTA_TREE_PATH}"
    answer = await cluster_access.ask_program(client, SCHEDULER, path, scheduler_namespace, scheduler_port)
    if isinstance(answer, str):
        cluster_access.fail(f"koord-scheduler tells nothing of quotas: {answer}")
    return msgspec.convert(answer, QuotaTreeReport)


def _subtree(found: QuotaTreeReport, name: str) -> QuotaTreeReport:
    if not name:
        return found
    kept = {name}
    for one in found.quotas:  # parents come before their children
        if one.parent in kept:
            kept.add(one.quota)
    return QuotaTreeReport(tuple(one for one in found.quotas if one.quota in kept))


@quota.command("what-if")
@click.option("-f", "--filename", "files", multiple=True, required=True, metavar="FILE", help="Pods or workloads.")
@click.option("-n", "--namespace", default="", help=f"For objects that name none. {cluster_access.NAMESPACE_DEFAULT}")
@click.option("--snapshot", "snapshot_file", metavar="FILE", help="Decide on this file instead of a live cluster.")
@cluster_access.output_option
@cluster_access.cluster_options
def what_if(
    files: tuple[str, ...], namespace: str, snapshot_file: str | None, output: str, kubeconfig: str, context: str
) -> None:
    """Say whether pods would be let in by their quotas, one after another. Nothing is changed.

    Whether a node has room for them is a question for `koord simulate`.
    """

    assembly = scheduler_setup.scheduler_assembly()
    if isinstance(assembly, str):
        cluster_access.fail(assembly)

    def answer(found: list[QuotaVerdict]) -> None:
        print_result(found, output, lambda console: print_quota_verdicts(console, found))

    if snapshot_file is not None:
        answer(check_against_file(assembly, files, namespace or "default", snapshot_file))
        return

    space = cluster_access.namespace_or_current(namespace, kubeconfig, context)

    async def main(client: Client, clock: Clock) -> None:
        answer(await check_against_cluster(client, assembly, files, space))

    cluster_access.run_with_client(main, kubeconfig, context)
