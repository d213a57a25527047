"""This module is `koord migrations`: which pods are being moved, who asked, where to, how far it is and what
blocks it.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.builtin import PODS
from koord.api.custom import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.protocol import DESCHEDULER_NAME
from koord.cli import access, wording
from koord.cli.deschedule import PORT
from koord.cli.printing import plain_table, show
from koord.descheduler.explain.statement import Statement, statement
from koord.kube.client import Client
from koord.kube.refused import Refused, ok
from koord.telemetry.clock import Clock, now

if TYPE_CHECKING:
    from rich.console import Console

ENDED = ("Succeeded", "Failed", "Aborted")


@click.command()
@click.argument("name", default="")
@click.option("--active", is_flag=True, help="Only those that have not ended.")
@click.option("--descheduler-namespace", default=access.NAMESPACE, show_default=True, help="Where it runs.")
@click.option("--descheduler-port", default=PORT, show_default=True, help="The port it tells about itself on.")
@access.output
@access.options
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
        told = await access.ask(client, DESCHEDULER_NAME, path, descheduler_namespace, descheduler_port)
        if isinstance(told, str):
            found, note = await _looked_up(client), f"koord-descheduler does not answer: {told}"
        else:
            found, note = msgspec.convert(told["migrations"], list[Statement]), ""
        if name:
            one = next((each for each in found if each.name == name), None)
            if one is None:
                access.fail(f"there is no podmigrationjob {name}")
            show(one, output, lambda console: print_one(console, one, now(clock)))
            return
        if active:
            found = [each for each in found if each.phase not in ENDED]
        show(found, output, lambda console: print_all(console, found, now(clock), note))

    access.run(main, kubeconfig, context)


async def _looked_up(client: Client) -> list[Statement]:
    """Build the reports from the objects alone."""
    listed = await client.list(POD_MIGRATION_JOBS)
    if isinstance(listed, Refused) and listed.not_found:
        access.fail("this cluster has no PodMigrationJobs: koord crds prints what it lacks")
    pods = {(p.metadata.namespace, p.metadata.name): p for p in ok(await client.list(PODS)).items}
    places = {r.metadata.name: r for r in ok(await client.list(RESERVATIONS)).items}
    found = []
    for job in ok(listed).items:
        ref, options = job.spec.pod_ref, job.spec.reservation_options
        named = options.reservation_ref.name if options is not None and options.reservation_ref is not None else ""
        pod = pods.get((ref.namespace, ref.name)) if ref is not None else None
        found.append(statement(job, pod, places.get(named)))
    return sorted(found, key=lambda one: (one.created.timestamp() if one.created is not None else 0.0, one.name))


def print_all(console: Console, found: list[Statement], moment: datetime, note: str) -> None:
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
            "Paused" if one.paused and one.phase not in ENDED else one.phase,
            one.source or "-",
            one.target or "-",
            one.asked_by,
            _age(one, moment),
            one.blocked or one.ended or "-",
        )
    console.print(table)


def print_one(console: Console, one: Statement, moment: datetime) -> None:
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


def _age(one: Statement, moment: datetime) -> str:
    return "-" if one.created is None else wording.span((moment - one.created).total_seconds())
