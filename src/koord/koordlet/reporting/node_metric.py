"""Write the status of this node's NodeMetric as often as its spec asks for.

`koord.koordlet.report.status` builds the report; it is made of fresh samples, or it is withheld.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from koord.api.custom import NODE_METRICS
from koord.api.model import to_dict
from koord.api.slo import NodeMetric, NodeMetricStatus
from koord.api.slo_strategy import HostApplicationSpec
from koord.koordlet.pod import PodView
from koord.koordlet.report.policy import ReportPolicy, report_policy
from koord.koordlet.report.status import FRESH_S, Gpu, ReportView, Withheld, build_node_metric
from koord.koordlet.reporting.standing import Standing
from koord.koordlet.series import kind as series_kind
from koord.koordlet.series.store import Store
from koord.kube.cache import Change
from koord.kube.client import Client
from koord.kube.informer import Informer
from koord.kube.outage import OUTAGE
from koord.kube.refused import Refused
from koord.policy.prediction.reclaimable import Prediction
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)
RETRY_S = 10.0  # after a failed write
# Longer windows than these are answered as far as they go: pods are many, and their history is the users' memory.
_LONGEST_NODE_S, _LONGEST_POD_S = 6 * 3600, 1800


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What a report needs besides series. `pods` is None until they are known, and then there is no report."""

    pods: tuple[PodView, ...] | None = None
    applications: tuple[HostApplicationSpec, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    prediction: Prediction | None = None
    hot_pages: bool = False
    fresh_s: float = FRESH_S  # how old the newest sample may be


class NodeMetricReporter:
    """Run it in a task. `read_inputs` is called right before every report; `metrics` follows this node's NodeMetric."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        node_name: str,
        store: Store,
        metrics: Informer[NodeMetric],
        sight: Callable[[], Sight],
    ) -> None:
        self._client = client
        self._clock = clock
        self._node_name = node_name
        self._store = store
        self._metrics = metrics
        self._sight = sight
        self._changed = asyncio.Event()
        self._standing = Standing(_LOG, "the NodeMetric is written", "the NodeMetric is not written")
        self.last: NodeMetricStatus | None = None  # as it was written
        self.reported_s: float | None = None

    @property
    def policy(self) -> ReportPolicy:
        """Return what the NodeMetric asks for now; the defaults while there is none."""
        found = self._metrics.get("", self._node_name)
        return ReportPolicy() if found is None else report_policy(found.spec)

    @property
    def problem(self) -> str:
        return self._standing.problem

    async def run(self) -> None:
        """Report periodically until cancelled."""
        subscription = self._metrics.on(self._noticed)
        try:
            wait_s = float(self.policy.report_s)
            while True:
                await self._wait(wait_s)
                wait_s = float(self.policy.report_s) if await self.report() else min(RETRY_S, self.policy.report_s)
        finally:
            self._metrics.off(subscription)

    async def report(self) -> bool:
        """Build and write one report now. Return whether nothing is left to do before the next one is due."""
        found = self._metrics.get("", self._node_name)
        if found is None:
            self._standing.fails("there is no NodeMetric of this node yet")
            return True
        built = self._build()
        if isinstance(built, Withheld):
            self._standing.fails(built.why)
            return False
        patch = [{"op": "add", "path": "/status", "value": to_dict(built)}]
        uid = found.metadata.uid
        try:
            answer = await self._client.patch(
                NODE_METRICS, self._node_name, patch, kind="json", subresource="status", uid=uid
            )
        except OUTAGE as failure:
            self._standing.fails(str(failure))
            return False
        if isinstance(answer, Refused):
            self._standing.fails(str(answer))
            return answer.not_found  # it was deleted: the manager makes a new one
        self._standing.works()
        self.last, self.reported_s = built, self._clock.time()
        return True

    def _build(self) -> NodeMetricStatus | Withheld:
        seen = self._sight()
        if seen.pods is None:
            return Withheld("the pods of this node are not known yet")
        return build_node_metric(
            ReportView(
                series=self._store,
                now_s=self._clock.time(),
                policy=self.policy,
                pods=seen.pods,
                applications=seen.applications,
                numa_nodes=seen.numa_nodes,
                gpus=seen.gpus,
                prediction=seen.prediction,
                hot_pages=seen.hot_pages,
                fresh_s=seen.fresh_s,
            )
        )

    def _provide(self) -> None:
        """Extend the retention of series to the windows of the policy."""
        policy = self.policy
        longest_s = min(int(policy.longest_s), _LONGEST_NODE_S)
        self._store.keep_longer(
            series_kind.keep_s(aggregate_s=min(policy.aggregate_s, _LONGEST_POD_S), longest_s=longest_s)
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

    def _noticed(self, change: Change[NodeMetric]) -> None:
        if change.old is None or change.old.spec != change.object.spec:
            self._provide()
            self._changed.set()
