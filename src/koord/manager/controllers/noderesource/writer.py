"""Writes the decisions of the noderesource controller: patches of the node and its topology, and events."""

from __future__ import annotations

import logging
from random import Random

from koord.api.koordinator.custom_kinds import NODE_RESOURCE_TOPOLOGIES
from koord.api.koordinator.resource_name import GPU_SHARED
from koord.api.kubernetes.builtin_kinds import NODES
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder, EventType, object_reference
from koord.kube.rate_limit import jitter
from koord.kube.transport.api_error import ApiError
from koord.manager.colocation.decision import ColocationDecision, revise_zones
from koord.manager.colocation.models import ColocationNode
from koord.manager.colocation.node_metric import EXPECTED_CAUSES, DegradeCause, DegradedMetric
from koord.manager.colocation.node_patch import NodePatch
from koord.manager.reconcile_loop import ReconcileCounter
from koord.telemetry.clock import Clock

MAX_TRIES = 4
BACKOFF_BASE_S, BACKOFF_FACTOR, BACKOFF_JITTER = 0.01, 5.0, 0.1


class NodeResourceWriter:
    def __init__(self, client: Client, clock: Clock, counter: ReconcileCounter, rng: Random) -> None:
        self._client = client
        self._clock = clock
        self._counter = counter
        self._rng = rng

    async def patch_node(self, node: ColocationNode, write: NodePatch) -> ApiError | None:
        """Patch resources and metadata at once: a node's status subresource accepts annotations and labels.

        A node that is gone, or another one of its name, needs nothing more.
        """
        meta = node.metadata
        reason = "updateNodeStatus" if write.status_due else "patchNodeMeta"
        answer = await self._client.dynamic.patch(
            NODES, meta.name, write.patch(), kind="merge", subresource="status", uid=meta.uid
        )
        if not isinstance(answer, ApiError):
            self._counter.succeeded(reason)
            return None
        if answer.not_found or (answer.code == 422 and answer.conflict):
            self._counter.failed("updateNodeNotFound")
            return None
        self._counter.failed(reason)
        return answer

    async def patch_zones(self, name: str, decision: ColocationDecision, *, overdue: bool) -> ApiError | None:
        """Patch the zones. They are one list, and the koordlet writes it too: read, change own entries, write that
        version.

        The object is read as plain data, so that fields that no model knows are kept.
        """
        if decision.batch is None:
            return None
        ratio = None if decision.normalization is None else decision.normalization.ratio
        refused: ApiError | None = None
        for tried in range(MAX_TRIES):
            if tried:
                await self._clock.sleep(
                    jitter(BACKOFF_BASE_S * BACKOFF_FACTOR ** (tried - 1), BACKOFF_JITTER, self._rng)
                )
            found = await self._client.dynamic.get(NODE_RESOURCE_TOPOLOGIES, name)
            if isinstance(found, ApiError):
                return None if found.not_found else self._failed(found)
            zones = revise_zones(
                found.get("zones") or [], decision.batch.zones, ratio, decision.rules.diff_threshold, overdue=overdue
            )
            if zones is None:
                return None
            answer = await self._client.dynamic.patch(
                NODE_RESOURCE_TOPOLOGIES,
                name,
                {"zones": zones},
                kind="merge",
                uid=found["metadata"]["uid"],
                resource_version=found["metadata"]["resourceVersion"],
            )
            if not isinstance(answer, ApiError):
                self._counter.succeeded("updateNodeResourceTopology")
                return None
            if answer.not_found:
                return None
            refused = answer
            if not answer.conflict:
                break
        return None if refused is None else self._failed(refused)

    def _failed(self, refused: ApiError) -> ApiError:
        self._counter.failed("updateNodeResourceTopology")
        return refused


ABNORMAL_REASON = "NodeMetricAbnormal"
RESTORED_REASON = "NodeMetricRestored"
GPU_SHARED_REASON = "GPUSharedNotSynced"

_LOG = logging.getLogger(__name__)


class NodeEventReporter:
    """Records an event on the node when its NodeMetric becomes unusable or usable again: once per change.

    A node that never reported gets no event: its koordlet may not have started yet.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self.reported: dict[str, DegradeCause] = {}
        self._without_gpu_shared: set[str] = set()

    def report(self, node: ColocationNode, degraded: DegradedMetric | None) -> None:
        """Record the change, if any. `degraded` is None for a usable report and for a node without co-location."""
        name = node.metadata.name
        before = self.reported.get(name)
        if degraded is not None and degraded.cause not in EXPECTED_CAUSES:
            if degraded.cause != before:
                self.reported[name] = degraded.cause
                self._record(node, "Warning", ABNORMAL_REASON, f"nothing is lent to batch and mid pods: {degraded}")
        elif before is not None:
            del self.reported[name]
            if degraded is None:
                self._record(node, "Normal", RESTORED_REASON, "the NodeMetric is usable again")

    def report_gpu_shared(self, node: ColocationNode, *, synced: bool) -> None:
        """Say once of a node with GPUs that no pod that shares one fits on it."""
        name = node.metadata.name
        if synced or GPU_SHARED in node.status.allocatable:
            self._without_gpu_shared.discard(name)
        elif name not in self._without_gpu_shared:
            self._without_gpu_shared.add(name)
            message = (
                f"pods that share GPUs are made to ask for {GPU_SHARED}, which this node does not offer:"
                " start koord-manager with --feature-gates=EnableSyncGPUSharedResource=true"
            )
            self._record(node, "Warning", GPU_SHARED_REASON, message)

    def forget(self, name: str) -> None:
        self.reported.pop(name, None)
        self._without_gpu_shared.discard(name)

    def _record(self, node: ColocationNode, type: EventType, reason: str, message: str) -> None:
        _LOG.info("node %s: %s: %s", node.metadata.name, reason, message)
        self._recorder.record(object_reference(NODES, node), type, reason, message)
