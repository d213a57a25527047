"""This module is `koord migrate`: it requests the migration of a pod, approves a paused one, or cancels one."""

from __future__ import annotations

import click

from koord.api.builtin import NODES, PODS
from koord.api.custom import POD_MIGRATION_JOBS
from koord.api.koord_scheduling import RESERVATION_FIRST
from koord.api.protocol import DESCHEDULER_NAME
from koord.cli import access
from koord.cli.deschedule import PORT
from koord.cli.migration_request import MODES, request, trouble
from koord.descheduler.migration.moves import is_alive
from koord.descheduler.migration.protection import EVICT
from koord.descheduler.migration.status import EVICTION, condition
from koord.kube.client import Client
from koord.kube.refused import Refused
from koord.telemetry.clock import Clock
from koord.values.duration import DurationError, parse_seconds

TTL, PAUSED_TTL = "5m", "1h"


@click.group()
def migrate() -> None:
    """Move pods to other nodes, one at a time."""


@migrate.command()
@click.argument("pod", metavar="[NAMESPACE/]NAME")
@click.option("-n", "--namespace", default="", help="The pod's namespace, if it is not part of its name.")
@click.option("--to", default="", metavar="NODE", help="Where it is to go. Default: wherever the scheduler finds best.")
@click.option("--mode", type=click.Choice(MODES), default=RESERVATION_FIRST, show_default=True, help="How it is moved.")
@click.option("--paused", is_flag=True, help="Start only when somebody approves: koord migrate approve NAME.")
@click.option("--now", "at_once", is_flag=True, help="Do not wait between two moves of one workload.")
@click.option("--ttl", metavar="TIME", help=f"Give up after this long. Default: {TTL}, with --paused {PAUSED_TTL}.")
@click.option("--reason", default="", metavar="TEXT", help="Kept with the job, for those who ask later.")
@click.option("--descheduler-namespace", default=access.NAMESPACE, show_default=True, help="Where it runs.")
@click.option("--descheduler-port", default=PORT, show_default=True, help="The port it tells about itself on.")
@access.options
def pod(
    pod: str,
    namespace: str,
    to: str,
    mode: str,
    paused: bool,
    at_once: bool,
    ttl: str | None,
    reason: str,
    descheduler_namespace: str,
    descheduler_port: int,
    kubeconfig: str,
    context: str,
) -> None:
    """Ask for one pod to be moved: a place is reserved first, and the pod is evicted once that is certain.

    Makes a PodMigrationJob, which koord-descheduler carries out; koord migrations shows how far it is.
    """
    space, _, name = pod.rpartition("/")
    space = space or namespace or "default"
    limit = ttl or (PAUSED_TTL if paused else TTL)
    try:
        parse_seconds(limit)
    except DurationError as error:
        access.fail(f"--ttl {limit}: {error}")

    async def main(client: Client, clock: Clock) -> None:
        found = await client.plain.get(PODS, name, space)
        if isinstance(found, Refused):
            access.fail(found.message)
        wrong = trouble(found, mode=mode, to=to)
        if wrong is None and to:
            wrong = await _cannot_take(client, to)
        if wrong is not None:
            access.fail(wrong)
        path = f"/apis/v1/explain/pods/{space}/{name}"
        told = await access.ask(client, DESCHEDULER_NAME, path, descheduler_namespace, descheduler_port)
        if isinstance(told, dict) and told.get("forbidden"):
            force = f"annotate the pod with {EVICT}=true to move it all the same"
            access.fail(f"koord-descheduler would refuse it: {told['forbidden']}; {force}")
        made = await client.create(
            POD_MIGRATION_JOBS,
            request(found, mode=mode, to=to, paused=paused, at_once=at_once, ttl=limit, reason=reason),
        )
        if isinstance(made, Refused):
            access.fail(f"the job cannot be made: {made}")
        job = made.metadata.name
        click.echo(f"podmigrationjob {job} made for {space}/{name}{f', to {to}' if to else ''}")
        if isinstance(told, str):
            click.echo(f"No koord-descheduler answers, so nobody may carry it out: {told}", err=True)
        elif told.get("limited") and not at_once:
            click.echo(f"It will have to wait: {told['limited']}; --now would not")
        waits = f"It waits for: koord migrate approve {job}   (within {limit})"
        click.echo(waits if paused else f"Watch it with: koord migrations {job}")

    access.run(main, kubeconfig, context)


async def _cannot_take(client: Client, node: str) -> str | None:
    found = await client.get(NODES, node)
    if isinstance(found, Refused):
        return found.message
    return f"node {node} is cordoned and takes no pods" if found.spec.unschedulable else None


@migrate.command()
@click.argument("job")
@access.options
def approve(job: str, kubeconfig: str, context: str) -> None:
    """Let a paused job start."""

    async def main(client: Client, clock: Clock) -> None:
        found = await client.get(POD_MIGRATION_JOBS, job)
        if isinstance(found, Refused):
            access.fail(found.message)
        if not is_alive(found):
            access.fail(f"{job} has ended: {found.status.phase}")
        if not found.spec.paused:
            click.echo(f"{job} is not paused")
            return
        patch = {"spec": {"paused": False}}
        answer = await client.patch(POD_MIGRATION_JOBS, job, patch, kind="merge", uid=found.metadata.uid)
        if isinstance(answer, Refused):
            access.fail(str(answer))
        click.echo(f"{job} approved")

    access.run(main, kubeconfig, context)


@migrate.command()
@click.argument("job")
@access.options
def cancel(job: str, kubeconfig: str, context: str) -> None:
    """Call a job off: it is deleted, and with it the place that was reserved. A pod that was evicted stays so."""

    async def main(client: Client, clock: Clock) -> None:
        found = await client.get(POD_MIGRATION_JOBS, job)
        if isinstance(found, Refused):
            access.fail(found.message)
        answer = await client.delete(POD_MIGRATION_JOBS, job, uid=found.metadata.uid)
        if isinstance(answer, Refused):
            access.fail(str(answer))
        late = is_alive(found) and condition(found.status, EVICTION) is not None
        click.echo(f"{job} cancelled{'; its pod had been evicted already' if late else ''}")

    access.run(main, kubeconfig, context)
