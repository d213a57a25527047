"""Write the status of this node's NodeMetric as often as its spec asks for.

`koord.koordlet.reporters.builders.node_metric` builds the report; it is made of fresh samples, or it is withheld.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.koordinator.slo import HostApplicationSpec, NodeMetric, NodeMetricStatus
from koord.api.model import to_dict
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.reporters.builders import node_metric
from koord.koordlet.reporters.builders.reclaimable import PeakPrediction
from koord.koordlet.series import metric_kind as series_kind
from koord.koordlet.series.store import SeriesStore
from koord.kube.client.typed_client import Client
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)
RETRY_S = 10.0  # after a failed write
# Longer windows than these are answered as far as they go: pods are many, and their history is the users' memory.
_LONGEST_NODE_S, _LONGEST_POD_S = 6 * 3600, 1800


class NodeMetricInputs(msgspec.Struct, frozen=True, kw_only=True):
    """NodeMetricInputs is all that a report needs besides series. There is no report while `pods` is None:
    they are not known yet.
    """

    pods: tuple[PodMeta, ...] | None = None
    applications: tuple[HostApplicationSpec, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    gpus: tuple[node_metric.GpuIdentity, ...] = ()
    prediction: PeakPrediction | None = None
    hot_pages: bool = False
    max_sample_age_s: float = node_metric.MAX_SAMPLE_AGE_S  # how old the newest sample may be


class NodeMetricReporter:
    """Run it in a task. `read_inputs` is called right before every report; `metrics` follows this node's NodeMetric."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        node_name: str,
        store: SeriesStore,
        metrics: Informer[NodeMetric],
        read_inputs: Callable[[], NodeMetricInputs],
    ) -> None:
        self._client = client
        self._clock = clock
        self._node_name = node_name
        self._store = store
        self._metrics = metrics
        self._read_inputs = read_inputs
        self._changed = asyncio.Event()
        self._health = ProblemLog(
            _LOG, "the NodeMetric is not written", "the NodeMetric is written", begins_unknown=True
        )
        self.last: NodeMetricStatus | None = None  # as it was written
        self.reported_s: float | None = None

    @property
    def policy(self) -> node_metric.ReportPolicy:
        """Return what the NodeMetric asks for now; the defaults while there is none."""
        found = self._metrics.get("", self._node_name)
        return node_metric.ReportPolicy() if found is None else node_metric.report_policy(found.spec)

    @property
    def problem(self) -> str:
        return self._health.problem

    async def run(self) -> None:
        subscription = self._metrics.add_event_handler(self._on_metric_change)
        try:
            wait_s = float(self.policy.report_s)
            while True:
                await self._wait(wait_s)
                wait_s = float(self.policy.report_s) if await self.report() else min(RETRY_S, self.policy.report_s)
        finally:
            self._metrics.remove_event_handler(subscription)

    async def report(self) -> bool:
        """Build and write one report now. Return whether nothing is left to do before the next one is due."""
        found = self._metrics.get("", self._node_name)
        if found is None:
            self._health.fails("there is no NodeMetric of this node yet")
            return True
        built = self._build()
        if isinstance(built, node_metric.ReportWithheld):
            self._health.fails(built.why)
            return False
        patch = [{"op": "add", "path": "/status", "value": to_dict(built)}]
        uid = found.metadata.uid
        try:
            answer = await self._client.patch(
                NODE_METRICS, self._node_name, patch, kind="json", subresource="status", uid=uid
            )
        except TRANSIENT_ERRORS as failure:
            self._health.fails(str(failure))
            return False
        if isinstance(answer, ApiError):
            self._health.fails(str(answer))
            return answer.not_found  # it was deleted: the manager makes a new one
        self._health.works()
        self.last, self.reported_s = built, self._clock.time()
        return True

    def _build(self) -> NodeMetricStatus | node_metric.ReportWithheld:
        seen = self._read_inputs()
        if seen.pods is None:
            return node_metric.ReportWithheld("the pods of this node are not known yet")
        return node_metric.build_node_metric(
            node_metric.NodeMetricView(
                series=self._store,
                now_s=self._clock.time(),
                policy=self.policy,
                pods=seen.pods,
                applications=seen.applications,
                numa_nodes=seen.numa_nodes,
                gpus=seen.gpus,
                prediction=seen.prediction,
                hot_pages=seen.hot_pages,
                max_sample_age_s=seen.max_sample_age_s,
            )
        )

    def _extend_retention(self) -> None:
        """Extend the retention of series to the windows of the policy."""
        policy = self.policy
        longest_s = min(int(policy.longest_s), _LONGEST_NODE_S)
        self._store.extend_retention(
            series_kind.retention_s(aggregate_s=min(policy.aggregate_s, _LONGEST_POD_S), longest_s=longest_s)
        )

    async def _wait(self, wait_s: float) -> None:
        """Wait for the next report. A changed interval counts from the last report on."""
        started = self._clock.monotonic()
        while (left := wait_s - (self._clock.monotonic() - started)) > 0:
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                return
            wait_s = float(self.policy.report_s)

    def _on_metric_change(self, change: ObjectChange[NodeMetric]) -> None:
        if change.old is None or change.old.spec != change.object.spec:
            self._extend_retention()
            self._changed.set()
