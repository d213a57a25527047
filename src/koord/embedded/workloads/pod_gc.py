"""The pod garbage collector deletes pods that nobody will end: on nodes that are gone, terminating without
a node, or finished and too many.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

import msgspec

from koord.api.builtin import NODES, PODS
from koord.api.core import Pod
from koord.embedded.workloads.context import Context
from koord.embedded.workloads.disruption import mark_disrupted
from koord.embedded.workloads.pod_place import index_by_node, nodes_with_pods, on_node
from koord.embedded.workloads.pod_state import finished
from koord.kube import recorder
from koord.kube.noise import QuietLog
from koord.kube.outage import OUTAGE
from koord.kube.refused import Refused

_LOG = logging.getLogger(__name__)

PERIOD_S = 20.0
QUARANTINE_S = 40.0
MOST_FINISHED = 12_500
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_FINISHED = "finished"
_LEAVING = "leaving"

Cause = Literal["orphaned", "unscheduled", "finished", "out-of-service"]


class Removal(msgspec.Struct, frozen=True):
    pod: Pod
    cause: Cause


def decide_surplus(pods: Iterable[Pod], most: int) -> list[Removal]:
    """Return the finished pods beyond `most`: evicted ones first, then the oldest."""
    ended = list(pods)
    excess = len(ended) - most
    if most <= 0 or excess <= 0:
        return []
    ended.sort(key=lambda pod: (pod.status.reason != "Evicted", _born(pod), pod.metadata.name))
    return [Removal(pod, "finished") for pod in ended[:excess]]


def decide_unscheduled(pods: Iterable[Pod]) -> list[Removal]:
    return [
        Removal(pod, "unscheduled")
        for pod in pods
        if pod.metadata.deletion_timestamp is not None and not pod.spec.node_name
    ]


def _born(pod: Pod) -> datetime:
    return pod.metadata.creation_timestamp or datetime.min.replace(tzinfo=UTC)


class PodGarbage:
    name = "pod-gc"

    def __init__(self, context: Context, most_finished: int = MOST_FINISHED) -> None:
        self._context = context
        self._client = context.client
        self._most = most_finished
        self._nodes = context.informers.of(NODES)
        self._pods = context.pods()
        self._quiet = QuietLog(_LOG, context.clock)
        self._missing: dict[str, float] = {}  # node -> since when it has been missed
        index_by_node(self._pods)
        if not self._pods.has_index(_FINISHED):
            self._pods.add_index(_FINISHED, lambda pod: ("",) if finished(pod) else ())
        if not self._pods.has_index(_LEAVING):
            self._pods.add_index(_LEAVING, lambda pod: ("",) if pod.metadata.deletion_timestamp is not None else ())

    async def run(self) -> None:
        await self._nodes.wait_synced()
        await self._pods.wait_synced()
        while True:
            try:
                await self.sweep()
            except OUTAGE as error:
                self._quiet.warning("pods that nobody ends were not swept: %s", error)
            await self._context.clock.sleep(PERIOD_S)

    async def sweep(self) -> None:
        removals = decide_surplus(self._pods.by_index(_FINISHED, ""), self._most)
        leaving = self._pods.by_index(_LEAVING, "")
        removals += decide_unscheduled(leaving)
        removals += [Removal(pod, "out-of-service") for pod in leaving if self._out_of_service(pod)]
        for node in await self._lost_nodes():
            removals += [Removal(pod, "orphaned") for pod in on_node(self._pods, node)]
        for removal in removals:
            await self._remove(removal)

    def _out_of_service(self, pod: Pod) -> bool:
        node = self._nodes.get("", pod.spec.node_name)
        if node is None or finished(pod):
            return False
        ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
        return not ready and any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)

    async def _lost_nodes(self) -> list[str]:
        """Return nodes that pods name, that have been missing for a while, and that the server does not know
        either.
        """
        now = self._context.clock.monotonic()
        missing = [name for name in nodes_with_pods(self._pods) if self._nodes.get("", name) is None]
        self._missing = {name: self._missing.get(name, now) for name in missing}
        lost = []
        for name, since in self._missing.items():
            if now - since < QUARANTINE_S:
                continue
            live = await self._client.get(NODES, name)
            if isinstance(live, Refused) and live.not_found:
                lost.append(name)
        return lost

    async def _remove(self, removal: Removal) -> None:
        pod, meta = removal.pod, removal.pod.metadata
        if removal.cause in ("orphaned", "out-of-service"):
            why = "PodGC: node no longer exists" if removal.cause == "orphaned" else "PodGC: node out-of-service"
            phase = "" if finished(pod) else "Failed"
            refused = await mark_disrupted(self._client, pod, "DeletionByPodGC", why, self._context.now(), phase=phase)
            if refused is not None:
                self._tell(pod, refused)
                return
        answer = await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_seconds=0)
        if isinstance(answer, Refused) and not answer.not_found and not answer.conflict:
            self._tell(pod, answer)

    def _tell(self, pod: Pod, refused: Refused) -> None:
        message = f"cannot remove a pod that nobody runs: {refused.message}"
        self._context.recorder.record(recorder.reference(PODS, pod), "Warning", "FailedPodGC", message)
