"""What a proxy that starts learns from the runtime: pods and containers that its records lack, and those long gone."""

from __future__ import annotations

import logging

import grpc
import grpc.aio

from koord.runtimeproxy.backend import RuntimeBackend
from koord.runtimeproxy.checkpoint import Checkpoint, ContainerRecord
from koord.wire import cri
from koord.wire.cri import ListedContainer, ListedSandbox
from koord.wire.raw_fields import MalformedMessage
from koord.wire.runtime_hook import ContainerResourceHookRequest

_LOG = logging.getLogger(__name__)
_LIST_TIMEOUT_S = 30.0


async def restore(checkpoint: Checkpoint, backend: RuntimeBackend) -> None:
    """Bring the records in step with the runtime. Where it cannot list, the records are used as they are."""
    try:
        listed_pods = await backend.unary(cri.runtime_method("ListPodSandbox"), b"", timeout_s=_LIST_TIMEOUT_S)
        listed = await backend.unary(cri.runtime_method("ListContainers"), b"", timeout_s=_LIST_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        _LOG.warning("the runtime does not list its pods: %s: %s", error.code().name, error.details())
        return
    sandboxes = cri.listed_sandboxes(listed_pods.message)
    containers = cri.listed_containers(listed.message)
    if isinstance(sandboxes, MalformedMessage) or isinstance(containers, MalformedMessage):
        problem = sandboxes if isinstance(sandboxes, MalformedMessage) else containers
        _LOG.warning("the list of the runtime's pods cannot be used: %s", problem)
        return
    await checkpoint.retain({one.id for one in sandboxes}, {one.id for one in containers})
    pods_kept, containers_kept = len(checkpoint.pods), len(checkpoint.containers)
    add_listed(checkpoint, sandboxes, containers)
    _LOG.info(
        "%d pods and %d containers are known from records, %d and %d from the runtime",
        pods_kept,
        containers_kept,
        len(checkpoint.pods) - pods_kept,
        len(checkpoint.containers) - containers_kept,
    )


def add_listed(checkpoint: Checkpoint, sandboxes: list[ListedSandbox], containers: list[ListedContainer]) -> None:
    """Add what the records lack, in memory: the runtime lists it again at the next start."""
    for sandbox in sandboxes:
        checkpoint.pods.setdefault(sandbox.id, sandbox.pod)
    for one in containers:
        pod = checkpoint.pods.get(one.sandbox_id)
        if pod is None or one.id in checkpoint.containers:
            continue
        request = ContainerResourceHookRequest(
            pod_meta=pod.pod_meta,
            pod_labels=pod.labels,
            pod_annotations=pod.annotations,
            pod_resources=pod.resources,
            pod_cgroup_parent=pod.cgroup_parent,
            container_meta=one.meta,
            container_annotations=one.annotations,
        )
        checkpoint.containers[one.id] = ContainerRecord(one.sandbox_id, request)
