"""This module is `koord explain eviction`: who evicted a pod, by which rule, on which numbers, and why this pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli import cluster_access
from koord.cli.commands.evictions import (
    EVICTIONS_PATH,
    ProgramPorts,
    find_evictions,
    merge_records,
    program_options,
    records_of_answer,
)
from koord.cli.printing import print_result
from koord.koordlet.settings import PORT
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.policy.eviction import EvictionRecord
from koord.telemetry.clock import Clock

if TYPE_CHECKING:
    from rich.console import Console


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
