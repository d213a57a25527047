"""This module is `koord evictions` (every eviction that Events and koord's programs remember, whoever evicted) and
`koord explain eviction` (who evicted a pod, by which rule, on which numbers, and why this pod).

Events are the record of truth: they carry the whole record and outlive the pod. The ledgers of the scheduler and the
descheduler add what these programs write no Event about, such as dry runs and refusals by a disruption budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from koord.api.koordinator.protocol import DESCHEDULER_NAME, SCHEDULER
from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, PODS
from koord.api.kubernetes.core_v1 import Event
from koord.cli import cluster_access, printing
from koord.cli.cluster_access import DESCHEDULER_PORT, SCHEDULER_PORT
from koord.cli.printing import plain_table, print_result
from koord.koordlet.settings import PORT
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.policy.eviction import ACTORS, EVICTED, FAILED, EvictionOutcome, EvictionRecord, parse_record
from koord.telemetry.clock import Clock, now
from koord.values import timestamp
from koord.values.duration import DurationError, parse_seconds
from koord.wire import yarn_copilot

if TYPE_CHECKING:
    from rich.console import Console


F = TypeVar("F", bound=Callable[..., Any])

EVICTIONS_PATH = "/apis/v1/evictions"
# Events of programs that add no record, by their reason: Koordinator's own, kube-scheduler's, the descheduler's and
# the kubelet's.
_EVENT_OUTCOMES: dict[str, EvictionOutcome] = {
    "evictPodSuccess": EVICTED,
    "evictPodFail": FAILED,
    "Preempted": EVICTED,
    "Descheduled": EVICTED,
    "Evicted": EVICTED,
}


class ProgramPorts(msgspec.Struct, frozen=True, kw_only=True):
    """ProgramPorts says where the programs run that keep a ledger."""

    namespace: str = cluster_access.NAMESPACE
    scheduler: int = SCHEDULER_PORT
    descheduler: int = DESCHEDULER_PORT


class FoundEvictions(msgspec.Struct, frozen=True, kw_only=True):
    records: tuple[EvictionRecord, ...] = ()  # newest first
    silent: tuple[str, ...] = ()  # programs that could not be asked, and why


def program_options(command: F) -> F:
    """Add the options that say where koord-scheduler and koord-descheduler are."""
    for option in (
        click.option(
            "--descheduler-port", default=DESCHEDULER_PORT, show_default=True, help="The port of koord-descheduler."
        ),
        click.option(
            "--scheduler-port", default=SCHEDULER_PORT, show_default=True, help="The --port of koord-scheduler."
        ),
        click.option(
            "--koord-namespace", default=cluster_access.NAMESPACE, show_default=True, help="Where these programs run."
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.option("-n", "--namespace", default="", help="The namespace of the pods. Default: that of the kubeconfig.")
@click.option("-A", "--all-namespaces", is_flag=True, help="The pods of all namespaces.")
@click.option("--actor", default="", metavar="PROGRAM", help=f"Only those by this program: {', '.join(ACTORS)}.")
@click.option("--since", default="", metavar="TIME", help="Only those of the last TIME, such as 30m or 1h.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml"]),
    default="table",
    help="How to print.",
    show_default=True,
)
@cluster_access.watch_option
@program_options
@cluster_access.cluster_options
def evictions(
    namespace: str,
    all_namespaces: bool,
    actor: str,
    since: str,
    watch: bool,
    output: str,
    koord_namespace: str,
    scheduler_port: int,
    descheduler_port: int,
    kubeconfig: str,
    context: str,
) -> None:
    """List who evicted which pods: preemption, over-used quotas, descheduling, node agents and koord migrate.

    Read from the Events about pods, which a cluster keeps for an hour unless it is told otherwise, and from what
    koord-scheduler and koord-descheduler remember. koord explain eviction tells all about one.
    """
    if namespace and all_namespaces:
        cluster_access.fail("-n and -A exclude each other")
    try:
        within_s = parse_seconds(since) if since else None
    except DurationError as error:
        cluster_access.fail(f"--since {since}: {error}")
    ports = ProgramPorts(namespace=koord_namespace, scheduler=scheduler_port, descheduler=descheduler_port)
    space = "" if all_namespaces else cluster_access.namespace_or_current(namespace, kubeconfig, context)

    async def main(client: Client, clock: Clock) -> None:
        found = await find_evictions(client, ports, space)
        at = now(clock)
        shown = select_records(found.records, actor=actor, within_s=within_s, at=at)
        wide = output == "wide"
        print_result(
            shown,
            "table" if wide else output,
            lambda out: print_evictions(out, shown, found.silent, at, namespaces=all_namespaces, wide=wide),
        )

    cluster_access.run_with_client(main, kubeconfig, context, watch=watch)


async def find_evictions(client: Client, ports: ProgramPorts, namespace: str, name: str = "") -> FoundEvictions:
    """Find the evictions of one pod, of a namespace, or of all pods where `namespace` is empty."""
    records, silent = await _records_of_events(client, namespace, name)
    if namespace in ("", yarn_copilot.NAMESPACE):
        of_yarn, not_listed = await _records_of_yarn_events(client, name)
        records += of_yarn
        silent += not_listed
    for program, port in ((SCHEDULER, ports.scheduler), (DESCHEDULER_NAME, ports.descheduler)):
        answer = await cluster_access.ask_program(client, program, EVICTIONS_PATH, ports.namespace, port)
        if isinstance(answer, str):
            silent.append(answer)
        else:
            records += records_of_answer(answer)
    query = {"namespace": namespace, "name": name}
    simulated = await cluster_access.ask_simulated_koordlet(client, "", EVICTIONS_PATH, query)
    if isinstance(simulated, dict):
        records += records_of_answer(simulated)
    mine = (one for one in records if (not namespace or one.namespace == namespace) and (not name or one.name == name))
    return FoundEvictions(records=merge_records(mine), silent=tuple(silent))


def records_of_answer(answer: dict[str, Any]) -> list[EvictionRecord]:
    return msgspec.convert(answer.get("evictions", []), list[EvictionRecord])


async def _records_of_events(client: Client, namespace: str, name: str) -> tuple[list[EvictionRecord], list[str]]:
    fields = "involvedObject.kind=Pod" + (f",involvedObject.name={name}" if name else "")
    listed = await client.list(CORE_EVENTS, namespace or None, fields=fields, limit=500)
    if isinstance(listed, ApiError):
        return [], [f"events cannot be listed: {listed.message}"]
    return [record for event in listed.items if (record := record_of_event(event)) is not None], []


async def _records_of_yarn_events(client: Client, name: str) -> tuple[list[EvictionRecord], list[str]]:
    """Find evictions of YARN's containers, which are in no namespace of the cluster."""
    fields = f"involvedObject.kind={yarn_copilot.EVENT_KIND}" + (f",involvedObject.name={name}" if name else "")
    listed = await client.list(CORE_EVENTS, "default", fields=fields, limit=500)
    if isinstance(listed, ApiError):
        return [], [f"events about YARN's containers cannot be listed: {listed.message}"]
    return [record for event in listed.items if (record := record_of_event(event)) is not None], []


def record_of_event(event: Event) -> EvictionRecord | None:
    """Return the record that an Event carries, or what it says in its own fields; None for other events."""
    about = event.involved_object
    namespace = yarn_copilot.NAMESPACE if about.kind == yarn_copilot.EVENT_KIND else about.namespace
    series = event.series.count if event.series is not None else 0
    carried = parse_record(event.metadata.annotations)
    if isinstance(carried, EvictionRecord):
        # What the Event is about was checked by nobody but its writer; the API server knows no other pod of this name.
        return msgspec.structs.replace(
            carried, namespace=namespace, name=about.name, uid=about.uid, count=max(event.count, series, 1)
        )
    outcome = _EVENT_OUTCOMES.get(event.reason)
    if outcome is None:
        return None
    when = event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    return EvictionRecord(
        actor=event.source.component or event.reporting_component,
        rule=event.reason,
        reason=event.message,
        namespace=namespace,
        name=about.name,
        uid=about.uid,
        node=event.source.host,
        time="" if when is None else timestamp.text(when),
        outcome=outcome,
        count=max(event.count, series, 1),
    )


def merge_records(records: Iterable[EvictionRecord]) -> tuple[EvictionRecord, ...]:
    """Return each kind of attempt once, with its latest numbers, newest first."""
    merged: dict[tuple[str, ...], EvictionRecord] = {}
    for record in records:
        attempt = (record.actor, record.rule, record.namespace, record.name, record.uid, record.outcome)
        known = merged.get(attempt)
        latest = record if known is None or record.time > known.time else known
        count = max(record.count, known.count) if known is not None else record.count
        merged[attempt] = msgspec.structs.replace(latest, count=count)
    return tuple(sorted(merged.values(), key=lambda one: one.time, reverse=True))


def select_records(
    records: Sequence[EvictionRecord], *, actor: str, within_s: float | None, at: datetime
) -> list[EvictionRecord]:
    return [
        one
        for one in records
        if (not actor or one.actor == actor)
        and (within_s is None or (one.time and (at - timestamp.parse(one.time)).total_seconds() <= within_s))
    ]


def print_evictions(
    out: Console,
    records: Sequence[EvictionRecord],
    silent: Sequence[str],
    at: datetime,
    *,
    namespaces: bool,
    wide: bool,
) -> None:
    if records:
        more = ("MEASURED", "THRESHOLD", "RANK", "FOR") if wide else ()
        titles = ("WHEN", *(("NAMESPACE",) if namespaces else ()), "POD", "NODE", "ACTOR", "RULE", "OUTCOME", *more)
        table = plain_table(*titles)
        for one in records:
            when = printing.format_age(timestamp.parse(one.time) if one.time else None, at)
            space = (one.namespace,) if namespaces else ()
            outcome = f"{one.outcome} x{one.count}" if one.count > 1 else one.outcome
            rest = (one.measured, one.threshold, one.rank, one.request) if wide else ()
            table.add_row(when, *space, one.name, one.node, one.actor, one.rule, outcome, *rest)
        out.print(table)
    else:
        out.print("No evictions found.")
    for line in silent:
        out.print(f"not asked: {line}")


class EvictionExplanation(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    records: tuple[EvictionRecord, ...] = ()  # newest first
    silent: tuple[str, ...] = ()  # programs that could not be asked, and why


@click.command()
@click.argument("pod", metavar="[NAMESPACE/]NAME")
@click.option("-n", "--namespace", default="", help="The pod's namespace, if it is not part of its name.")
@program_options
@click.option("--koordlet-namespace", default=cluster_access.NAMESPACE, show_default=True, help="Where koordlet runs.")
@click.option("--koordlet-port", default=PORT, show_default=True, help="The port of its --addr.")
@cluster_access.output_option
@cluster_access.cluster_options
def eviction(
    pod: str,
    namespace: str,
    koord_namespace: str,
    scheduler_port: int,
    descheduler_port: int,
    koordlet_namespace: str,
    koordlet_port: int,
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Say who evicted a pod, or a container of YARN (yarn/container_...), and why, also after it is gone.

    Read from the Events about the pod, which carry the numbers of the decision, and from what koord-scheduler,
    koord-descheduler and the koordlet of its node remember.
    """
    space, _, name = pod.rpartition("/")
    space = space or cluster_access.namespace_or_current(namespace, kubeconfig, context)
    ports = ProgramPorts(namespace=koord_namespace, scheduler=scheduler_port, descheduler=descheduler_port)

    async def main(client: Client, clock: Clock) -> None:
        found = await explain_eviction(client, space, name, koordlet_namespace, koordlet_port, ports)
        if not found.records:
            silent = f"; not asked: {'; '.join(found.silent)}" if found.silent else ""
            cluster_access.fail(f"nobody tells of an eviction of {space}/{name}{silent}")
        print_result(found, output, lambda out: print_eviction_explanation(out, found))

    cluster_access.run_with_client(main, kubeconfig, context)


async def explain_eviction(
    client: Client, namespace: str, name: str, koordlet_namespace: str, port: int, ports: ProgramPorts | None = None
) -> EvictionExplanation:
    found = await find_evictions(client, ports or ProgramPorts(), namespace, name)
    pod = await client.get(PODS, name, namespace)
    nodes = {one.node for one in found.records if one.node}
    if not isinstance(pod, ApiError) and pod.spec.node_name:
        nodes.add(pod.spec.node_name)
    records, silent = list(found.records), list(found.silent)
    # Without a trace of where it ran, every agent may be the one.
    for node in sorted(nodes) or [""]:
        agents = await cluster_access.list_koordlets(client, koordlet_namespace, node)
        if isinstance(agents, str):
            silent.append(agents)
            continue
        for agent in agents:
            query = {"namespace": namespace, "name": name}
            answer = await cluster_access.ask_koordlet(client, agent, port, EVICTIONS_PATH, query)
            if isinstance(answer, str):
                silent.append(answer)
            else:
                records += records_of_answer(answer)
    return EvictionExplanation(namespace=namespace, name=name, records=merge_records(records), silent=tuple(silent))


def print_eviction_explanation(out: Console, found: EvictionExplanation) -> None:
    for record in found.records:
        where = f" on {record.node}" if record.node else ""
        victim = "one" if record.third_party else "pod"
        out.print(f"{record.time}  {record.actor}{where}: {record.outcome} {record.key}")
        for title, text in (
            ("rule", record.rule),
            ("plugin", record.plugin if record.plugin != record.rule else ""),
            ("reason", record.reason),
            ("for", f"{record.request} {record.request_uid}".strip()),
            ("measured", record.measured),
            ("threshold", record.threshold),
            ("to free", _amounts(dict(record.release))),
            ("already going", _amounts(dict(record.credited))),
            ("container of", record.third_party),
            (f"this {victim} frees", _amounts(dict(record.frees))),
            ("rank", record.rank),
            (f"why this {victim}", record.why_this_pod),
            ("attempts", str(record.count) if record.count > 1 else ""),
            ("answer", record.detail),
        ):
            if text:
                out.print(f"  {title + ':':<16}{text}")
    for line in found.silent:
        out.print(f"not asked: {line}")


def _amounts(amounts: dict[str, int]) -> str:
    return ", ".join(f"{name.rpartition('/')[2]} {amount}" for name, amount in sorted(amounts.items()))
