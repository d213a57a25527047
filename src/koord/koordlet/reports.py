"""Build and wire the reporters of this node: NodeMetric with its predictions, NodeResourceTopology,
Device, interference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from koord.api.custom import DEVICES, NODE_METRICS, NODE_RESOURCE_TOPOLOGIES
from koord.host.host import Host
from koord.koordlet.engine import Engine
from koord.koordlet.facts import Kubelet
from koord.koordlet.outlook import Outlook
from koord.koordlet.pods.kubelet import KubeletClient
from koord.koordlet.pods.source import PodSource
from koord.koordlet.report.status import FRESH_S, Gpu
from koord.koordlet.reporting import node_metric, topology
from koord.koordlet.reporting.device import DeviceReporter
from koord.koordlet.reporting.interference import InterferenceReporter
from koord.koordlet.reporting.node_metric import NodeMetricReporter
from koord.koordlet.reporting.prediction import Predictor
from koord.koordlet.reporting.topology import TopologyReporter
from koord.koordlet.series.store import Store
from koord.koordlet.settings import Settings
from koord.kube.client import Client
from koord.kube.informers import Informers
from koord.kube.recorder import Recorder
from koord.policy.prediction.reclaimable import Reclaimable
from koord.telemetry.clock import Clock


class Reports:
    """The reporters of one agent; the agent runs each of `tasks` until it stops."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        settings: Settings,
        host: Host,
        store: Store,
        engine: Engine,
        outlook: Outlook,
        pods: PodSource,
        kubelet: KubeletClient,
        recorder: Recorder,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._outlook = outlook
        self._pods = pods
        mine = f"metadata.name={settings.node}"
        self.predictor = Predictor(host, store, clock, lambda: pods.views, settings.prediction)
        self.node_metric = NodeMetricReporter(
            client, clock, settings.node, store, informers.of(NODE_METRICS, fields=mine), self._metric_sight
        )
        self.topology = TopologyReporter(
            client,
            clock,
            host,
            kubelet,
            informers.of(NODE_RESOURCE_TOPOLOGIES, fields=mine),
            self._topology_sight,
            settings.topology,
        )

        self.devices = (
            DeviceReporter(
                client,
                clock,
                host,
                informers.of(DEVICES, fields=mine),
                lambda: outlook.node,
                settings.devices,
                lambda: (
                    (engine.collection.gpus, engine.collection.gpu_driver) if engine.collection.gpus_known else None
                ),
            )
            if settings.devices.wanted
            else None
        )
        self.interference = (
            InterferenceReporter(client, clock, store, recorder, lambda: pods.views, settings.interference)
            if settings.interference is not None
            else None
        )

    @property
    def tasks(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        tasks: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("prediction", self.predictor.run),
            ("topology", self.topology.run),
        ]
        if self._settings.reports_node_metric:
            tasks.append(("node-metric", self.node_metric.run))
        if self.devices is not None:
            tasks.append(("devices", self.devices.run))
        if self.interference is not None:
            tasks.append(("interference", self.interference.run))
        return tasks

    @property
    def kubelet(self) -> Kubelet:
        """Return the kubelet's CPU manager policy as the topology reporter last learned it."""
        told = self.topology.configuration
        return Kubelet() if told is None else Kubelet(cpu_manager_policy=told.cpu_manager_policy)

    @property
    def memory_policy(self) -> str:
        """Return which memory the NodeMetric asks to be collected."""
        return self.node_metric.policy.memory

    @property
    def problems(self) -> dict[str, str]:
        return {
            "nodeMetric": self.node_metric.problem,
            "topology": self.topology.problem,
            "prediction": self.predictor.problem,
            "devices": "" if self.devices is None else self.devices.problem,
        }

    def _metric_sight(self) -> node_metric.Sight:
        slo, collection = self._outlook.slo, self._engine.collection
        forecast = self.predictor.forecast(self._outlook.node)
        return node_metric.Sight(
            pods=self._pods.views,
            applications=() if slo is None else slo.host_applications,
            numa_nodes=collection.info.numa_ids,
            gpus=tuple(Gpu(uuid=one.uuid, minor=one.minor, total_bytes=one.total_bytes) for one in collection.gpus),
            prediction=forecast.result if isinstance(forecast, Reclaimable) else None,
            hot_pages=collection.hot_pages,
            fresh_s=max(FRESH_S, 3 * self._settings.collect.interval_s),
        )

    def _topology_sight(self) -> topology.Sight:
        return topology.Sight(node=self._outlook.node, pods=self._pods.views, info=self._engine.collection.info)
