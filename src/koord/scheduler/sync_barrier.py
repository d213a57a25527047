"""Make a new leader wait until its caches show every binding that the leader before it made.

The watch of a replica may lag behind the server while another one leads. The barrier is a pod that nothing runs: the
new leader annotates it, and once its watch shows that write, it has shown all writes to pods before it. Without that
pod, or when the timeout is over, scheduling begins all the same: a cluster without a scheduler helps nobody, and a
kubelet refuses pods that its node has no room for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import ClassVar

import msgspec

from koord.api.koordinator import protocol
from koord.api.kubernetes.rbac import RbacRule
from koord.kube.client.typed_client import Client
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import PODS, Pod, is_terminal
from koord.telemetry.clock import Clock, now
from koord.values import timestamp

_LOG = logging.getLogger(__name__)

_RETRY_S = 1.0


class SyncBarrierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Name the barrier pod and the lease whose holder annotates it; `timeout_s` is the longest wait."""

    namespace: str = protocol.SYNC_BARRIER_POD_NAMESPACE
    name: str = protocol.SYNC_BARRIER_POD_NAME
    lease: str = protocol.SCHEDULER
    timeout_s: float = 60.0


class SyncBarrier:
    """Wait at the barrier. The handlers that fill the cluster state must be registered before."""

    rights: ClassVar[tuple[RbacRule, ...]] = (RbacRule("", ("pods",), ("patch",)),)

    def __init__(
        self, client: Client, pods: Informer[Pod], state: ClusterState, clock: Clock, settings: SyncBarrierSettings
    ) -> None:
        self._client = client
        self._pods = pods
        self._state = state
        self._clock = clock
        self._settings = settings

    async def wait(self) -> bool:
        """Return True when the cluster state is current, False when nobody can tell or the timeout is over."""
        given, began = self._settings, self._clock.monotonic()
        where = f"{given.namespace}/{given.name}"
        changed = asyncio.Event()
        handler = self._pods.add_event_handler(lambda _: changed.set())  # the last one: the state comes before it
        try:
            async with asyncio.timeout(given.timeout_s):
                version = await self._annotate()
                if version is None:
                    _LOG.warning("sync barrier: there is no pod %s; scheduling begins without it", where)
                    return False
                await _until(changed, lambda: self._shows_version(version))
                newest = self._newest_scheduled_pod()
                if newest is not None:
                    await _until(changed, lambda: self._is_in_state(newest))
        except TimeoutError:
            _LOG.warning(
                "sync barrier: the watch did not show pod %s in %g s; scheduling begins all the same",
                where,
                given.timeout_s,
            )
            return False
        finally:
            self._pods.remove_event_handler(handler)
        _LOG.info("sync barrier: caches are current after %.3f s", self._clock.monotonic() - began)
        return True

    async def _annotate(self) -> int | None:
        """Annotate the barrier pod until the server takes it; return its version, None when there is no such pod."""
        given = self._settings
        while True:
            moment = timestamp.micro_text(now(self._clock))
            patch = {"metadata": {"annotations": {f"{protocol.A_SYNC_BARRIER_PREFIX}{given.lease}": moment}}}
            try:
                answer = await self._client.patch(PODS, given.name, patch, given.namespace, kind="merge")
            except TRANSIENT_ERRORS as outage:
                problem = str(outage)
            else:
                if not isinstance(answer, ApiError):
                    return _version(answer.metadata.resource_version)
                if answer.not_found:
                    return None
                problem = answer.message
            _LOG.warning("sync barrier: pod %s/%s cannot be annotated: %s", given.namespace, given.name, problem)
            await self._clock.sleep(_RETRY_S)

    def _shows_version(self, version: int) -> bool:
        shown = self._pods.get(self._settings.namespace, self._settings.name)
        return shown is not None and _version(shown.metadata.resource_version) >= version

    def _newest_scheduled_pod(self) -> Pod | None:
        bound = (pod for pod in self._pods.list() if _holds_node(pod))
        return max(bound, key=lambda pod: _version(pod.metadata.resource_version), default=None)

    def _is_in_state(self, pod: Pod) -> bool:
        """Return whether the cluster state has the pod in this version or a later one, or the pod is gone."""
        meta = pod.metadata
        placed = self._state.placed_pod(meta.uid)
        if placed is not None and _version(placed.resource_version) >= _version(meta.resource_version):
            return True
        shown = self._pods.get(meta.namespace, meta.name)
        return shown is None or shown.metadata.uid != meta.uid or not _holds_node(shown)


async def _until(changed: asyncio.Event, is_met: Callable[[], bool]) -> None:
    while not is_met():
        changed.clear()
        await changed.wait()


def _holds_node(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and not is_terminal(pod)


def _version(text: str) -> int:
    """Return a resourceVersion as the number that it is on every server whose versions can be compared, else 0."""
    return int(text) if text.isdecimal() else 0
