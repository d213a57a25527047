"""This module asks the quotas of a snapshot, live or from a file, about pods that do not exist yet."""

from __future__ import annotations

import time

from koord.cli import cluster_access
from koord.cli.commands.simulate.pod_input import (
    ManifestObject,
    complete_pods,
    pod_display_name,
    pods_from_objects,
    read_objects,
)
from koord.cli.commands.simulate.simulate import dry_run_create, read_live_snapshot
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.explain.snapshot import ApiSnapshot, SnapshotHandle
from koord.scheduler.plugins.elastic_quota.explain import QuotaVerdict, quota_cache_of, report_quota_verdicts


def check_against_file(
    assembly: CompletedConfig, files: tuple[str, ...], namespace: str, snapshot: str
) -> list[QuotaVerdict]:
    return _check_pods(assembly, ApiSnapshot(read_objects(snapshot)), _read_pods(files, namespace))


async def check_against_cluster(
    client: Client, assembly: CompletedConfig, files: tuple[str, ...], namespace: str
) -> list[QuotaVerdict]:
    """Check pods against the live cluster. The server completes each pod by a dry-run create, so its webhooks
    apply.
    """
    ready: list[ManifestObject] = []
    refused: list[QuotaVerdict] = []
    for pod in _read_pods(files, namespace):
        answer = await dry_run_create(client, pod)
        if isinstance(answer, ApiError):
            key = f"{pod['metadata']['namespace']}/{pod_display_name(pod)}"
            refused.append(QuotaVerdict(pod=key, message=f"the API server refuses it: {answer.message}"))
        else:
            ready.append(answer)
    return [*refused, *_check_pods(assembly, await read_live_snapshot(client, assembly), ready)]


def _read_pods(files: tuple[str, ...], namespace: str) -> list[ManifestObject]:
    pods = [pod for file in files for pod in pods_from_objects(read_objects(file), namespace, None)]
    if not pods:
        cluster_access.fail(f"{', '.join(files)}: there is no Pod and nothing with a pod template in it")
    return pods


def _check_pods(assembly: CompletedConfig, snapshot: ApiSnapshot, pods: list[ManifestObject]) -> list[QuotaVerdict]:
    state = snapshot.state()
    ledger = quota_cache_of(assembly.make_profiles(SnapshotHandle(snapshot, state, time.time())))
    if ledger is None:
        cluster_access.fail("no profile of the scheduler enables ElasticQuota")
    return report_quota_verdicts(ledger, [state.pod_info(pod) for pod in complete_pods(snapshot, pods)])
