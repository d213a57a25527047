"""Write the status of this node's NodeMetric as often as its spec asks for.

`koord.koordlet.reporters.builders.node_metric` builds the report; it is made of fresh samples, or it is withheld.

Its prediction of what prod pods will not need comes from usage models, which are trained here and kept in checkpoint
files across restarts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from koord.api.annotations import node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.koordinator.slo import HostApplicationSpec, NodeMetric, NodeMetricStatus
from koord.api.kubernetes import pod_resources
from koord.api.kubernetes.node import Node
from koord.api.model import to_dict
from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.reporters.builders import node_metric, reclaimable, usage_models
from koord.koordlet.reporters.builders import usage_models as training
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


_HALF_WRITTEN = (".tmp", ".new")


class PredictorSettings(msgspec.Struct, frozen=True, kw_only=True):
    folder: str = "/prediction-checkpoints"
    train_s: float = 60.0
    cold_start_s: float = reclaimable.COLD_START_S
    margin_percent: int = reclaimable.MARGIN_PERCENT
    models: usage_models.UsageModelSettings = usage_models.UsageModelSettings()


class Predictor:
    """Run it in a task. `pods` returns None until they are known."""

    def __init__(
        self,
        host: Host,
        store: SeriesStore,
        clock: Clock,
        pods: Callable[[], tuple[PodMeta, ...] | None],
        settings: PredictorSettings = PredictorSettings(),  # noqa: B008 - a frozen value
    ) -> None:
        self._host = host
        self._store = store
        self._clock = clock
        self._pods = pods
        self._settings = settings
        self._models = usage_models.UsageModels(settings.models)
        self._restored = False
        self._health = ProblemLog(
            _LOG,
            "checkpoints of predictions cannot be kept",
            "checkpoints of predictions are kept",
            begins_unknown=True,
        )

    @property
    def models(self) -> usage_models.UsageModels:
        return self._models

    @property
    def problem(self) -> str:
        return self._health.problem

    async def run(self) -> None:
        while True:
            self.step()
            await self._clock.sleep(self._settings.train_s)

    def step(self) -> None:
        """Train, expire and checkpoint the models once. The first call restores an earlier process's checkpoints."""
        pods = self._pods()
        if pods is None:
            return
        if not self._restored:
            self._restored = True
            self._restore(pods)
        now_s = self._clock.time()
        self._models.train(now_s, training.training_samples(self._store, now_s, pods))
        for uid in self._models.expire(now_s):
            self._remove_checkpoint(uid)
        for saved in self._models.checkpoints(now_s):
            self._write_checkpoint(saved)

    def forecast(self, node: Node | None) -> reclaimable.Reclaimable | reclaimable.Unpredictable:
        """Predict what prod pods will not need, or say why nothing can be predicted."""
        pods = self._pods()
        if pods is None:
            return reclaimable.Unpredictable("the pods of this node are not known yet")
        limits = usage_models.PredictionLimits(
            margin_percent=self._settings.margin_percent, cold_start_s=self._settings.cold_start_s
        )
        allocatable = None if node is None else raw_allocatable(node)
        return reclaimable.decide_reclaimable(
            training.reclaimable_view(self._models, self._clock.time(), pods, allocatable, limits)
        )

    # -- files

    def _restore(self, pods: tuple[PodMeta, ...]) -> None:
        names = self._host.list_names(self._settings.folder)
        if isinstance(names, IoError):
            if not names.vanished:
                self._health.fails(str(names))
            return
        saved: list[usage_models.CheckpointFile] = []
        for name in names:
            text = None if name.endswith(_HALF_WRITTEN) else self._host.read(self._path(name))
            found = usage_models.read_checkpoint(name, text.encode()) if isinstance(text, str) else None
            if found is None:
                self._remove_checkpoint(name)  # half of a file, or one that nobody can read
            else:
                saved.append(found)
        useless = self._models.restore(saved, training.model_uids(pods), self._clock.time())
        # Without any pod, the pods may not have been listed yet: such files wait for the next start.
        for uid in useless if pods else ():
            self._remove_checkpoint(uid)
        if saved:
            _LOG.info("%d models of earlier use were taken up, %d were of no more use", len(self._models), len(useless))

    def _write_checkpoint(self, saved: usage_models.CheckpointFile) -> None:
        io_error = self._host.replace_file(self._path(saved.UID), msgspec.json.encode(saved).decode())
        if io_error is None:
            self._health.works()
        else:
            self._health.fails(str(io_error))

    def _remove_checkpoint(self, name: str) -> None:
        io_error = self._host.remove_file(self._path(name))
        if io_error is not None:
            self._health.fails(str(io_error))

    def _path(self, name: str) -> str:
        return f"{self._settings.folder}/{name}"


def raw_allocatable(node: Node) -> reclaimable.ResourceAmount:
    raw = node_codecs.parse_raw_allocatable(node.metadata.annotations)
    listed = node.status.allocatable if raw is None or isinstance(raw, MalformedAnnotation) else raw
    amounts = pod_resources.resource_amounts(listed)
    return reclaimable.ResourceAmount(amounts.get(CPU, 0), amounts.get(MEMORY, 0))
