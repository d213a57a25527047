"""This module is `koord migrations`: which pods are being moved, who asked, where to, how far it is and what
blocks it.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koordinator.protocol import DESCHEDULER_NAME
from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli import amount_format, cluster_access
from koord.cli.commands.deschedule.deschedule import DESCHEDULER_PORT
from koord.cli.printing import plain_table, print_result
from koord.descheduler.explain.migration_report import MigrationReport, report_migration
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.telemetry.clock import Clock, now

if TYPE_CHECKING:
    from rich.console import Console

ENDED_PHASES = ("Succeeded", "Failed", "Aborted")


@click.command()
@click.argument("name", default="")
@click.option("--active", is_flag=True, help="Only those that have not ended.")
@click.option("--descheduler-namespace", default=cluster_access.NAMESPACE, show_default=True, help="Where it runs.")
@click.option(
    "--descheduler-port", default=DESCHEDULER_PORT, show_default=True, help="The port it tells about itself on."
)
@cluster_access.output_option
@cluster_access.cluster_options
def migrations(
    name: str,
    active: bool,
    descheduler_namespace: str,
    descheduler_port: int,
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """PodMigrationJobs: who asked, from where to where, how far each is and what it waits for. With NAME, all of one.

    What arbitration holds against a job is known to koord-descheduler alone and is left out when it does not answer.
    """

    async def main(client: Client, clock: Clock) -> None:
        path = "/apis/v1/explain/migrations"
        told = await cluster_access.ask_program(client, DESCHEDULER_NAME, path, descheduler_namespace, descheduler_port)
        if isinstance(told, str):
            found, note = await _job_reports_from_objects(client), f"koord-descheduler does not answer: {told}"
        else:
            found, note = msgspec.convert(told["migrations"], list[MigrationReport]), ""
        if name:
            one = next((each for each in found if each.name == name), None)
            if one is None:
                cluster_access.fail(f"there is no podmigrationjob {name}")
            print_result(one, output, lambda console: print_migration(console, one, now(clock)))
            return
        if active:
            found = [each for each in found if each.phase not in ENDED_PHASES]
        print_result(found, output, lambda console: print_migrations(console, found, now(clock), note))

    cluster_access.run_with_client(main, kubeconfig, context)


async def _job_reports_from_objects(client: Client) -> list[MigrationReport]:
    """Build the reports from the objects alone."""
    listed = await client.list(POD_MIGRATION_JOBS)
    if isinstance(listed, ApiError) and listed.not_found:
        cluster_access.fail("this cluster has no PodMigrationJobs: koord crds prints what it lacks")
    pods = {(p.metadata.namespace, p.metadata.name): p for p in unwrap(await client.list(PODS)).items}
    places = {r.metadata.name: r for r in unwrap(await client.list(RESERVATIONS)).items}
    found = []
    for job in unwrap(listed).items:
        ref, options = job.spec.pod_ref, job.spec.reservation_options
        named = options.reservation_ref.name if options is not None and options.reservation_ref is not None else ""
        pod = pods.get((ref.namespace, ref.name)) if ref is not None else None
        found.append(report_migration(job, pod, places.get(named)))
    return sorted(found, key=lambda one: (one.created.timestamp() if one.created is not None else 0.0, one.name))


def print_migrations(console: Console, found: list[MigrationReport], moment: datetime, note: str) -> None:
    if note:
        console.print(note, style="yellow")
    if not found:
        console.print("No pod is on the move.")
        return
    table = plain_table(
        ("NAME", "left"),
        ("POD", "left"),
        ("PHASE", "left"),
        ("FROM", "left"),
        ("TO", "left"),
        ("ASKED BY", "left"),
        ("AGE", "right"),
        ("WAITS FOR / ENDED BY", "left"),
    )
    for one in found:
        table.add_row(
            one.name,
            one.pod,
            "Paused" if one.paused and one.phase not in ENDED_PHASES else one.phase,
            one.source or "-",
            one.target or "-",
            one.asked_by,
            _age(one, moment),
            one.blocked or one.ended or "-",
        )
    console.print(table)


def print_migration(console: Console, one: MigrationReport, moment: datetime) -> None:
    console.print(f"{one.name}: {one.phase}{' (paused)' if one.paused else ''}")
    rows = (
        ("pod", one.pod),
        ("from", one.source),
        ("to", one.target),
        ("new pod", one.new_pod),
        ("mode", one.mode),
        ("asked by", f"{one.asked_by}{f', {one.reason}' if one.reason else ''}"),
        ("reservation", one.reservation),
        ("age", f"{_age(one, moment)}{f', gives up after {one.ttl}' if one.ttl else ''}"),
        ("waits for", one.blocked),
        ("ended", one.ended),
    )
    for title, value in rows:
        if value:
            console.print(f"  {title:<12} {value}")


def _age(one: MigrationReport, moment: datetime) -> str:
    return "-" if one.created is None else amount_format.format_duration((moment - one.created).total_seconds())
