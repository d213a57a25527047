"""Report simulated nodes as their kubelets and agents do: Leases on a timing wheel and full Node statuses now and
then, all from one task; and NodeMetric statuses, as often as each NodeMetric's spec asks for.

The wheel has as many slots as the period has ticks. Each node is in one slot, so writes are spread
evenly over the period. The Node status is written with every Nth turn, and soon after `report_soon` was
called.

It stands in for koordlet's measuring, not for its predictions: it expects the highest usage of prod
pods in its window and a tenth on top. There is nothing to do while no program creates NodeMetrics.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koord.api.config.slo.slo_documents import DEFAULT_COLOCATION
from koord.api.koordinator import custom_kinds
from koord.api.koordinator.protocol import PROD
from koord.api.koordinator.slo import MetricCollectPolicy, NodeMetricSpec
from koord.api.kubernetes.builtin_kinds import LEASES, NODES
from koord.api.kubernetes.meta import Object, ObjectMeta
from koord.embedded.kubelet import node_objects as objects
from koord.embedded.kubelet.node_objects import rfc3339_seconds
from koord.embedded.kubelet.pod_behaviour import seeded_uniform
from koord.embedded.kubelet.simulated_host import HostUsage, SimulatedHost, SimulatedPod
from koord.embedded.kubelet.usage_model import ZERO_USAGE, SimulatedUsage
from koord.kube.client import request_builder
from koord.kube.client.typed_client import Client
from koord.kube.controller.controller import Controller, Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import HandlerRegistration
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.telemetry.clock import Clock
from koord.values import timestamp
from koord.values.duration import parse_seconds
from koord.values.quantity import Format, Quantity
from koord.values.resources import CPU, MEMORY

_LOG = logging.getLogger(__name__)

# A kubelet renews its Lease every 10 s, a quarter of the Lease's duration; the node controller waits for 40 s or more.
LEASE_PERIOD_S = 10.0
STATUS_PERIOD_S = 300.0
HEARTBEAT_TICK_S = 0.5
CONCURRENT_WRITES = 8  # writes under way at once: they only matter where a network is between


class HeartbeatCounts(msgspec.Struct, kw_only=True):
    leases: int = 0
    statuses: int = 0
    failed: int = 0


class HeartbeatLoop:
    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        lease_period_s: float,
        status_period_s: float,
        tick_s: float = HEARTBEAT_TICK_S,
    ) -> None:
        self.counts = HeartbeatCounts()
        self._client = client
        self._clock = clock
        self._tick_s = min(tick_s, lease_period_s)
        self._slots: list[dict[str, SimulatedHost]] = [{} for _ in range(max(1, round(lease_period_s / self._tick_s)))]
        self._turns_per_status = max(1, round(status_period_s / lease_period_s))
        self._turn = 0
        self._slot_of: dict[str, int] = {}
        self._urgent: dict[str, SimulatedHost] = {}
        self._next = 0
        self._limited_log = RateLimitedLog(_LOG, clock)

    def add(self, host: SimulatedHost) -> None:
        slot = self._next % len(self._slots)
        self._next += 1
        self._slot_of[host.name] = slot
        self._slots[slot][host.name] = host

    def remove(self, host: SimulatedHost) -> None:
        slot = self._slot_of.pop(host.name, None)
        if slot is not None:
            del self._slots[slot][host.name]
        self._urgent.pop(host.name, None)

    def report_soon(self, host: SimulatedHost) -> None:
        """Write the Node status of the host with the next tick."""
        self._urgent[host.name] = host

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        at = 0
        due = self._clock.monotonic()
        while True:
            due += self._tick_s
            await self._clock.sleep(max(0.0, due - self._clock.monotonic()))
            in_slot = list(self._slots[at].values())
            slot = [host for host in in_slot if self._is_reporting(host)]
            urgent, self._urgent = self._urgent, {}
            # Neighbours in a slot write their status in different turns, so that statuses are spread as well.
            status_due = [h for n, h in enumerate(in_slot) if (self._turn + n) % self._turns_per_status == 0]
            reporting = {h.name: h for h in (*status_due, *urgent.values()) if self._is_reporting(h)}
            await self._write_concurrently(slot, self._renew)
            await self._write_concurrently(list(reporting.values()), self._write_status)
            at += 1
            if at == len(self._slots):
                at = 0
                self._turn += 1

    def _is_reporting(self, host: SimulatedHost) -> bool:
        return host.failure is None and host.uid != ""

    async def _write_concurrently(
        self, hosts: list[SimulatedHost], write: Callable[[SimulatedHost], Awaitable[None]]
    ) -> None:
        if not hosts:
            return

        async def lane(number: int) -> None:
            for host in hosts[number::CONCURRENT_WRITES]:
                await write(host)

        await asyncio.gather(*(lane(number) for number in range(min(CONCURRENT_WRITES, len(hosts)))))

    async def _renew(self, host: SimulatedHost) -> None:
        patch = {"spec": {"renewTime": timestamp.unix_micro_text(self._clock.time())}}
        request = request_builder.patch(LEASES, host.name, patch, objects.LEASE_NAMESPACE, kind="merge")
        refused = await self._send(request, "lease", host)
        self.counts.leases += 1
        if refused is not None and refused.not_found:
            lease = objects.lease_object(host.name, host.uid, self._clock.time())
            await self._send(request_builder.create(LEASES, lease), "lease", host)

    async def _write_status(self, host: SimulatedHost) -> None:
        conditions = objects.node_conditions(self._clock.time(), host.kubelet_started_at, host.pressures)
        patch: dict[str, Any] = {"status": {"conditions": conditions}}
        if host.extended_changes:
            patch["status"]["allocatable"] = host.extended_changes
        request = request_builder.patch(NODES, host.name, patch, kind="strategic", subresource="status")
        await self._send(request, "status", host)
        self.counts.statuses += 1

    async def _send(self, request: Any, what: str, host: SimulatedHost) -> ApiError | None:
        """Send one heartbeat. A lost one is logged and counted, not retried: the next one follows."""
        try:
            answer = await self._client.raw(request)
        except TRANSIENT_ERRORS as error:
            self.counts.failed += 1
            self._limited_log.warning("%s of node %s not written: %s", what, host.name, error)
            return None
        if answer.ok:
            return None
        refused = error_from_response(answer)
        self.counts.failed += 1
        self._limited_log.warning("%s of node %s refused: %s", what, host.name, refused)
        return refused


PROD_PEAK_PERCENT = 110  # of the highest use seen is expected of prod pods
AGGREGATES = (("avg", None), ("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99))


class HostUsageSample(msgspec.Struct, frozen=True, gc=False):
    """A sample of the usage of a host at one moment."""

    at: float
    total: SimulatedUsage
    prod: SimulatedUsage


def take_sample(at: float, sim_pods: Mapping[str, SimulatedPod], usage: HostUsage) -> HostUsageSample:
    return HostUsageSample(
        at, usage.total, _sum_usage(usage.pods[uid] for uid, sim_pod in sim_pods.items() if _is_prod(sim_pod))
    )


def node_metric_status(
    sim_pods: Mapping[str, SimulatedPod], usage: HostUsage, history: Sequence[HostUsageSample], windows: Sequence[str]
) -> dict[str, Any]:
    """Build the status of a NodeMetric. `history` is not empty, oldest first, and ends with `usage`; `windows`
    are durations.

    A pod that does not run is left out: its usage is not known yet, which is not the same as zero.
    """
    last = history[-1]
    running = {uid: sim_pod for uid, sim_pod in sorted(sim_pods.items()) if sim_pod.is_running}
    return {
        "updateTime": rfc3339_seconds(last.at),
        "nodeMetric": {
            "nodeUsage": _resource_map(usage.total),
            "systemUsage": _resource_map(usage.system),
            "aggregatedNodeUsages": [_aggregated(history, last.at, window) for window in windows],
        },
        "podsMetric": [
            {
                "namespace": sim_pod.view.metadata.namespace,
                "name": sim_pod.view.metadata.name,
                "podUsage": _resource_map(usage.pods[uid]),
                "priority": sim_pod.view.priority_class,
                "qos": sim_pod.view.qos,
            }
            for uid, sim_pod in running.items()
        ],
        "prodReclaimableMetric": {"resource": _resource_map(_reclaimable(running.values(), history))},
    }


def _reclaimable(running: Iterable[SimulatedPod], history: Sequence[HostUsageSample]) -> SimulatedUsage:
    asked = [sim_pod.template.requests for sim_pod in running if _is_prod(sim_pod)]
    cpu, memory = (sum(request.get(name, 0) for request in asked) for name in (CPU, MEMORY))
    return SimulatedUsage(
        max(0, cpu - max(sample.prod.cpu_milli for sample in history) * PROD_PEAK_PERCENT // 100),
        max(0, memory - max(sample.prod.memory_bytes for sample in history) * PROD_PEAK_PERCENT // 100),
    )


def _aggregated(history: Sequence[HostUsageSample], now: float, window: str) -> dict[str, Any]:
    since = now - parse_seconds(window)
    seen = [sample.total for sample in history if sample.at > since] or [history[-1].total]
    cpu = sorted(usage.cpu_milli for usage in seen)
    memory = sorted(usage.memory_bytes for usage in seen)
    usages = {
        name: _resource_map(SimulatedUsage(_aggregate(cpu, rank), _aggregate(memory, rank)))
        for name, rank in AGGREGATES
    }
    return {"usage": usages, "duration": window}


def _aggregate(ordered: Sequence[int], percentile: int | None) -> int:
    """Return the nearest-rank percentile, or the mean for None."""
    if percentile is None:
        return sum(ordered) // len(ordered)
    return ordered[-(-len(ordered) * percentile // 100) - 1]


def _is_prod(sim_pod: SimulatedPod) -> bool:
    return sim_pod.view.priority_class == PROD


def _sum_usage(usages: Iterable[SimulatedUsage]) -> SimulatedUsage:
    total = ZERO_USAGE
    for usage in usages:
        total = total.plus(usage)
    return total


def _resource_map(usage: SimulatedUsage) -> dict[str, Any]:
    cpu, memory = Quantity.from_milli(usage.cpu_milli), Quantity.from_value(usage.memory_bytes, Format.BINARY_SI)
    return {"resources": {CPU: str(cpu), MEMORY: str(memory)}}


FIRST_REPORT_WITHIN_S = 10.0  # a new node does not wait for a whole interval, and not all new nodes report at once
WORKERS = 4


class NodeMetricSpecView(Object, frozen=True, kw_only=True):
    """A NodeMetric without its status."""

    spec: NodeMetricSpec = NodeMetricSpec()


NODE_METRIC_SPECS = custom_kinds.NODE_METRICS.with_model(NodeMetricSpecView)


def _slim_node_metric(metric: NodeMetricSpecView) -> NodeMetricSpecView:
    meta = metric.metadata
    return NodeMetricSpecView(
        metadata=ObjectMeta(name=meta.name, uid=meta.uid, resource_version=meta.resource_version), spec=metric.spec
    )


class SimulatedNodeMetricReporter:
    def __init__(
        self, client: Client, informers: InformerFactory, clock: Clock, seed: int, hosts: Mapping[str, SimulatedHost]
    ) -> None:
        self._client = client
        self._clock = clock
        self._seed = seed
        self._hosts = hosts
        self._node_metrics = informers.for_resource(NODE_METRIC_SPECS, transform=_slim_node_metric)
        self._subscription: HandlerRegistration[NodeMetricSpecView] | None = None
        self._queue: WorkQueue[str] = WorkQueue(clock, name="simulated-reports")
        self._controller = Controller("simulated-reports", self._queue, self._report, workers=WORKERS)
        self._history: dict[str, deque[HostUsageSample]] = {}

    def subscribe(self) -> None:
        self._subscription = self._node_metrics.add_event_handler(self._on_node_metric)

    def stop(self) -> None:
        if self._subscription is not None:
            self._node_metrics.remove_event_handler(self._subscription)
        self._queue.shutdown(drain=False)

    async def run(self) -> None:
        await self._controller.run()

    def _on_node_metric(self, change: ObjectChange[NodeMetricSpecView]) -> None:
        name = change.object.metadata.name
        if change.kind == "deleted":
            self._history.pop(name, None)
        elif change.kind == "added" and name in self._hosts:
            self._queue.add_after(name, FIRST_REPORT_WITHIN_S * seeded_uniform(self._seed, f"{name}/report"))

    async def _report(self, name: str) -> ReconcileResult:
        asked, host = self._node_metrics.get("", name), self._hosts.get(name)
        if asked is None or host is None:
            self._history.pop(name, None)
            return Done()
        policy = asked.spec.metric_collect_policy or MetricCollectPolicy()
        interval_s = policy.report_interval_seconds or DEFAULT_COLOCATION.metric_report_interval_seconds or 60
        if host.failure in ("machine", "partition"):  # with only its kubelet down it can still report
            return RequeueAfter(interval_s)
        aggregate = policy.node_aggregate_policy
        windows = () if aggregate is None else aggregate.durations
        now = self._clock.time()
        usage = host.usage(now, self._seed)
        history = self._history.setdefault(name, deque())
        history.append(take_sample(now, host.sim_pods, usage))
        oldest = now - max((parse_seconds(window) for window in windows), default=0.0)
        while history[0].at < oldest:
            history.popleft()
        patch = {"status": node_metric_status(host.sim_pods, usage, history, windows)}
        answer = await self._client.dynamic.patch(
            custom_kinds.NODE_METRICS, name, patch, kind="merge", subresource="status", uid=asked.metadata.uid
        )
        if not isinstance(answer, ApiError):
            return RequeueAfter(interval_s)
        return Done() if answer.not_found else Requeue(str(answer))
