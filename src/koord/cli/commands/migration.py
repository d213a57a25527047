"""This module is `koord migrate`, which requests, approves or cancels the migration of a pod, and `koord migrations`,
which shows which pods are on the move and what blocks them.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koordinator.protocol import A_EVICT_REASON, DESCHEDULER_NAME, SCHEDULER
from koord.api.koordinator.scheduling import EVICT_DIRECTLY, RESERVATION_FIRST
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.cli import cluster_access, printing
from koord.cli.commands.object_lists import ManifestObject
from koord.cli.printing import plain_table, print_result
from koord.descheduler.explain.migration_report import MigrationReport, report_migration
from koord.descheduler.migration.job import EVICTION, find_condition, is_active, reservation_name
from koord.descheduler.migration.plugin import EVICT_ANNOTATION
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.policy.eviction import KOORD_MIGRATE, EvictionRecord, record_annotations
from koord.telemetry.clock import Clock, now
from koord.values.duration import DurationError, parse_seconds

if TYPE_CHECKING:
    from rich.console import Console


MODES = (RESERVATION_FIRST, EVICT_DIRECTLY)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_POD_IDENTITY_FIELDS = ("nodeName", "hostname", "subdomain")


def build_migration_job(
    pod: ManifestObject,
    *,
    mode: str,
    to: str = "",
    paused: bool = False,
    at_once: bool = False,
    ttl: str = "5m",
    reason: str = "",
    grace_seconds: int | None = None,
    dry_run: bool = False,
) -> ManifestObject:
    """Return the PodMigrationJob to create. `pod` is as the server has it; `at_once` does not wait between moves of a
    workload.
    """
    meta = pod["metadata"]
    spec: ManifestObject = {
        "podRef": {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]},
        "mode": mode,
        "ttl": ttl,
        "paused": paused,
    }
    options: ManifestObject = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
    if dry_run:
        options["dryRun"] = ["All"]
    if options:
        spec["deleteOptions"] = options
    if to:
        spec["reservationOptions"] = {"template": {"spec": {"template": _pod_template_for_node(pod, to)}}}
    annotations = record_annotations(
        EvictionRecord(
            actor=KOORD_MIGRATE,
            rule=mode,
            reason=reason,
            why_this_pod="a person asked for this pod to be moved" + (f" to {to}" if to else ""),
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            node=pod["spec"].get("nodeName", ""),
        )
    )
    if reason:
        annotations[A_EVICT_REASON] = reason
    if at_once:
        annotations[EVICT_ANNOTATION] = "true"
    return {"metadata": {"generateName": f"{meta['name'][:50]}-", "annotations": annotations}, "spec": spec}


def schedulers_with_reservations(config: ManifestObject) -> set[str]:
    """Return the names of the profiles of a KubeSchedulerConfiguration that have the Reservation plugin."""
    return {
        profile.get("schedulerName", "")
        for profile in config.get("profiles") or ()
        for point in (profile.get("plugins") or {}).values()
        if any(plugin.get("name") == "Reservation" for plugin in point.get("enabled") or ())
    }


def migration_blocker(
    pod: ManifestObject, *, mode: str, to: str, schedulers: Collection[str] = (SCHEDULER,)
) -> str | None:
    """Return why the request cannot succeed from the start, or None. `schedulers` are those that know reservations."""
    meta, spec = pod["metadata"], pod["spec"]
    name, here = f"{meta['namespace']}/{meta['name']}", spec.get("nodeName", "")
    phase = (pod.get("status") or {}).get("phase", "")
    if phase in ("Succeeded", "Failed"):
        return f"{name} has ended ({phase}): there is nothing to move"
    if meta.get("deletionTimestamp"):
        return f"{name} is on its way out already"
    if mode == EVICT_DIRECTLY:
        return "--to needs a reservation, and --mode EvictDirectly makes none" if to else None
    scheduler = spec.get("schedulerName", "")
    if scheduler not in schedulers:
        without = " without --to" if to else ""
        return (
            f"{name} is scheduled by {scheduler}, which knows no reservations, so no place can be held for it: "
            f"set schedulerName to {' or '.join(sorted(schedulers))} in its workload, or use --mode EvictDirectly"
            f"{without}, which evicts it and leaves it to {scheduler} where its successor goes"
        )
    if to and to == here:
        return f"{name} is on {to} already"
    return None


def _pod_template_for_node(pod: ManifestObject, node: str) -> ManifestObject:
    """Return the pod's own template, restricted to one node. Its other node constraints still hold."""
    meta = pod["metadata"]
    kept = {key: meta[key] for key in ("namespace", "labels", "annotations") if meta.get(key)}
    spec = {key: value for key, value in pod["spec"].items() if key not in _POD_IDENTITY_FIELDS}
    affinity: ManifestObject = {**(spec.get("affinity") or {})}
    of_nodes: ManifestObject = {**(affinity.get("nodeAffinity") or {})}
    there = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = (of_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    of_nodes[_REQUIRED] = {
        "nodeSelectorTerms": [{**term, "matchFields": [*(term.get("matchFields") or ()), there]} for term in terms]
    }
    spec["affinity"] = {**affinity, "nodeAffinity": of_nodes}
    return {"metadata": kept, "spec": spec}


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
@click.option("--grace-period", type=click.IntRange(min=0), metavar="SECONDS", help="Default: what the pod asks for.")
@click.option("--dry-run", is_flag=True, help="Ask the API server whether the pod could be evicted; it stays.")
@cluster_access.descheduler_options
@cluster_access.cluster_options
def pod(
    pod: str,
    namespace: str,
    to: str,
    mode: str,
    paused: bool,
    at_once: bool,
    ttl: str | None,
    reason: str,
    grace_period: int | None,
    dry_run: bool,
    descheduler_namespace: str,
    descheduler_port: int,
    kubeconfig: str,
    context: str,
) -> None:
    """Ask for one pod to be moved: a place is reserved first, and the pod is evicted once that is certain.

    Makes a PodMigrationJob, which koord-descheduler carries out; koord migrations shows how far it is.
    """
    space, _, name = pod.rpartition("/")
    if not name or "/" in space:
        cluster_access.fail(f"{pod!r} is not [NAMESPACE/]POD")
    space = space or cluster_access.namespace_or_current(namespace, kubeconfig, context)
    limit = ttl or (PAUSED_TTL if paused else TTL)
    try:
        parse_seconds(limit)
    except DurationError as error:
        cluster_access.fail(f"--ttl {limit}: {error}")

    async def main(client: Client, clock: Clock) -> None:
        found = await client.dynamic.get(PODS, name, space)
        if isinstance(found, ApiError):
            cluster_access.fail(found.message)
        config = await cluster_access.ask_program(
            client, SCHEDULER, "/configz", descheduler_namespace, cluster_access.SCHEDULER_PORT
        )
        known = schedulers_with_reservations(config["componentconfig"]) if isinstance(config, dict) else set[str]()
        wrong = migration_blocker(found, mode=mode, to=to, schedulers=known or {SCHEDULER})
        if wrong is None and to:
            wrong = await _node_blocker(client, to)
        if wrong is not None:
            cluster_access.fail(wrong)
        path = f"/apis/v1/explain/pods/{space}/{name}"
        told = await cluster_access.ask_program(client, DESCHEDULER_NAME, path, descheduler_namespace, descheduler_port)
        if isinstance(told, dict) and told.get("forbidden"):
            force = f"annotate the pod with {EVICT_ANNOTATION}=true to move it all the same"
            cluster_access.fail(f"koord-descheduler would refuse it: {told['forbidden']}; {force}")
        made = await client.create(
            POD_MIGRATION_JOBS,
            build_migration_job(
                found,
                mode=mode,
                to=to,
                paused=paused,
                at_once=at_once,
                ttl=limit,
                reason=reason,
                grace_seconds=grace_period,
                dry_run=dry_run,
            ),
        )
        if isinstance(made, ApiError):
            cluster_access.fail(f"the job cannot be made: {made}")
        job = made.metadata.name
        only = ": a dry run, the pod stays" if dry_run else ""
        click.echo(f"podmigrationjob {job} made for {space}/{name}{f', to {to}' if to else ''}{only}")
        if isinstance(told, str):
            click.echo(f"No koord-descheduler answers, so nobody may carry it out: {told}", err=True)
        elif told.get("limited") and not at_once:
            click.echo(f"It will have to wait: {told['limited']}; --now would not")
        waits = f"It waits for: koord migrate approve {job}   (within {limit})"
        click.echo(waits if paused else f"Watch it with: koord migrations {job}")

    cluster_access.run_with_client(main, kubeconfig, context)


async def _node_blocker(client: Client, node: str) -> str | None:
    found = await client.get(NODES, node)
    if isinstance(found, ApiError):
        return found.message
    return f"node {node} is cordoned and takes no pods" if found.spec.unschedulable else None


@migrate.command()
@click.argument("job")
@cluster_access.cluster_options
def approve(job: str, kubeconfig: str, context: str) -> None:
    """Let a paused job start."""

    async def main(client: Client, clock: Clock) -> None:
        found = await client.get(POD_MIGRATION_JOBS, job)
        if isinstance(found, ApiError):
            cluster_access.fail(found.message)
        if not is_active(found):
            cluster_access.fail(f"{job} has ended: {found.status.phase}")
        if not found.spec.paused:
            click.echo(f"{job} is not paused")
            return
        patch = {"spec": {"paused": False}}
        answer = await client.patch(POD_MIGRATION_JOBS, job, patch, kind="merge", uid=found.metadata.uid)
        if isinstance(answer, ApiError):
            cluster_access.fail(str(answer))
        click.echo(f"{job} approved")

    cluster_access.run_with_client(main, kubeconfig, context)


@migrate.command()
@click.argument("job")
@cluster_access.cluster_options
def cancel(job: str, kubeconfig: str, context: str) -> None:
    """Call a job off: it is deleted, and with it the place that was reserved. A pod that was evicted stays so."""

    async def main(client: Client, clock: Clock) -> None:
        found = await client.get(POD_MIGRATION_JOBS, job)
        if isinstance(found, ApiError):
            cluster_access.fail(found.message)
        answer = await client.delete(POD_MIGRATION_JOBS, job, uid=found.metadata.uid)
        if isinstance(answer, ApiError):
            cluster_access.fail(str(answer))
        late = is_active(found) and find_condition(found.status, EVICTION) is not None
        click.echo(f"{job} cancelled{'; its pod had been evicted already' if late else ''}")

    cluster_access.run_with_client(main, kubeconfig, context)


ENDED_PHASES = ("Succeeded", "Failed", "Aborted")


@click.command()
@click.argument("name", default="")
@click.option("--active", is_flag=True, help="Only those that have not ended.")
@cluster_access.descheduler_options
@cluster_access.watch_option
@cluster_access.output_option
@cluster_access.cluster_options
def migrations(
    name: str,
    active: bool,
    descheduler_namespace: str,
    descheduler_port: int,
    watch: bool,
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """PodMigrationJobs: who asked, from where to where, how far each is and what it waits for. With NAME, all of one.

    What arbitration holds against a job is known to koord-descheduler alone and is left out when it does not answer.
    """

    async def main(client: Client, clock: Clock) -> None:
        read = await read_migrations(client, descheduler_namespace, descheduler_port)
        found, note = list(read.migrations), read.note
        if name:
            one = next((each for each in found if each.name == name), None)
            if one is None:
                cluster_access.fail(f"there is no podmigrationjob {name}")
            print_result(one, output, lambda console: print_migration(console, one, now(clock)))
            return
        if active:
            found = [each for each in found if each.phase not in ENDED_PHASES]
        print_result(found, output, lambda console: print_migrations(console, found, now(clock), note))

    cluster_access.run_with_client(main, kubeconfig, context, watch=watch)


class FoundMigrations(msgspec.Struct, frozen=True, kw_only=True):
    migrations: tuple[MigrationReport, ...] = ()
    note: str = ""  # why arbitration is left out


async def read_migrations(client: Client, namespace: str, port: int) -> FoundMigrations:
    """Ask koord-descheduler; without an answer, report what the objects tell."""
    path = "/apis/v1/explain/migrations"
    told = await cluster_access.ask_program(client, DESCHEDULER_NAME, path, namespace, port)
    if isinstance(told, str):
        found = await _job_reports_from_objects(client)
        return FoundMigrations(migrations=tuple(found), note=f"koord-descheduler does not answer: {told}")
    return FoundMigrations(migrations=tuple(msgspec.convert(told["migrations"], list[MigrationReport])))


async def _job_reports_from_objects(client: Client) -> list[MigrationReport]:
    """Build the reports from the objects alone."""
    listed = await client.list(POD_MIGRATION_JOBS)
    if isinstance(listed, ApiError) and listed.not_found:
        cluster_access.fail("this cluster has no PodMigrationJobs: koord crds prints what it lacks")
    pods = {(p.metadata.namespace, p.metadata.name): p for p in unwrap(await client.list(PODS)).items}
    places = {r.metadata.name: r for r in unwrap(await client.list(RESERVATIONS)).items}
    found = []
    for job in unwrap(listed).items:
        ref = job.spec.pod_ref
        pod = pods.get((ref.namespace, ref.name)) if ref is not None else None
        found.append(report_migration(job, pod, places.get(reservation_name(job))))
    return sorted(found, key=lambda one: (one.created.timestamp() if one.created is not None else 0.0, one.name))


def print_migrations(console: Console, found: list[MigrationReport], moment: datetime, note: str) -> None:
    if note:
        console.print(note, style="yellow")
    if not found:
        console.print("No pod is on the move.")
        return
    table = plain_table("NAME", "POD", "PHASE", "FROM", "TO", "ASKED BY", ">AGE", "WAITS FOR / ENDED BY")
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
    return "-" if one.created is None else printing.format_duration((moment - one.created).total_seconds())
