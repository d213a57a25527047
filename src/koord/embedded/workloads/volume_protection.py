"""Remove the protection finalizers of volume claims and volumes that are being deleted, once nobody uses
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from koord.api.builtin import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from koord.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from koord.api.meta import ObjectMeta
from koord.api.resource import Resource
from koord.embedded.workloads.context import Context
from koord.kube.cache import Change, Key, key_of
from koord.kube.controller import Done, Outcome, Requeue
from koord.kube.refused import Refused
from koord.kube.workqueue import WorkQueue

CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER = "kubernetes.io/pv-protection"
_INDEX = "claims"


def claims_of(pod: Pod) -> Iterable[str]:
    """Return the names of the claims that a pod uses. One without a node uses none: no kubelet starts it on a
    claim that is being deleted.
    """
    if not pod.spec.node_name:
        return []
    found = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            found.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            found.append(f"{pod.metadata.name}-{volume.name}")
    return found


def claim_is_free(claim: PersistentVolumeClaim, users: Iterable[Pod]) -> bool:
    return _leaving(claim.metadata, CLAIM_FINALIZER) and not list(users)


def volume_is_free(volume: PersistentVolume) -> bool:
    return _leaving(volume.metadata, VOLUME_FINALIZER) and volume.status.phase != "Bound"


def _leaving(meta: ObjectMeta, finalizer: str) -> bool:
    return meta.deletion_timestamp is not None and finalizer in meta.finalizers


class VolumeProtection:
    name = "volume-protection"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._client = context.client
        self._claims = context.informers.of(PERSISTENT_VOLUME_CLAIMS)
        self._volumes = context.informers.of(PERSISTENT_VOLUMES)
        self._pods = context.pods()
        self._claim_queue: WorkQueue[Key] = WorkQueue(context.clock, name="pvc-protection")
        self._volume_queue: WorkQueue[Key] = WorkQueue(context.clock, name="pv-protection")
        if not self._pods.has_index(_INDEX):
            self._pods.add_index(_INDEX, lambda pod: [f"{pod.metadata.namespace}/{name}" for name in claims_of(pod)])
        self._claims.on(self._claim_changed)
        self._volumes.on(self._volume_changed)
        self._pods.on(self._pod_changed)

    def _claim_changed(self, change: Change[PersistentVolumeClaim]) -> None:
        if change.kind != "deleted" and _leaving(change.object.metadata, CLAIM_FINALIZER):
            self._claim_queue.add(key_of(change.object))

    def _volume_changed(self, change: Change[PersistentVolume]) -> None:
        if change.kind != "deleted" and _leaving(change.object.metadata, VOLUME_FINALIZER):
            self._volume_queue.add(key_of(change.object))

    def _pod_changed(self, change: Change[Pod]) -> None:
        if change.kind == "deleted" and change.object.spec.volumes:
            for name in claims_of(change.object):
                self._claim_queue.add((change.object.metadata.namespace, name))

    async def run(self) -> None:
        needs = (self._claims, self._volumes, self._pods)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._context.work("pvc-protection", self._claim_queue, self._free_claim, needs, 1))
            group.create_task(self._context.work("pv-protection", self._volume_queue, self._free_volume, needs, 1))

    async def _free_claim(self, key: Key) -> Outcome:
        claim = self._claims.get(*key)
        if claim is None or not claim_is_free(claim, self._pods.by_index(_INDEX, f"{key[0]}/{key[1]}")):
            return Done()
        return await self._free(PERSISTENT_VOLUME_CLAIMS, claim.metadata, CLAIM_FINALIZER)

    async def _free_volume(self, key: Key) -> Outcome:
        volume = self._volumes.get(*key)
        if volume is None or not volume_is_free(volume):
            return Done()
        return await self._free(PERSISTENT_VOLUMES, volume.metadata, VOLUME_FINALIZER)

    async def _free(self, resource: Resource[Any], meta: ObjectMeta, finalizer: str) -> Outcome:
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [finalizer]}}
        answer = await self._client.patch(
            resource, meta.name, patch, meta.namespace or None, kind="strategic", uid=meta.uid
        )
        if isinstance(answer, Refused) and not answer.not_found and not answer.conflict:
            return Requeue(answer.message)
        return Done()
