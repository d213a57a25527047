"""Build gangs in a whole cluster: pods and PodGroups from a few arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from koord.api.koordinator.custom_kinds import POD_GROUPS
from koord.api.koordinator.protocol import A_GANG_GROUPS, A_GANG_MIN_AVAILABLE, A_GANG_MODE, A_GANG_NAME, L_POD_GROUP
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Pod
from koord.kube.transport.api_error import ApiError, unwrap
from tests.scheduler.faulty_cluster import FaultyCluster


async def add_group(
    world: FaultyCluster,
    name: str,
    minimum: int,
    *,
    mode: str = "",
    with_: Iterable[str] = (),
    timeout: int | None = None,
    topology: Mapping[str, str] | None = None,
) -> None:
    annotations = dict(topology or {})
    if mode:
        annotations[A_GANG_MODE] = mode
    if with_:
        annotations[A_GANG_GROUPS] = json.dumps([f"default/{other}" for other in with_])
    spec: dict[str, Any] = {"minMember": minimum}
    if timeout is not None:
        spec["scheduleTimeoutSeconds"] = timeout
    body = {"metadata": {"name": name, "namespace": "default", "annotations": annotations}, "spec": spec}
    unwrap(await world.client.create(POD_GROUPS, body))


async def add_member(world: FaultyCluster, gang: str, name: str, cpu: str = "1", **more: Any) -> None:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    meta = {"name": name, "namespace": "default", "labels": {L_POD_GROUP: gang}}
    body = {"metadata": meta, "spec": {"schedulerName": "koord-scheduler", "containers": [container], **more}}
    unwrap(await world.client.create(PODS, body))


async def add_members(world: FaultyCluster, gang: str, count: int, cpu: str = "1", first: int = 0, **more: Any) -> None:
    for number in range(first, first + count):
        await add_member(world, gang, f"{gang}-{number}", cpu, **more)


async def add_free_member(
    world: FaultyCluster, gang: str, name: str, minimum: int, cpu: str = "1", priority: str = "", **notes: str
) -> None:
    """Add a pod that declares its gang by annotations alone."""
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    annotations = {A_GANG_NAME: gang, A_GANG_MIN_AVAILABLE: str(minimum), **notes}
    meta = {"name": name, "namespace": "default", "annotations": annotations}
    words: dict[str, Any] = {
        "schedulerName": "koord-scheduler",
        "containers": [container],
        **({"priorityClassName": priority} if priority else {}),
    }
    body = {"metadata": meta, "spec": words}
    unwrap(await world.client.create(PODS, body))


async def pods_of(world: FaultyCluster, prefix: str) -> list[Pod]:
    return [p for p in unwrap(await world.client.list(PODS)).items if p.metadata.name.startswith(prefix)]


async def bound(world: FaultyCluster, prefix: str) -> int:
    return sum(1 for pod in await pods_of(world, prefix) if pod.spec.node_name)


async def told(world: FaultyCluster, name: str) -> str:
    """Return the message of the pod's PodScheduled condition; "" when it has none."""
    conditions = (await world.pod(name)).status.conditions
    return next((c.message for c in conditions if c.type == "PodScheduled" and c.status == "False"), "")


def held(world: FaultyCluster, name: str) -> str:
    """Return why the pod is gated."""
    queue = world.scheduler.queue
    return next(q.gate_reason for q in queue.pods() if q.pod.name == name)


async def phase(world: FaultyCluster, name: str) -> str:
    found = await world.client.get(POD_GROUPS, name, "default")
    assert not isinstance(found, ApiError)
    return found.status.phase
