"""Write the NodeMetric status of simulated nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from koord.api import custom
from koord.api.config.slo.colocation import DEFAULT
from koord.api.meta import Object, ObjectMeta
from koord.api.slo import MetricCollectPolicy, NodeMetricSpec
from koord.embedded.kubelet.behaviour import chance
from koord.embedded.kubelet.host import Host
from koord.embedded.kubelet.report import Sample, sample_of, status_of
from koord.kube.cache import Change
from koord.kube.client import Client
from koord.kube.controller import Controller, Done, Outcome, Requeue, Retry
from koord.kube.informers import Informers
from koord.kube.refused import Refused
from koord.kube.subscription import Subscription
from koord.kube.workqueue import WorkQueue
from koord.telemetry.clock import Clock
from koord.values.duration import parse_seconds

FIRST_WITHIN_S = 10.0  # a new node does not wait for a whole interval, and not all new nodes report at once
WORKERS = 4


class Asked(Object, frozen=True, kw_only=True):
    """A NodeMetric without its status."""

    spec: NodeMetricSpec = NodeMetricSpec()


ASKED = custom.NODE_METRICS.viewed(Asked)


def _slim(metric: Asked) -> Asked:
    meta = metric.metadata
    return Asked(
        metadata=ObjectMeta(name=meta.name, uid=meta.uid, resource_version=meta.resource_version), spec=metric.spec
    )


class Reporter:
    def __init__(
        self, client: Client, informers: Informers, clock: Clock, seed: int, hosts: Mapping[str, Host]
    ) -> None:
        self._client = client
        self._clock = clock
        self._seed = seed
        self._hosts = hosts
        self._asked = informers.of(ASKED, transform=_slim)
        self._news: Subscription[Asked] | None = None
        self._queue: WorkQueue[str] = WorkQueue(clock, name="simulated-reports")
        self._controller = Controller("simulated-reports", self._queue, self._report, workers=WORKERS)
        self._history: dict[str, deque[Sample]] = {}

    def listen(self) -> None:
        self._news = self._asked.on(self._hear)

    def ignore(self) -> None:
        if self._news is not None:
            self._asked.off(self._news)
        self._queue.shutdown(drain=False)

    async def run(self) -> None:
        await self._controller.run()

    def _hear(self, change: Change[Asked]) -> None:
        name = change.object.metadata.name
        if change.kind == "deleted":
            self._history.pop(name, None)
        elif change.kind == "added" and name in self._hosts:
            self._queue.add_after(name, FIRST_WITHIN_S * chance(self._seed, f"{name}/report"))

    async def _report(self, name: str) -> Outcome:
        asked, host = self._asked.get("", name), self._hosts.get(name)
        if asked is None or host is None:
            self._history.pop(name, None)
            return Done()
        policy = asked.spec.metric_collect_policy or MetricCollectPolicy()
        interval_s = policy.report_interval_seconds or DEFAULT.metric_report_interval_seconds or 60
        if host.failure in ("machine", "partition"):  # with only its kubelet down it can still report
            return Retry(interval_s)
        aggregate = policy.node_aggregate_policy
        windows = () if aggregate is None else aggregate.durations
        now = self._clock.time()
        usage = host.usage(now, self._seed)
        history = self._history.setdefault(name, deque())
        history.append(sample_of(now, host.tenants, usage))
        oldest = now - max((parse_seconds(window) for window in windows), default=0.0)
        while history[0].at < oldest:
            history.popleft()
        patch = {"status": status_of(host.tenants, usage, history, windows)}
        answer = await self._client.plain.patch(
            custom.NODE_METRICS, name, patch, kind="merge", subresource="status", uid=asked.metadata.uid
        )
        if not isinstance(answer, Refused):
            return Retry(interval_s)
        return Done() if answer.not_found else Requeue(str(answer))
