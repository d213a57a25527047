"""This module is `koord simulate`: what the scheduler would decide about pods, on a live cluster or a
snapshot. Nothing is changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from koord.api.koordinator.custom_kinds import KINDS_BY_API_VERSION
from koord.api.koordinator.protocol import SCHEDULER
from koord.api.kubernetes.builtin_kinds import NODES, PODS, PRIORITY_CLASSES
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.cli import cluster_access, scheduler_setup
from koord.cli.commands.explain.pod import print_attempt
from koord.cli.commands.object_lists import ManifestObject, list_live_objects, read_objects, save_objects
from koord.cli.printing import print_result
from koord.cli.scheduler_setup import DEFAULT_SCHEDULER_NAME
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import load_configuration
from koord.scheduler.configuration.feature_gates import SCHEDULER_GATES
from koord.scheduler.explain.http import CONFIGURATION_PATH
from koord.scheduler.explain.what_if import ApiSnapshot, WhatIf, WhatIfOutcome, kinds_read
from koord.telemetry.clock import Clock

if TYPE_CHECKING:
    from rich.console import Console


MAX_PODS_PER_WORKLOAD = 1000  # pods of one workload that are tried at most


def pods_from_objects(objects: list[ManifestObject], namespace: str, replicas: int | None) -> list[ManifestObject]:
    """Return the pods as they are, and of each workload as many as it wants."""
    found: list[ManifestObject] = []
    for each in objects:
        meta, spec = each.get("metadata") or {}, each.get("spec") or {}
        space = meta.get("namespace") or namespace
        if each.get("kind") == "Pod":
            found.append({**each, "metadata": {**meta, "namespace": space}})
        elif isinstance(spec.get("template"), dict):
            template = spec["template"]
            wanted = spec.get("replicas", spec.get("parallelism"))
            count = replicas or (1 if wanted is None else int(wanted))
            own = {**(template.get("metadata") or {}), "namespace": space}
            name = meta.get("name") or meta.get("generateName") or "pod"
            for number in range(min(count, MAX_PODS_PER_WORKLOAD)):
                body = {"apiVersion": "v1", "kind": "Pod", "spec": template.get("spec") or {}}
                found.append({**body, "metadata": {**own, "name": f"{name}-{number}"}})
    return found


def other_objects(objects: list[ManifestObject], namespace: str) -> list[ManifestObject]:
    """Return the objects that are neither pods nor workloads, with their namespace: what the pods may need."""
    found: list[ManifestObject] = []
    for each in objects:
        meta, spec = each.get("metadata") or {}, each.get("spec") or {}
        if each.get("kind") == "Pod" or isinstance(spec.get("template"), dict):
            continue
        known = KINDS_BY_API_VERSION.get((each.get("apiVersion", ""), each["kind"]))
        space = {"namespace": meta.get("namespace") or namespace} if known is not None and known.namespaced else {}
        found.append({**each, "metadata": {**meta, **space}})
    return found


def pod_display_name(pod: ManifestObject) -> str:
    meta = pod["metadata"]
    return str(meta.get("name") or f"{meta.get('generateName', '')}?")


def complete_pods(snapshot: ApiSnapshot, pods: list[ManifestObject]) -> list[Pod]:
    """Fill in what a server does and a scheduler reads: the scheduler's name, the priority, a UID."""
    classes = {c.metadata.name: c for c in snapshot.typed(PRIORITY_CLASSES)}
    fallback = next((c for c in classes.values() if c.global_default), None)
    typed: list[Pod] = []
    for number, plain in enumerate(pods):
        try:
            pod = convert(plain, Pod)
        except msgspec.ValidationError as error:
            cluster_access.fail(f"{pod_display_name(plain)}: {error}")
        spec = pod.spec
        if not spec.scheduler_name:
            spec = msgspec.structs.replace(spec, scheduler_name=DEFAULT_SCHEDULER_NAME)
        if spec.priority is None:
            chosen = classes.get(spec.priority_class_name) if spec.priority_class_name else fallback
            if spec.priority_class_name and chosen is None:
                cluster_access.fail(
                    f"{pod_display_name(plain)}: there is no PriorityClass {spec.priority_class_name} in the snapshot"
                )
            if chosen is not None:
                spec = msgspec.structs.replace(spec, priority=chosen.value, preemption_policy=chosen.preemption_policy)
        meta = msgspec.structs.replace(pod.metadata, uid=pod.metadata.uid or f"what-if-{number}")
        typed.append(msgspec.structs.replace(pod, metadata=meta, spec=spec))
    return typed


MAX_DETAILED_PODS = 5  # more pods than this are told in a line each


def print_outcomes(console: Console, outcomes: Sequence[WhatIfOutcome]) -> None:
    for outcome in outcomes:
        words, style = _outcome_line(outcome)
        console.print(words, style=style)
        if outcome.attempt is not None and len(outcomes) <= MAX_DETAILED_PODS:
            print_attempt(console, outcome.attempt, "How")
    unasked = sorted({address for outcome in outcomes for address in outcome.extenders_not_asked})
    if unasked:
        console.print(
            f"Not asked, though the scheduler asks them about such pods: {', '.join(unasked)}", style="yellow"
        )
    if len(outcomes) > MAX_DETAILED_PODS:
        placed = sum(bool(outcome.node) for outcome in outcomes)
        making = sum(bool(outcome.after_eviction_on) for outcome in outcomes)
        later = f", {making} more after others made way" if making else ""
        console.print(f"{placed} of {len(outcomes)} pods would be placed{later}; -o json has the details of each")


def _outcome_line(outcome: WhatIfOutcome) -> tuple[str, str]:
    if outcome.node:
        return f"{outcome.pod} would go to {outcome.node}", "bold green"
    if outcome.after_eviction_on:
        victims = ", ".join(outcome.attempt.victims) if outcome.attempt is not None else ""
        return f"{outcome.pod} would go to {outcome.after_eviction_on} once {victims} made way", "bold yellow"
    if outcome.waiting_on:
        return f"{outcome.pod} would get {outcome.waiting_on} and be held there, {outcome.message}", "bold yellow"
    if outcome.gated_by:
        return f"{outcome.pod} would be held back by {outcome.gated_by}: {outcome.message}", "bold yellow"
    return f"{outcome.pod} would go nowhere: {outcome.message}", "bold red"


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Pods or workloads, and what they need: PodGroups, quotas, nodes. - reads standard input.",
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
    help="KubeSchedulerConfiguration. Default: that of the running koord-scheduler; with --snapshot that of koord up.",
)
@cluster_access.scheduler_options
@click.option(
    "--replicas",
    type=click.IntRange(1, MAX_PODS_PER_WORKLOAD),
    help="How many pods of each workload to try. Default: what it says.",
)
@click.option("-n", "--namespace", default="", help=f"For objects that name none. {cluster_access.NAMESPACE_DEFAULT}")
@cluster_access.output_option
@cluster_access.cluster_options
def simulate(
    files: tuple[str, ...],
    snapshot_file: str | None,
    save: str | None,
    config_file: Path | None,
    scheduler_namespace: str,
    scheduler_port: int,
    replicas: int | None,
    namespace: str,
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Show where pods would go, or why nowhere and who would have to make way. Nothing is changed.

    A live cluster is asked to fill in each pod as if it were created (a dry run), so its webhooks have their say.
    """
    assembly = scheduler_setup.scheduler_assembly(config_file)
    if isinstance(assembly, str):
        cluster_access.fail(f"--config: {assembly}")
    live = snapshot_file is None
    space = cluster_access.namespace_or_current(namespace, kubeconfig, context) if live else namespace or "default"
    objects = [each for file in files for each in read_objects(file)]
    pods = pods_from_objects(objects, space, replicas)
    others = other_objects(objects, space)
    if not pods:
        cluster_access.fail(f"{', '.join(files)}: there is no Pod and nothing with a pod template in it")
    if snapshot_file is not None:
        if save is not None:
            cluster_access.fail("--save needs a live cluster; with --snapshot there is a file already")
        _print_outcomes(_decide(assembly, ApiSnapshot(read_objects(snapshot_file)).with_objects(others), pods), output)
        return

    async def main(client: Client, clock: Clock) -> None:
        running = await running_configuration(client, scheduler_namespace, scheduler_port) if not config_file else ""
        if isinstance(running, str):
            if running:
                click.echo(f"koord: the configuration of koord up is used: {running}", err=True)
            chosen: CompletedConfig = assembly
        else:
            chosen = running
        snapshot = await read_live_snapshot(client, chosen)
        if save is not None:
            save_objects(snapshot.objects(), save)
        ready, refused = await complete_by_dry_run(client, pods)
        _print_outcomes([*refused, *_decide(chosen, snapshot.with_objects(others), ready)], output)

    cluster_access.run_with_client(main, kubeconfig, context)


async def what_if(client: Client, objects: list[ManifestObject], namespace: str, port: int) -> list[WhatIfOutcome]:
    """Decide on the pods of `objects` as the running koord-scheduler would, in a thread: it may take seconds."""
    pods, others = pods_from_objects(objects, "default", None), other_objects(objects, "default")
    if not pods:
        cluster_access.fail("there is no Pod and nothing with a pod template in it")
    running = await running_configuration(client, namespace, port)
    chosen = scheduler_setup.scheduler_assembly() if isinstance(running, str) else running
    if isinstance(chosen, str):
        cluster_access.fail(chosen)
    snapshot = await read_live_snapshot(client, chosen)
    ready, refused = await complete_by_dry_run(client, pods)
    return [*refused, *await asyncio.to_thread(_decide, chosen, snapshot.with_objects(others), ready)]


async def complete_by_dry_run(
    client: Client, pods: list[ManifestObject]
) -> tuple[list[ManifestObject], list[WhatIfOutcome]]:
    """Return the pods as the server would store them, and outcomes for those that it refuses."""
    ready: list[ManifestObject] = []
    refused: list[WhatIfOutcome] = []
    for pod in pods:
        answer = await dry_run_create(client, pod)
        if isinstance(answer, ApiError):
            key = f"{pod['metadata']['namespace']}/{pod_display_name(pod)}"
            refused.append(WhatIfOutcome(pod=key, scheduler="", message=f"the API server refuses it: {answer.message}"))
        else:
            ready.append(answer)
    return ready, refused


async def dry_run_create(client: Client, pod: ManifestObject) -> ManifestObject | ApiError:
    """Return the pod as the server would store it. If one of the same name exists, another name is tried."""
    answer = await client.dynamic.create(PODS, pod, dry_run=True)
    if isinstance(answer, ApiError) and answer.already_exists:
        renamed = {**pod, "metadata": {**pod["metadata"], "name": f"{pod_display_name(pod)}-what-if"}}
        answer = await client.dynamic.create(PODS, renamed, dry_run=True)
    return answer


async def running_configuration(client: Client, namespace: str, port: int) -> CompletedConfig | str:
    """Return the configuration that the running koord-scheduler has, or why it is not known."""
    answer = await cluster_access.ask_program(client, SCHEDULER, f"/apis/v1{CONFIGURATION_PATH}", namespace, port)
    if isinstance(answer, str):
        return answer
    read = load_configuration(answer.get("configuration", {}))
    known = {name: value for name, value in answer.get("featureGates", {}).items() if name in SCHEDULER_GATES}
    made = read if isinstance(read, list) else CompletedConfig.complete(read, scheduler_setup.plugin_registry(), known)
    if isinstance(made, list):
        return f"that of the running koord-scheduler cannot be used here: {'; '.join(map(str, made))}"
    return made


async def read_live_snapshot(client: Client, assembly: CompletedConfig) -> ApiSnapshot:
    resources: list[Resource[Any]] = [NODES, PODS, PRIORITY_CLASSES]
    resources += [KINDS_BY_API_VERSION[read] for read in kinds_read(assembly) if read in KINDS_BY_API_VERSION]

    return ApiSnapshot(await list_live_objects(client, resources))


def _decide(assembly: CompletedConfig, snapshot: ApiSnapshot, pods: list[ManifestObject]) -> list[WhatIfOutcome]:
    return WhatIf(assembly, snapshot, time.time()).decide(complete_pods(snapshot, pods))


def _print_outcomes(outcomes: list[WhatIfOutcome], output: str) -> None:
    print_result(outcomes, output, lambda console: print_outcomes(console, outcomes))
