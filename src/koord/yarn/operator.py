"""koord-yarn-operator as a component: a loop for each YARN cluster, and the writer of what YARN holds of nodes.

Each round of a cluster compares what NodeManagers offer with what they should, so a NodeManager or ResourceManager
that started again, and a new active one, are brought in line like any other difference. A cluster that fails waits by
itself; its nodes stay as they are.

Its metrics are upstream's four of each NodeManager, and those of rounds and problems.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Protocol

import msgspec

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import A_THIRD_PARTY_ALLOCATIONS
from koord.api.koordinator.yarn import MIB, OPERATOR_LEASE, YarnNodeId
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.kube.client.typed_client import Client
from koord.kube.controller.controller import Controller, Done, ReconcileResult, Requeue, WorkQueue
from koord.kube.informer.factory import InformerFactory
from koord.kube.leader_election import lease_rules
from koord.kube.rate_limit import JitteredBackoff, RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.telemetry.clock import Clock
from koord.telemetry.metrics import MetricDeclaration, MetricReading, MetricRegistry
from koord.wire.hadoop_rpc import RpcException
from koord.wire.hadoop_yarn import NodeIdMessage, NodeReport, NodeResource, ResourceMessage, ResourceOption
from koord.yarn.capacity import (
    NODES,
    PODS,
    BatchAmounts,
    CapacityUpdate,
    PlacedNodeManager,
    SeenNodeManagers,
    YarnNode,
    YarnProblem,
    decide_cluster,
    decide_held,
    held_by_yarn,
    place_node_managers,
    total_held,
    transform_node,
    transform_pod,
    with_yarn_allocation,
)
from koord.yarn.hadoop_config import ResourceManagerAddress
from koord.yarn.resource_manager import CallFailure, NoActiveManager, ResourceManagerClient

_NODE = ("instance", "cluster")
CPU_RESOURCE = MetricDeclaration("yarn_node_cpu_resource", "Vcores that a NodeManager offers.", "gauge", _NODE)
MEMORY_RESOURCE = MetricDeclaration(
    "yarn_node_memory_resource", "Memory that a NodeManager offers, in bytes.", "gauge", _NODE
)
CPU_ALLOCATED = MetricDeclaration(
    "yarn_node_cpu_allocated_resource", "Vcores that YARN gave to containers of a NodeManager.", "gauge", _NODE
)
MEMORY_ALLOCATED = MetricDeclaration(
    "yarn_node_memory_allocated_resource",
    "Memory that YARN gave to containers of a NodeManager, in bytes.",
    "gauge",
    _NODE,
)
ROUNDS = MetricDeclaration(
    "koord_yarn_operator_rounds_total", "Rounds of a YARN cluster, by outcome.", "counter", ("cluster", "result")
)
UPDATES = MetricDeclaration(
    "koord_yarn_operator_updates_total",
    "Changes of what a NodeManager offers that were sent to a ResourceManager, by outcome.",
    "counter",
    ("cluster", "result"),
)
UP = MetricDeclaration(
    "koord_yarn_operator_cluster_up",
    "1 when the last round of a YARN cluster succeeded, else 0.",
    "gauge",
    ("cluster",),
)
LAST_SUCCESS = MetricDeclaration(
    "koord_yarn_operator_last_success_timestamp_seconds",
    "Unix time of the last round of a YARN cluster that succeeded; 0: none did.",
    "gauge",
    ("cluster",),
)
ROUND_SECONDS = MetricDeclaration(
    "koord_yarn_operator_round_duration_seconds",
    "How long the last round of a YARN cluster took.",
    "gauge",
    ("cluster",),
)
PROBLEMS = MetricDeclaration(
    "koord_yarn_operator_problems",
    "NodeManagers that take no part now, by reason: node-id, unknown-cluster, second-node-manager, duplicate-node-id, "
    "not-registered, unknown-batch.",
    "gauge",
    ("reason",),
)
YARN_OPERATOR_METRICS = (
    CPU_RESOURCE,
    MEMORY_RESOURCE,
    CPU_ALLOCATED,
    MEMORY_ALLOCATED,
    ROUNDS,
    UPDATES,
    UP,
    LAST_SUCCESS,
    ROUND_SECONDS,
    PROBLEMS,
)


class ObservedCluster(Protocol):
    """ObservedCluster is what the metrics read of a cluster's state."""

    reports: dict[YarnNodeId, NodeReport]
    error: str
    last_success: float
    round_s: float
    rounds: Counter[str]
    updates: Counter[str]


def operator_readings(
    clusters: Mapping[str, ObservedCluster], problems: Iterable[YarnProblem]
) -> Iterable[MetricReading]:
    nodes = [
        ((node.host, name), report.capability or ResourceMessage(), report.used or ResourceMessage())
        for name, state in clusters.items()
        for node, report in sorted(state.reports.items())
    ]
    yield CPU_RESOURCE.reading([(labels, float(offered.vcores)) for labels, offered, _ in nodes])
    yield MEMORY_RESOURCE.reading([(labels, float(offered.memory_mib * MIB)) for labels, offered, _ in nodes])
    yield CPU_ALLOCATED.reading([(labels, float(used.vcores)) for labels, _, used in nodes])
    yield MEMORY_ALLOCATED.reading([(labels, float(used.memory_mib * MIB)) for labels, _, used in nodes])
    for declared, counts in ((ROUNDS, "rounds"), (UPDATES, "updates")):
        yield declared.reading(
            [
                ((name, result), float(count))
                for name, state in clusters.items()
                for result, count in sorted(getattr(state, counts).items())
            ]
        )
    # A standby has no round, and says nothing about clusters.
    yield UP.reading([((name,), float(not state.error)) for name, state in clusters.items() if state.rounds])
    yield LAST_SUCCESS.reading([((name,), state.last_success) for name, state in clusters.items()])
    yield ROUND_SECONDS.reading([((name,), state.round_s) for name, state in clusters.items()])
    counted = Counter(one.reason for one in problems)
    yield PROBLEMS.reading([((reason,), float(count)) for reason, count in sorted(counted.items())])


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    interval_s: float = 5.0  # between two rounds of a cluster
    longest_wait_s: float = 30.0  # between two rounds of one that fails
    over_commit_timeout_ms: int = 600_000  # how long containers beyond a smaller capacity live on; -1: for ever
    absence_grace_s: float = 60.0  # how long an unlisted NodeManager still holds what it held


UNREACHABLE, DENIED, REFUSED, BROKEN = "unreachable", "denied", "refused", "broken"


class RoundFailure(msgspec.Struct, frozen=True):
    """RoundFailure says what kept a round from its end; `kind` is one of the four words above."""

    kind: str
    text: str


def failure_of(what: str, failure: CallFailure) -> RoundFailure:
    kind = UNREACHABLE if isinstance(failure, NoActiveManager) else REFUSED
    if isinstance(failure, RpcException) and failure.is_access_denied:
        kind = DENIED
    return RoundFailure(kind, f"{what}: {failure}")


class YarnClusterState(msgspec.Struct):
    """YarnClusterState is what the last rounds of a cluster showed."""

    reports: dict[YarnNodeId, NodeReport] = {}
    seen: SeenNodeManagers = {}
    held: dict[str, BatchAmounts | None] = {}  # by node, of those that are seen
    problems: tuple[YarnProblem, ...] = ()
    error: str = "no round has ended yet"
    failure: str = ""  # the kind of the failure
    allowed_by: ResourceManagerAddress | None = None  # the ResourceManager that took the last change
    last_success: float = 0.0  # Unix time
    round_s: float = 0.0
    rounds: Counter[str] = msgspec.field(default_factory=Counter)
    updates: Counter[str] = msgspec.field(default_factory=Counter)


_LOG = logging.getLogger(__name__)
_BY_NODE, _NODE_MANAGERS = "yarn-node", "yarn-node-managers"
WRITERS = 16  # node patches under way at once, which is what bounds the load of the API server
CLUSTERS_PATH = "/yarn/clusters"  # below /apis/v1 of the port of the metrics


class YarnOperator:
    """YarnOperator is the program of a ControllerProcess. Build it before the informers start."""

    rights: ClassVar[tuple[RbacRule, ...]] = (
        *lease_rules(OPERATOR_LEASE),
        RbacRule("", ("nodes", "pods"), READ_VERBS),
        RbacRule("", ("nodes",), ("patch",)),
    )

    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        clock: Clock,
        clusters: Sequence[ResourceManagerClient],
        settings: OperatorSettings,
        *,
        registry: MetricRegistry,
        rng: Random | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._settings = settings
        self._rng = rng or Random()
        self._managers = tuple(clusters)
        self.clusters: dict[str, YarnClusterState] = {one.cluster.id: YarnClusterState() for one in clusters}
        self.nodes = informers.for_resource(NODES, transform=transform_node)
        self.pods = informers.for_resource(PODS, transform=transform_pod)
        if not self.pods.has_index(_BY_NODE):
            self.pods.add_index(_BY_NODE, lambda pod: (pod.spec.node_name,))
            self.pods.add_index(_NODE_MANAGERS, lambda pod: () if pod.node_manager is None else ("",))
        self.placement_problems: tuple[YarnProblem, ...] = ()
        self._queue: WorkQueue[str] = WorkQueue(clock, name="yarnresource")
        self._failures = RateLimitedLog(_LOG, clock)
        self._told: set[YarnProblem] = set()
        registry.source(self.readings)

    # The program -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start nothing: a standby only watches."""

    async def on_synced(self) -> None:
        """Take in nothing: rounds read the caches."""

    async def lead(self) -> None:
        self._queue = WorkQueue(self._clock, name="yarnresource")
        writer = Controller("yarnresource", self._queue, self.write_held, workers=WRITERS)
        _LOG.info("YARN clusters: %s", ", ".join(self.clusters))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(writer.run(), name="yarnresource")
                group.create_task(self._release_forever(), name="yarn-release")
                for one in self._managers:
                    group.create_task(self._run_cluster(one), name=f"yarn-{one.cluster.id}")
        finally:
            self._queue.shutdown(drain=False)

    async def stop(self) -> None:
        self._queue.shutdown(drain=False)

    def readings(self) -> Iterable[MetricReading]:
        problems = (*self.placement_problems, *(one for state in self.clusters.values() for one in state.problems))
        return operator_readings(self.clusters, problems)

    def describe(self) -> dict[str, Any]:
        """Return the state of each cluster, as plain data for people and for `koord doctor`."""
        return {
            "clusters": [
                {
                    "id": one.cluster.id,
                    "resourceManagers": [str(manager.admin) for manager in one.cluster.managers],
                    "active": str(one.active.admin),
                    "nodeManagers": len(state.reports),
                    "failure": state.failure,
                    "error": state.error,
                    "problems": [f"node {problem.node}: {problem.text}" for problem in state.problems],
                }
                for one, state in zip(self._managers, self.clusters.values(), strict=True)
            ],
            "problems": [f"node {one.node}: {one.text}" for one in self.placement_problems],
        }

    # Clusters ----------------------------------------------------------------------------------------------------

    async def _run_cluster(self, manager: ResourceManagerClient) -> None:
        longest = max(self._settings.longest_wait_s, self._settings.interval_s)
        backoff = JitteredBackoff(self._clock, self._rng, self._settings.interval_s, longest, jitter=0.2)
        while True:
            try:
                failure = await self.run_round(manager)
            except Exception as trouble:  # noqa: BLE001  one cluster must not stop the others; it is logged and counted
                _LOG.error("YARN cluster %s: the round failed", manager.cluster.id, exc_info=trouble)
                failure = self._end_round(manager, RoundFailure(BROKEN, f"{type(trouble).__name__}: {trouble}"))
            if failure is None:
                backoff.reset()
            await self._clock.sleep(self._settings.interval_s if failure is None else backoff.next())

    async def run_round(self, manager: ResourceManagerClient) -> RoundFailure | None:
        """Bring one cluster in line once, and return what kept it from that."""
        state = self.clusters[manager.cluster.id]
        started = self._clock.monotonic()
        listed = await manager.nodes()
        if not isinstance(listed, tuple):
            return self._end_round(manager, failure_of("nodes are not listed", listed))
        state.reports = {
            YarnNodeId(one.node_id.host, one.node_id.port): one for one in listed if one.node_id is not None
        }
        placed = self._placed(manager.cluster.id)
        nodes = {one.node: node for one in placed if (node := self.nodes.get("", one.node)) is not None}
        requested = {name: self._requested(name) for name in nodes}
        plan = decide_cluster(placed, nodes, requested, state.reports)
        state.problems = plan.problems
        self._tell(manager.cluster.id, (*self.placement_problems, *plan.problems))
        self._note_held(manager.cluster.id, placed)
        refused = await self._send(manager, plan.updates)
        state.round_s = self._clock.monotonic() - started
        return self._end_round(manager, refused)

    def _end_round(self, manager: ResourceManagerClient, failure: RoundFailure | None) -> RoundFailure | None:
        state = self.clusters[manager.cluster.id]
        state.rounds["succeeded" if failure is None else "failed"] += 1
        if failure is not None:
            self._failures.warning("YARN cluster %s: %s", manager.cluster.id, failure.text)
        else:
            if state.error:
                _LOG.info("YARN cluster %s: in line, by %s", manager.cluster.id, manager.active.client)
            state.last_success = self._clock.time()
        state.error, state.failure = ("", "") if failure is None else (failure.text, failure.kind)
        return failure

    def _placed(self, cluster: str) -> list[PlacedNodeManager]:
        pods = self.pods.by_index(_NODE_MANAGERS, "")
        placed, self.placement_problems = place_node_managers(pods, tuple(self.clusters))
        return [one for one in placed.values() if one.cluster == cluster]

    def _requested(self, node: str) -> BatchAmounts:
        total = BatchAmounts()
        for pod in self.pods.by_index(_BY_NODE, node):
            total += pod.requested
        return total

    async def _send(self, manager: ResourceManagerClient, updates: Sequence[CapacityUpdate]) -> RoundFailure | None:
        """Send all updates at once. A ResourceManager takes all or none, so that after a refusal each goes alone.

        Without any update a call is made once to each new active one, which shows whether changes are allowed.
        """
        if not updates and self.clusters[manager.cluster.id].allowed_by == manager.active:
            return None
        refused = await self._send_some(manager, updates)
        if refused is None:
            return None
        if len(updates) <= 1 or not isinstance(refused, RpcException) or refused.is_access_denied:
            return failure_of(f"{len(updates)} NodeManagers are not updated", refused)
        alone = [(one, await self._send_some(manager, (one,))) for one in updates]
        failed = [(one, why) for one, why in alone if why is not None]
        if not failed:
            return None
        (one, why), count = failed[0], len(failed)
        return failure_of(f"{count} NodeManagers are not updated, first {one.placed.node_id}", why)

    async def _send_some(self, manager: ResourceManagerClient, updates: Sequence[CapacityUpdate]) -> CallFailure | None:
        timeout_ms = self._settings.over_commit_timeout_ms
        refused = await manager.update(
            [
                NodeResource(
                    NodeIdMessage(one.placed.node_id.host, one.placed.node_id.port),
                    ResourceOption(one.wanted, timeout_ms),
                )
                for one in updates
            ]
        )
        state = self.clusters[manager.cluster.id]
        state.updates["succeeded" if refused is None else "failed"] += len(updates)
        if refused is None:
            state.allowed_by = manager.active
            for one in updates:
                _LOG.debug("%s offers %s, before %s", one.placed.node_id, one.wanted, one.present)
        return refused

    def _tell(self, cluster: str, problems: Sequence[YarnProblem]) -> None:
        """Log each problem once for as long as it lasts."""
        present = set(problems)
        for one in sorted(present - self._told, key=lambda one: (one.node, one.reason)):
            _LOG.warning("YARN cluster %s, node %s: %s", cluster, one.node, one.text)
        others = {one for state in self.clusters.values() for one in state.problems}
        self._told = present | (self._told & others)

    # What YARN holds ---------------------------------------------------------------------------------------------

    def _note_held(self, cluster: str, placed: Sequence[PlacedNodeManager]) -> None:
        state = self.clusters[cluster]
        known = {key: one for key, one in state.seen.items() if self.nodes.get("", key[0]) is not None}
        state.seen = decide_held(placed, known, state.reports, self._clock.monotonic(), self._settings.absence_grace_s)
        state.held = total_held(state.seen)
        for name in state.held:
            node, held = self.nodes.get("", name), self._held(name)
            if node is not None and held is not None and _stated(node) != held:
                self._queue.add(name)

    def _held(self, node: str) -> BatchAmounts | None:
        """Return what YARN holds of a node in all clusters; None while that of a NodeManager is not known."""
        total = BatchAmounts()
        for state in self.clusters.values():
            held = state.held.get(node, BatchAmounts())
            if held is None:
                return None
            total += held
        return total

    async def _release_forever(self) -> None:
        while True:
            await self._clock.sleep(self._settings.interval_s)
            self.release()

    def release(self) -> None:
        """Queue the nodes that say that YARN holds something and have no NodeManager any more."""
        for node in self.nodes.list():
            if not self._is_seen(node.metadata.name) and _stated(node) != BatchAmounts():
                self._queue.add(node.metadata.name)

    async def write_held(self, name: str) -> ReconcileResult:
        """Write what YARN holds of a node. A node that has a NodeManager of which nothing is known stays as it is."""
        node, held = self.nodes.get("", name), self._held(name)
        if node is None or held is None or _stated(node) == held:
            return Done()
        if held == BatchAmounts() and self._has_unknown_manager(name):
            return Done()
        text = with_yarn_allocation(node.metadata.annotations, held)
        if isinstance(text, MalformedAnnotation):
            self._failures.warning("node %s: what YARN holds cannot be written: %s", name, text)
            return Done()
        patch = {"metadata": {"annotations": {A_THIRD_PARTY_ALLOCATIONS: text}}}
        answer = await self._client.dynamic.patch(builtin_kinds.NODES, name, patch, kind="merge", uid=node.metadata.uid)
        if isinstance(answer, ApiError) and not answer.not_found:
            return Requeue(str(answer))
        return Done()

    def _has_unknown_manager(self, node: str) -> bool:
        """Return whether a node has a NodeManager that no round has looked at, as of a cluster that fails."""
        if self._is_seen(node):
            return False
        return any(pod.node_manager is not None for pod in self.pods.by_index(_BY_NODE, node))

    def _is_seen(self, node: str) -> bool:
        return any(node in state.held for state in self.clusters.values())


def _stated(node: YarnNode) -> BatchAmounts:
    return held_by_yarn(node.metadata.annotations) or BatchAmounts()
