"""This module is `koord simulate`: what the scheduler would decide about pods, on a live cluster or a
snapshot.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import click
import yaml

from koord.api.builtin import NODES, PODS, PRIORITY_CLASSES
from koord.api.registry import REGISTRY
from koord.api.resource import Resource
from koord.cli import access, local_scheduler
from koord.cli.printing import show
from koord.cli.simulate_input import MANY, Plain, completed, name_of, objects_in, pods_of
from koord.cli.simulate_table import print_outcomes
from koord.kube.client import Client
from koord.kube.refused import Refused
from koord.scheduler.assembly import Assembly
from koord.scheduler.explain.snapshot import Snapshot
from koord.scheduler.explain.whatif import Outcome, WhatIf, reads
from koord.telemetry.clock import Clock


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Pods or workloads; - reads standard input.",
)
@click.option(
    "--snapshot",
    "snapshot_file",
    metavar="FILE",
    help="Decide on this file (kubectl get nodes,pods,... -A -o yaml) instead of a live cluster.",
)
@click.option("--save", metavar="FILE", help="Write the live cluster's state here, to be used as --snapshot later.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="KubeSchedulerConfiguration. Default: that of koord up.",
)
@click.option(
    "--replicas", type=click.IntRange(1, MANY), help="How many pods of each workload to try. Default: what it says."
)
@click.option("-n", "--namespace", default="default", show_default=True, help="For objects that name none.")
@access.output
@access.options
def simulate(
    files: tuple[str, ...],
    snapshot_file: str | None,
    save: str | None,
    config_file: Path | None,
    replicas: int | None,
    namespace: str,
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Show where pods would go, or why nowhere and who would have to make way. Nothing is changed.

    A live cluster is asked to fill in each pod as if it were created (a dry run), so its webhooks have their say.
    """
    assembly = local_scheduler.assembled(config_file)
    if isinstance(assembly, str):
        access.fail(f"--config: {assembly}")
    pods = [pod for file in files for pod in pods_of(objects_in(file), namespace, replicas)]
    if not pods:
        access.fail(f"{', '.join(files)}: there is no Pod and nothing with a pod template in it")
    if snapshot_file is not None:
        if save is not None:
            access.fail("--save needs a live cluster; with --snapshot there is a file already")
        _print(_decided(assembly, Snapshot(objects_in(snapshot_file)), pods), output)
        return

    async def main(client: Client, clock: Clock) -> None:
        snapshot = await live(client, assembly)
        if save is not None:
            _save(snapshot, save)
        ready: list[Plain] = []
        refused: list[Outcome] = []
        for pod in pods:
            answer = await filled(client, pod)
            if isinstance(answer, Refused):
                key = f"{pod['metadata']['namespace']}/{name_of(pod)}"
                refused.append(Outcome(pod=key, scheduler="", message=f"the API server refuses it: {answer.message}"))
            else:
                ready.append(answer)
        _print([*refused, *_decided(assembly, snapshot, ready)], output)

    access.run(main, kubeconfig, context)


def _save(snapshot: Snapshot, file: str) -> None:
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": snapshot.objects()}, sort_keys=False)
    try:
        Path(file).write_text(text)
    except OSError as error:
        access.fail(f"--save {file}: {error.strerror}")


async def filled(client: Client, pod: Plain) -> Plain | Refused:
    """Return the pod as the server would store it. If one of the same name exists, another name is tried."""
    answer = await client.plain.create(PODS, pod, dry_run=True)
    if isinstance(answer, Refused) and answer.already_exists:
        renamed = {**pod, "metadata": {**pod["metadata"], "name": f"{name_of(pod)}-what-if"}}
        answer = await client.plain.create(PODS, renamed, dry_run=True)
    return answer


async def live(client: Client, assembly: Assembly) -> Snapshot:
    resources: list[Resource[Any]] = [NODES, PODS, PRIORITY_CLASSES]
    for api_version, kind in reads(assembly):
        group, _, version = api_version.rpartition("/")
        known = REGISTRY.by_kind(group, version, kind)
        if known is not None:
            resources.append(known)

    async def read(resource: Resource[Any]) -> list[Plain]:
        answer = await client.plain.list(resource)
        if isinstance(answer, Refused):
            if answer.not_found:  # a kind that this server does not have: there can be none of it
                return []
            access.fail(f"cannot list {resource.plural}: {answer.message}")
        return [{"apiVersion": resource.api_version, "kind": resource.kind, **item} for item in answer.items]

    lists = await asyncio.gather(*map(read, resources))
    return Snapshot(item for items in lists for item in items)


def _decided(assembly: Assembly, snapshot: Snapshot, pods: list[Plain]) -> list[Outcome]:
    return WhatIf(assembly, snapshot, time.time()).decide(completed(snapshot, pods))


def _print(outcomes: list[Outcome], output: str) -> None:
    show(outcomes, output, lambda console: print_outcomes(console, outcomes))
