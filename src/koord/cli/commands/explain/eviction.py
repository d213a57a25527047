"""This module is `koord explain eviction`: who evicted a pod, by which rule, on which numbers, and why this
pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, PODS
from koord.api.kubernetes.events import Event
from koord.cli import cluster_access
from koord.cli.printing import print_result
from koord.koordlet.eviction.evictor import FAILURE, SUCCESS
from koord.koordlet.eviction.ledger import EvictionEntry
from koord.koordlet.settings import PORT
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.telemetry.clock import Clock

if TYPE_CHECKING:
    from rich.console import Console

REPORTING_INSTANCE_PREFIX = "koordlet-qosManager-"  # then the node, in events


class EvictionEventSummary(msgspec.Struct, frozen=True, kw_only=True):
    """EvictionEventSummary is what an event says of an eviction."""

    at: str
    node: str
    reason: str
    note: str


class EvictionExplanation(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    entries: tuple[EvictionEntry, ...] = ()
    events: tuple[EvictionEventSummary, ...] = ()
    silent: tuple[str, ...] = ()  # agents that could not be asked, and why


@click.command()
@click.argument("pod", metavar="[NAMESPACE/]NAME")
@click.option("-n", "--namespace", default="", help="The pod's namespace, if it is not part of its name.")
@click.option("--koordlet-namespace", default=cluster_access.NAMESPACE, show_default=True, help="Where koordlet runs.")
@click.option("--koordlet-port", default=PORT, show_default=True, help="The port of its --addr.")
@cluster_access.output_option
@cluster_access.cluster_options
def eviction(
    pod: str, namespace: str, koordlet_namespace: str, koordlet_port: int, output: str, kubeconfig: str, context: str
) -> None:
    """Say who evicted a pod and why.

    Asked of the koordlet that did it: from the ledger it keeps, and from the events that stay when it is restarted.
    """
    space, _, name = pod.rpartition("/")
    space = space or namespace or "default"

    async def main(client: Client, clock: Clock) -> None:
        found = await explain_eviction(client, space, name, koordlet_namespace, koordlet_port)
        if not found.entries and not found.events:
            silent = f"; not asked: {'; '.join(found.silent)}" if found.silent else ""
            cluster_access.fail(f"no koordlet tells of an eviction of {space}/{name}{silent}")
        print_result(found, output, lambda out: print_eviction_explanation(out, found))

    cluster_access.run_with_client(main, kubeconfig, context)


async def explain_eviction(
    client: Client, namespace: str, name: str, koordlet_namespace: str, port: int
) -> EvictionExplanation:
    events = await _events(client, namespace, name)
    pod = await client.get(PODS, name, namespace)
    nodes = {one.node for one in events}
    if not isinstance(pod, ApiError) and pod.spec.node_name:
        nodes.add(pod.spec.node_name)
    entries = await _ask_simulated_koordlets(client, namespace, name)
    silent: list[str] = []
    # Without a trace of where it ran, every agent may be the one.
    for node in sorted(nodes) or [""]:
        agents = await cluster_access.list_koordlets(client, koordlet_namespace, node)
        if isinstance(agents, str):
            silent.append(agents)
            continue
        for agent in agents:
            query = {"namespace": namespace, "name": name}
            answer = await cluster_access.ask_koordlet(client, agent, port, "/apis/v1/evictions", query)
            if isinstance(answer, str):
                silent.append(answer)
            else:
                entries += msgspec.convert(answer.get("evictions", []), list[EvictionEntry])
    return EvictionExplanation(
        namespace=namespace, name=name, entries=tuple(entries), events=tuple(events), silent=tuple(silent)
    )


async def _ask_simulated_koordlets(client: Client, namespace: str, name: str) -> list[EvictionEntry]:
    query = {"namespace": namespace, "name": name}
    answer = await cluster_access.ask_simulated_koordlet(client, "", "/apis/v1/evictions", query)
    return msgspec.convert(answer.get("evictions", []), list[EvictionEntry]) if isinstance(answer, dict) else []


async def _events(client: Client, namespace: str, name: str) -> list[EvictionEventSummary]:
    listed = await client.list(EVENTS_EVENTS, namespace)
    if isinstance(listed, ApiError):
        return []
    mine = [
        event
        for event in listed.items
        if event.regarding.kind == "Pod" and event.regarding.name == name and event.reason in (SUCCESS, FAILURE)
    ]
    return [_summarize_event(event) for event in mine]


def _summarize_event(event: Event) -> EvictionEventSummary:
    when = event.event_time or event.metadata.creation_timestamp
    return EvictionEventSummary(
        at="" if when is None else str(when),
        node=event.reporting_instance.removeprefix(REPORTING_INSTANCE_PREFIX),
        reason=event.reason,
        note=event.note,
    )


def print_eviction_explanation(out: Console, found: EvictionExplanation) -> None:
    for entry in found.entries:
        record = entry.record
        out.print(f"{entry.at}  {record.actor} on {entry.node}: {entry.outcome} {entry.namespace}/{entry.name}")
        for title, text in (
            ("rule", record.rule),
            ("measured", record.measured),
            ("threshold", record.threshold),
            ("to free", _amounts(dict(record.release))),
            ("already going", _amounts(dict(record.credited))),
            ("this pod frees", _amounts(dict(record.frees))),
            ("why this pod", record.why_this_pod),
            ("answer", entry.detail),
        ):
            if text:
                out.print(f"  {title + ':':<16}{text}")
    if not found.entries:
        for told in found.events:
            out.print(f"{told.at}  koordlet on {told.node}, from an event: {told.reason}")
            out.print(f"  {told.note}")
    for line in found.silent:
        out.print(f"not asked: {line}")


def _amounts(amounts: dict[str, int]) -> str:
    return ", ".join(f"{name.rpartition('/')[2]} {amount}" for name, amount in sorted(amounts.items()))
