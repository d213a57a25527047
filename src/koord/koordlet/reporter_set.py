"""Build the reporters of this node: NodeMetric with its predictions, NodeResourceTopology, Device, interference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from koord.api.koordinator.custom_kinds import DEVICES, NODE_METRICS, NODE_RESOURCE_TOPOLOGIES
from koord.host.filesystem import Host
from koord.koordlet.control_loop import ControlLoop
from koord.koordlet.inputs.kubelet_client import KubeletClient
from koord.koordlet.inputs.node_inputs import KubeletCpuManager
from koord.koordlet.inputs.node_watcher import NodeWatcher
from koord.koordlet.inputs.pod_source import PodSource
from koord.koordlet.reporters import node_metric_reporter, object_reporter
from koord.koordlet.reporters.builders.node_metric import MAX_SAMPLE_AGE_S, GpuIdentity
from koord.koordlet.reporters.builders.reclaimable import Reclaimable
from koord.koordlet.reporters.interference_reporter import InterferenceReporter
from koord.koordlet.reporters.node_metric_reporter import NodeMetricReporter, Predictor
from koord.koordlet.reporters.object_reporter import DeviceReporter, TopologyReporter
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.settings import KoordletSettings
from koord.koordlet.strategies import interference_view
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.telemetry.clock import Clock


class ReporterSet:
    """The reporters of one agent; the agent runs each of `tasks` until it stops."""

    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        clock: Clock,
        settings: KoordletSettings,
        host: Host,
        store: SeriesStore,
        control_loop: ControlLoop,
        node_watcher: NodeWatcher,
        pods: PodSource,
        kubelet: KubeletClient,
        recorder: EventRecorder,
    ) -> None:
        self._settings = settings
        self._control_loop = control_loop
        self._node_watcher = node_watcher
        self._pods = pods
        mine = f"metadata.name={settings.node}"
        self.predictor = Predictor(host, store, clock, lambda: pods.pods, settings.prediction)
        self.node_metric = NodeMetricReporter(
            client,
            clock,
            settings.node,
            store,
            informers.for_resource(NODE_METRICS, fields=mine),
            self._node_metric_inputs,
        )
        self.topology = TopologyReporter(
            client,
            clock,
            host,
            kubelet,
            informers.for_resource(NODE_RESOURCE_TOPOLOGIES, fields=mine),
            self._topology_inputs,
            settings.topology,
        )

        self.devices = (
            DeviceReporter(
                client,
                clock,
                host,
                informers.for_resource(DEVICES, fields=mine),
                lambda: node_watcher.node,
                settings.devices,
                lambda: control_loop.collectors.gpu_inventory,
            )
            if settings.devices.wanted
            else None
        )
        self.interference = (
            InterferenceReporter(
                client,
                clock,
                recorder,
                lambda: control_loop.strategy_runner.state_of(interference_view.OWNER),
                settings.interference,
            )
            if interference_view.GATE in settings.gates
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
    def kubelet(self) -> KubeletCpuManager:
        """Return the kubelet's CPU manager policy as the topology reporter last learned it."""
        return self.topology.kubelet

    @property
    def memory_policy(self) -> str:
        return self.node_metric.policy.memory

    @property
    def problems(self) -> dict[str, str]:
        return {
            "nodeMetric": self.node_metric.problem,
            "topology": self.topology.problem,
            "prediction": self.predictor.problem,
            "devices": "" if self.devices is None else self.devices.problem,
        }

    def _node_metric_inputs(self) -> node_metric_reporter.NodeMetricInputs:
        slo, collection = self._node_watcher.slo, self._control_loop.collectors
        forecast = self.predictor.forecast(self._node_watcher.node)
        return node_metric_reporter.NodeMetricInputs(
            pods=self._pods.pods,
            applications=() if slo is None else slo.host_applications,
            numa_nodes=collection.info.numa_ids,
            gpus=tuple(
                GpuIdentity(uuid=one.uuid, minor=one.minor, total_bytes=one.total_bytes) for one in collection.gpus
            ),
            prediction=forecast.result if isinstance(forecast, Reclaimable) else None,
            hot_pages=collection.knows_hot_pages,
            max_sample_age_s=max(MAX_SAMPLE_AGE_S, 3 * self._settings.collect.interval_s),
        )

    def _topology_inputs(self) -> object_reporter.TopologyInputs:
        return object_reporter.TopologyInputs(
            node=self._node_watcher.node, pods=self._pods.pods, info=self._control_loop.collectors.info
        )
