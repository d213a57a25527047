"""What a cluster's volume controller and provisioners do, as far as a scheduler waits for it: claims become bound."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from koord.api.kubernetes.volume import PersistentVolume, PersistentVolumeClaim
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap

SELECTED_NODE = "volume.kubernetes.io/selected-node"
_PERIOD_S = 0.02  # a schedule of its own, as the real one has


async def offer(client: Client, volume: dict[str, Any]) -> PersistentVolume:
    """A new volume, free for any claim."""
    made = unwrap(await client.create(PERSISTENT_VOLUMES, volume))
    phase = {"status": {"phase": "Available"}}
    return unwrap(await client.patch(PERSISTENT_VOLUMES, made.metadata.name, phase, kind="merge", subresource="status"))


async def join(client: Client, volume: str, claim: PersistentVolumeClaim) -> None:
    """Volume and claim are each other's, and both say so."""
    meta = claim.metadata
    ref = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": meta.namespace, "name": meta.name}
    ref["uid"] = meta.uid
    unwrap(await client.patch(PERSISTENT_VOLUMES, volume, {"spec": {"claimRef": ref}}, kind="merge"))
    for resource, name, space in (
        (PERSISTENT_VOLUMES, volume, None),
        (PERSISTENT_VOLUME_CLAIMS, meta.name, meta.namespace),
    ):
        bound = {"status": {"phase": "Bound"}}
        if space is not None:
            done = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
            patch = {"metadata": {"annotations": done}, "spec": {"volumeName": volume}}
            unwrap(await client.patch(resource, name, patch, space, kind="merge"))
        unwrap(await client.patch(resource, name, bound, space, kind="merge", subresource="status"))


class Keeper:
    """Looks again and again at what schedulers wrote, and completes it."""

    def __init__(self, client: Client, driver_of: dict[str, str]) -> None:
        self._client = client
        self._driver_of = driver_of  # by storage class

    async def run(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(_PERIOD_S)

    async def _look(self) -> None:
        claims = {
            (claim.metadata.namespace, claim.metadata.name): claim
            for claim in unwrap(await self._client.list(PERSISTENT_VOLUME_CLAIMS)).items
            if not claim.spec.volume_name
        }
        if not claims:
            return
        for volume in unwrap(await self._client.list(PERSISTENT_VOLUMES)).items:
            ref = volume.spec.claim_ref
            if ref is not None and (found := claims.pop((ref.namespace, ref.name), None)) is not None:
                await join(self._client, volume.metadata.name, found)
        for claim in claims.values():
            if SELECTED_NODE in claim.metadata.annotations:
                await self._provision(claim)

    async def _provision(self, claim: PersistentVolumeClaim) -> None:
        name, storage_class = f"pvc-{claim.metadata.uid}", claim.spec.storage_class_name or ""
        csi = {"driver": self._driver_of[storage_class], "volumeHandle": name}
        spec = {
            "capacity": claim.spec.resources.requests,
            "accessModes": claim.spec.access_modes,
            "storageClassName": storage_class,
            "csi": csi,
        }
        made = await self._client.create(PERSISTENT_VOLUMES, {"metadata": {"name": name}, "spec": spec})
        if not isinstance(made, ApiError):
            await join(self._client, name, claim)


@contextlib.asynccontextmanager
async def keeping(client: Client, driver_of: dict[str, str]) -> AsyncIterator[None]:
    task = asyncio.create_task(Keeper(client, driver_of).run(), name="volume-keeper")
    try:
        yield
    finally:
        task.cancel()
        ended = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError), ended[0]
