"""The pod garbage collector deletes pods of lost nodes, terminating ones without a node, and surplus finished ones."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

import msgspec

from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.api.kubernetes.pod import Pod
from koord.embedded.workloads import pod_control
from koord.embedded.workloads.controller_context import ControllerContext
from koord.kube.events import recorder
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS

_LOG = logging.getLogger(__name__)

GC_PERIOD_S = 20.0
MISSING_NODE_QUARANTINE_S = 40.0
MAX_FINISHED_PODS = 12_500
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_FINISHED_INDEX = "finished"
_TERMINATING_INDEX = "leaving"

RemovalCause = Literal["orphaned", "unscheduled", "finished", "out-of-service"]


class PodRemoval(msgspec.Struct, frozen=True):
    pod: Pod
    cause: RemovalCause


def decide_surplus_finished(pods: Iterable[Pod], most: int) -> list[PodRemoval]:
    """Return the finished pods beyond `most`: evicted ones first, then the oldest."""
    ended = list(pods)
    excess = len(ended) - most
    if most <= 0 or excess <= 0:
        return []
    ended.sort(key=lambda pod: (pod.status.reason != "Evicted", _created_at(pod), pod.metadata.name))
    return [PodRemoval(pod, "finished") for pod in ended[:excess]]


def decide_unscheduled(pods: Iterable[Pod]) -> list[PodRemoval]:
    return [
        PodRemoval(pod, "unscheduled")
        for pod in pods
        if pod.metadata.deletion_timestamp is not None and not pod.spec.node_name
    ]


def _created_at(pod: Pod) -> datetime:
    return pod.metadata.creation_timestamp or datetime.min.replace(tzinfo=UTC)


class PodGarbageCollector:
    name = "pod-gc"

    def __init__(self, context: ControllerContext, most_finished: int = MAX_FINISHED_PODS) -> None:
        self._context = context
        self._client = context.client
        self._most = most_finished
        self._nodes = context.informers.for_resource(NODES)
        self._pods = context.pods()
        self._limited_log = RateLimitedLog(_LOG, context.clock)
        self._missing_since: dict[str, float] = {}  # node -> since when it has been missed
        pod_control.index_pods_by_node(self._pods)
        if not self._pods.has_index(_FINISHED_INDEX):
            self._pods.add_index(_FINISHED_INDEX, lambda pod: ("",) if pod_control.is_pod_finished(pod) else ())
        if not self._pods.has_index(_TERMINATING_INDEX):
            self._pods.add_index(
                _TERMINATING_INDEX, lambda pod: ("",) if pod.metadata.deletion_timestamp is not None else ()
            )

    async def run(self) -> None:
        await self._nodes.wait_for_sync()
        await self._pods.wait_for_sync()
        while True:
            try:
                await self.sweep()
            except TRANSIENT_ERRORS as error:
                self._limited_log.warning("pods that nobody ends were not swept: %s", error)
            await self._context.clock.sleep(GC_PERIOD_S)

    async def sweep(self) -> None:
        removals = decide_surplus_finished(self._pods.by_index(_FINISHED_INDEX, ""), self._most)
        leaving = self._pods.by_index(_TERMINATING_INDEX, "")
        removals += decide_unscheduled(leaving)
        removals += [PodRemoval(pod, "out-of-service") for pod in leaving if self._out_of_service(pod)]
        for node in await self._lost_nodes():
            removals += [PodRemoval(pod, "orphaned") for pod in pod_control.pods_on_node(self._pods, node)]
        for removal in removals:
            await self._remove(removal)

    def _out_of_service(self, pod: Pod) -> bool:
        node = self._nodes.get("", pod.spec.node_name)
        if node is None or pod_control.is_pod_finished(pod):
            return False
        ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
        return not ready and any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)

    async def _lost_nodes(self) -> list[str]:
        """Return nodes that pods name, that have been missing for a while, and that the server does not know either."""
        now = self._context.clock.monotonic()
        missing = [name for name in pod_control.nodes_with_pods(self._pods) if self._nodes.get("", name) is None]
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        lost = []
        for name, since in self._missing_since.items():
            if now - since < MISSING_NODE_QUARANTINE_S:
                continue
            live = await self._client.get(NODES, name)
            if isinstance(live, ApiError) and live.not_found:
                lost.append(name)
        return lost

    async def _remove(self, removal: PodRemoval) -> None:
        pod, meta = removal.pod, removal.pod.metadata
        if removal.cause in ("orphaned", "out-of-service"):
            why = "PodGC: node no longer exists" if removal.cause == "orphaned" else "PodGC: node out-of-service"
            phase = "" if pod_control.is_pod_finished(pod) else "Failed"
            refused = await pod_control.add_disruption_target(
                self._client, pod, "DeletionByPodGC", why, self._context.now(), phase=phase
            )
            if refused is not None:
                self._record_failure(pod, refused)
                return
        answer = await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_seconds=0)
        if isinstance(answer, ApiError) and not answer.not_found and not answer.conflict:
            self._record_failure(pod, answer)

    def _record_failure(self, pod: Pod, refused: ApiError) -> None:
        message = f"cannot remove a pod that nobody runs: {refused.message}"
        self._context.recorder.record(recorder.object_reference(PODS, pod), "Warning", "FailedPodGC", message)
