"""The node agent as a component: it finds its cgroups, follows its pods and its NodeSLO, and acts once a second.

Whatever is missing may come later: cgroups, kubelet, API server, Node and NodeSLO. Until then the agent runs with what
it has and says what it waits for. When it stops, files keep their values.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.core_v1 import EventSource
from koord.api.model import ObjectReference
from koord.host import tc
from koord.host.audit_log import AuditEvent, AuditLog
from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.cgroup.tree import CgroupTree
from koord.host.filesystem import Host
from koord.host.hardware import Capability
from koord.host.io_error import IoError
from koord.koordlet.agent_status import ContainersStatus, HooksStatus, InterferenceStatus
from koord.koordlet.control_loop import ControlLoop, run_steps_cooperatively
from koord.koordlet.evictor import FILE_NAME, EvictionJournal, KoordletEvictor, build_pod_stopper
from koord.koordlet.gpu_shares import GpuSharing, GpusStatus
from koord.koordlet.hook_calls.service import HookService
from koord.koordlet.http_endpoints import EndpointSources, build_endpoint
from koord.koordlet.inputs.kubelet_client import KubeletClient
from koord.koordlet.inputs.node_inputs import KubeletCpuManager, NodeInputs
from koord.koordlet.inputs.node_watcher import NodeWatcher
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.inputs.pod_source import PodSource
from koord.koordlet.inputs.volume_mounts import VolumeMounts
from koord.koordlet.inputs.yarn_containers import YarnContainers, yarn_application
from koord.koordlet.metrics import KoordletMetrics
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.reporter_set import ReporterSet
from koord.koordlet.reporters.builders import node_conditions
from koord.koordlet.reporters.builders.node_conditions import CapabilityRow
from koord.koordlet.scrape_metrics import ScrapeTimeMetrics
from koord.koordlet.series.metric_kind import retention_s
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.settings import KoordletSettings
from koord.koordlet.strategies import interference_report, runtime_hooks
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.policy.eviction import EvictionLedger
from koord.telemetry.clock import Clock, now
from koord.telemetry.component_server import ComponentServer, HealthCheck
from koord.telemetry.process import register_process_metrics
from koord.values import timestamp

if TYPE_CHECKING:
    from koord.koordlet.pod_resources.service import PodResourcesProxy

_LOG = logging.getLogger(__name__)

COMPONENT = "koordlet-qosManager"  # the source of events
RETRY_S = 10.0  # between two attempts to find the cgroups or to listen
MACHINE_REFRESH_S = 60.0
CAPABILITY_PROBE_S = 600.0
FLUSH_S = 5.0
TASK_RESTART_S = 5.0
NODE_WAIT_S = 3.0
STALE_EVICTION_S = 15.0  # how long an eviction may wait for its turn
# Metric by collector.
_INFO_COLLECTORS = {"node_cpu_info": "node-info", "node_numa_info": "node-numa", "node_local_storage_info": "storage"}


class Koordlet:
    """The agent: call `start`, then `stop`. It uses the informers it is given and neither starts nor stops them."""

    def __init__(
        self, client: Client, informers: InformerFactory, clock: Clock, settings: KoordletSettings, host: Host
    ) -> None:
        self._client = client
        self._clock = clock
        self._settings = settings
        self._host = host
        self.store = SeriesStore(retention_s(), interval_s=settings.collect.interval_s)
        self.metrics = KoordletMetrics(settings.node)
        self.ledger = EvictionLedger()
        self.node_watcher = NodeWatcher(informers, settings.node)
        self.node_watcher.on_node(self.metrics.node_changed)
        audit = msgspec.structs.asdict(settings.audit)
        self._audit_log = AuditLog(clock=clock, **audit) if settings.audit_enabled else None
        self._recorder = EventRecorder(
            client,
            clock,
            controller=COMPONENT,
            instance=f"{COMPONENT}-{settings.node}",
            source=EventSource(component=COMPONENT, host=settings.node),
        )
        self.yarn = YarnContainers(settings.yarn, clock, self._count_yarn)
        self._evictor = KoordletEvictor(
            client,
            self._recorder,
            clock,
            self.ledger,
            node=settings.node,
            audit=self._audit,
            count=lambda victim: self.metrics.count_eviction(clock.time(), victim),
            journal=EvictionJournal(Path(settings.state_dir, FILE_NAME)),
            stopper=build_pod_stopper(settings.cri_eviction),
            third_party=self.yarn,
        )
        self._victims: asyncio.Queue[tuple[float, EvictionRequest]] = asyncio.Queue()  # and when each was wanted
        self._informers = informers
        self.reporters: ReporterSet | None = None
        self._volumes: VolumeMounts | None = None
        self.hooks: HookService | None = None
        self._pod_resources: PodResourcesProxy | None = None
        self.gpu_sharing: GpuSharing | None = None
        self._audit_problem = ProblemLog(_LOG, "the audit log cannot be written")
        self._capabilities: list[Capability] = []
        self._cgroup_problem = "not looked yet"
        self._ticks = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.control_loop: ControlLoop | None = None
        self.pod_source: PodSource | None = None
        self.endpoint = self._build_endpoint()
        self.port: int | None = None

    # Life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.metrics.start_time.labels(self._settings.node).set(int(self._clock.time()))
        if self._settings.safe_mode:
            _LOG.warning("safe mode: nothing is written and nobody is evicted")
        self._recorder.start()
        self._spawn("listen", self._listen)
        self._spawn("tick", self._tick)
        self._spawn("recover-evictions", self._evictor.recover)
        self._spawn("evict", self._evict)
        self._spawn("upkeep", self._maintain)

    async def stop(self) -> None:
        """Stop all tasks. Files keep their values: another agent takes over, or `koordlet restore` restores them."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.endpoint.close()
        await self._evictor.close()
        await self._recorder.stop()
        if self.control_loop is not None:
            self.control_loop.close()
        if self._audit_log is not None and (io_error := self._audit_log.close()) is not None:
            _LOG.warning("the audit log's last events are lost: %s", io_error)

    def _spawn(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._run_restarting(name, work), name=f"koordlet-{name}"))

    async def _run_restarting(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task and restart it when it raises, so that a bug in one task does not stop the others."""
        while True:
            try:
                await work()
                return
            except Exception:  # noqa: BLE001
                _LOG.exception("task %s failed and starts again in %.0f s", name, TASK_RESTART_S)
            await self._clock.sleep(TASK_RESTART_S)

    # Once a second -------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        control_loop = self.control_loop or await self._build_control_loop()
        interval_s = self._settings.collect.interval_s
        due_s = self._clock.monotonic()
        while True:
            if self._has_earlier_writes():
                self.node_watcher.count_absent_as_deleted()
            tick = control_loop.tick_steps(self._node_inputs(), memory_policy=self._memory_policy())
            for victim in await run_steps_cooperatively(tick):
                self._victims.put_nowait((self._clock.monotonic(), victim))
            if self.hooks is not None and runtime_hooks.NAME in control_loop.last_run:
                self.hooks.note_reconciled()
            self._ticks += 1
            due_s = max(due_s + interval_s, self._clock.monotonic())  # ticks that were missed are not made up for
            await self._clock.sleep(due_s - self._clock.monotonic())

    async def _build_control_loop(self) -> ControlLoop:
        """Wait for the machine's cgroups, then build the control loop and start what depends on it."""
        tree = await self._wait_for_tree()
        control_loop = ControlLoop(tree, self.store, self._clock, self._settings, self.metrics, self._audit_log)
        kubelet = KubeletClient(
            self._settings.pods, self._clock, lambda: self.node_watcher.node, on_request=self._observe_kubelet_request
        )
        self.pod_source = PodSource(tree, self._client, self._clock, self._settings.node, kubelet, self._settings.pods)
        self._spawn("pods", self._follow_pods)
        self.reporters = ReporterSet(
            self._client,
            self._informers,
            self._clock,
            self._settings,
            self._host,
            self.store,
            control_loop,
            self.node_watcher,
            self.pod_source,
            kubelet,
            self._recorder,
        )
        for name, work in self.reporters.tasks:
            self._spawn(name, work)
        if "BlkIOReconcile" in self._settings.gates:
            self._volumes = VolumeMounts(self._client, self._clock, self._host.paths.kubelet, self._pods)
            self._spawn("volumes", self._volumes.run)
        readings = ScrapeTimeMetrics(
            self._settings.node,
            self.store,
            self._clock,
            control_loop,
            self.reporters,
            self.node_watcher,
            self.pod_source,
            self._settings.gates,
        )
        self.metrics.internal.source(readings.internal)
        self.metrics.external.source(readings.external)
        self.hooks = HookService(
            self._settings,
            self._host,
            self._clock,
            control_loop,
            self._record_hook_event,
            self.metrics.observe_hook,
            lambda: self.node_watcher.properties,
            self.metrics.record_core_sched,
        )
        for name, work in self.hooks.tasks:
            self._spawn(name, work)
        self._serve_pod_resources(self.pod_source)
        self.gpu_sharing = GpuSharing(
            self._settings, self._host, self._clock, self.store, control_loop, self._pods, self._record_node_problem
        )
        self.metrics.external.source(self.gpu_sharing.readings)
        for name, work in self.gpu_sharing.tasks:
            self._spawn(name, work)
        self._spawn("capabilities", lambda: self._publish_capabilities(control_loop))
        self.control_loop = control_loop
        self._spawn("yarn", self.yarn.run)
        return control_loop

    def _serve_pod_resources(self, pods: PodSource) -> None:
        if self._settings.pod_resources is not None:
            from koord.koordlet.pod_resources.service import PodResourcesProxy  # gRPC, which only this proxy needs

            self._pod_resources = PodResourcesProxy(
                self._settings.pod_resources, self._clock, lambda: pods.pods, pods.ask_and_wait
            )
            self._spawn("pod-resources", self._pod_resources.run)

    async def _follow_pods(self) -> None:
        """Run the pod source. The kubelet's address is on the Node: a short wait spares the API server a list."""
        waited_s = 0.0
        while self.node_watcher.node is None and waited_s < NODE_WAIT_S:
            await self._clock.sleep(0.1)
            waited_s += 0.1
        if self.pod_source is not None:
            await self.pod_source.run()

    async def _wait_for_tree(self) -> CgroupTree:
        """Detect the cgroup layout, and try again until there is one."""
        while True:
            node = self.node_watcher.node
            port = None if node is None else node.status.daemon_endpoints.kubelet_endpoint.port
            found = open_tree(self._host, port or None, self._settings.kubepods)
            if not isinstance(found, LayoutNotDetected):
                _LOG.info("cgroup v%d, pods are below %s", found.version, found.layout.kubepods)
                self._cgroup_problem = ""
                return found
            if self._cgroup_problem != str(found):
                self._cgroup_problem = str(found)
                _LOG.warning("%s; looking again every %.0f s", found, RETRY_S)
            await self._clock.sleep(RETRY_S)

    def _memory_policy(self) -> str:
        return "" if self.reporters is None else self.reporters.memory_policy

    def _pods(self) -> tuple[PodMeta, ...] | None:
        return None if self.pod_source is None else self.pod_source.pods

    def _count_yarn(self, group: str) -> None:
        """Count YARN's containers as a host application, also where the configuration does not name them as one."""
        if self.control_loop is not None:
            layout = self.control_loop.tree.layout
            self.node_watcher.count_application(yarn_application(group, layout), layout)

    def _has_earlier_writes(self) -> bool:
        """Return whether an earlier process changed this node by a NodeSLO."""
        files = self.control_loop is not None and self.control_loop.executor.has_earlier_writes
        return files or (self.hooks is not None and self.hooks.has_earlier_actions)

    def _node_inputs(self) -> NodeInputs:
        views = self._pods()
        return NodeInputs(
            node=self.node_watcher.properties,
            slo=self.node_watcher.slo,
            pods=() if views is None else views,
            pods_known=views is not None,
            third_party=self.yarn.containers,
            starting=() if self.hooks is None or views is None else self.hooks.starting(views),
            kubelet=KubeletCpuManager(known=False) if self.reporters is None else self.reporters.kubelet,
            mounts={} if self._volumes is None else self._volumes.mounts,
            earlier_writes=self._has_earlier_writes(),
            safe_mode=self._settings.safe_mode,
            mps_daemons={} if self.gpu_sharing is None else self.gpu_sharing.daemon_problems,
        )

    async def _evict(self) -> None:
        """Evict one pod after the other: what the first frees may be enough. A request that waited too long, because
        the API server was away, is dropped, as its numbers are stale.
        """
        while True:
            wanted_s, victim = await self._victims.get()
            late = self._clock.monotonic() - wanted_s > STALE_EVICTION_S
            why = "it was wanted too long ago" if late else await self._evictor.evict(victim)
            if self.control_loop is None:
                continue
            if why is None:
                self.control_loop.strategy_runner.evicted(
                    self._clock.time(), victim.uid, by_stopping=self._evictor.evicts_by_stopping(victim)
                )
            else:
                self.control_loop.strategy_runner.eviction_failed(self._clock.time(), victim.uid, why)

    # Now and then --------------------------------------------------------------------------------------------------

    async def _maintain(self) -> None:
        refreshed_s = self._clock.monotonic()
        while True:
            await self._clock.sleep(FLUSH_S)
            self.metrics.expire(self._clock.time())
            self._evictor.settle()
            if self._audit_log is not None:
                self._log_audit_error(self._audit_log.flush())
            if self.control_loop is not None and self._clock.monotonic() - refreshed_s >= MACHINE_REFRESH_S:
                refreshed_s = self._clock.monotonic()
                self.control_loop.machine.refresh()
                for name, collector in _INFO_COLLECTORS.items():
                    condition = self.control_loop.collectors.statuses.get(collector)
                    if condition is not None:
                        self.metrics.count_info_collect(name, not condition.problem)

    async def _publish_capabilities(self, control_loop: ControlLoop) -> None:
        """Probe what the kernel supports now and then, and publish it as conditions of the Node."""
        while True:
            self._capabilities = await _probe_capabilities(control_loop)
            await self._publish_capabilities_once(control_loop)
            await self._clock.sleep(CAPABILITY_PROBE_S)

    async def _publish_capabilities_once(self, control_loop: ControlLoop) -> None:
        while (node := self.node_watcher.node) is None:
            await self._clock.sleep(RETRY_S)
        wanted = node_conditions.strategy_conditions(self._capabilities, control_loop.strategy_runner.enabled)
        change = node_conditions.conditions_patch(wanted, node.status.conditions, timestamp.text(now(self._clock)))
        if change is None:
            return
        try:
            answer = await self._client.patch(
                NODES, node.metadata.name, change, kind="strategic", subresource="status", uid=node.metadata.uid
            )
        except TRANSIENT_ERRORS as gone:
            _LOG.warning("capabilities are not on the Node: %s", gone)
            return
        if isinstance(answer, ApiError):
            _LOG.warning("capabilities are not on the Node: %s", answer.message)

    # Served --------------------------------------------------------------------------------------------------

    def _build_endpoint(self) -> ComponentServer:
        register_process_metrics(self.metrics.internal)
        source = EndpointSources(
            metrics=self.metrics,
            ledger=self.ledger,
            audit_log=self._audit_log,
            capabilities=self._capability_rows,
            strategy_statuses=lambda: [] if self.control_loop is None else self.control_loop.strategy_statuses(),
            hooks=self._hooks_status,
            containers=self._containers_status,
            interference=self._interference_status,
            gpus=lambda: GpusStatus() if self.gpu_sharing is None else self.gpu_sharing.status(),
            state=self.state,
            checks=self._checks(),
        )
        return build_endpoint(source, self._clock, events="AuditEventsHTTPHandler" in self._settings.gates)

    def _hooks_status(self) -> HooksStatus:
        return HooksStatus(safe_mode=self._settings.safe_mode) if self.hooks is None else self.hooks.status()

    def _containers_status(self, namespace: str, name: str) -> ContainersStatus:
        if self.control_loop is None:
            return ContainersStatus()
        pods = self._pods() or ()
        return self.control_loop.containers_status(
            [pod for pod in pods if namespace in ("", pod.namespace) and name in ("", pod.name)]
        )

    def _interference_status(self, namespace: str, name: str) -> InterferenceStatus:
        if self.control_loop is None:
            return interference_report.NOT_RUN
        return self.control_loop.interference_status(self._pods() or (), namespace, name)

    def _record_hook_event(self, regarding: ObjectReference, reason: str, message: str) -> None:
        self._recorder.record(regarding, "Warning", reason, message)

    def _record_node_problem(self, reason: str, message: str) -> None:
        node = self.node_watcher.node
        if node is not None:
            about = ObjectReference(kind="Node", api_version="v1", name=node.metadata.name, uid=node.metadata.uid)
            self._recorder.record(about, "Warning", reason, message)

    def _checks(self) -> Mapping[str, HealthCheck]:
        return {
            "cgroups": lambda: self._cgroup_problem or None,
            "pods": lambda: None if self._node_inputs().pods_known else "pods are not known yet",
            "node": lambda: "the Node was not seen yet" if self.node_watcher.node is None else None,
            "collectors": lambda: (
                None
                if self.control_loop is not None and self.control_loop.collectors.all_answered
                else "not all work yet"
            ),
        }

    def state(self) -> dict[str, Any]:
        """Return what the agent knows and what it waits for, for people."""
        control_loop, pods = self.control_loop, self.pod_source
        collectors = {} if control_loop is None else control_loop.collectors.statuses
        return {
            "node": self._settings.node,
            "safeMode": self._settings.safe_mode,
            "cgroups": self._cgroup_problem or (control_loop.tree.layout.kubepods if control_loop is not None else ""),
            "cgroupVersion": None if control_loop is None else control_loop.tree.version,
            "nodeSeen": self.node_watcher.node is not None,
            "nodeSLOSeen": self.node_watcher.slo is not None,
            "nodeSLOProblems": [str(error) for error in self.node_watcher.slo_errors],
            "podsFrom": "" if pods is None else pods.origin,
            "podsProblem": "" if pods is None else pods.problem,
            "pods": len(self._node_inputs().pods),
            "yarnCopilot": (self.yarn.problem or "works") if self.yarn.is_present else "",
            "yarnContainers": len(self.yarn.containers),
            "series": len(self.store),
            "ticks": self._ticks,
            "reports": {} if self.reporters is None else self.reporters.problems,
            "disturbedPods": [f"{one.full_name}: {one.why}" for one in self._interference_status("", "").incidents],
            "collectors": {name: one.problem or "works" for name, one in collectors.items()},
            "strategies": [] if control_loop is None else list(control_loop.strategy_runner.enabled),
            "podResources": "" if self._pod_resources is None else self._pod_resources.state,
            "journal": "" if control_loop is None else control_loop.executor.journal_problem or "works",
        }

    def _capability_rows(self) -> list[CapabilityRow]:
        if not self._capabilities and self.control_loop is not None:
            self._capabilities = self.control_loop.capabilities()
        return node_conditions.capability_rows(self._capabilities)

    def _audit(self, event: AuditEvent) -> None:
        if self._audit_log is not None:
            self._log_audit_error(self._audit_log.append(event))

    def _log_audit_error(self, io_error: IoError | None) -> None:
        if io_error is None:
            self._audit_problem.works()
        else:
            self._audit_problem.fails(io_error, io_error.code)

    def _observe_kubelet_request(self, path: str, code: int, seconds: float) -> None:
        self.metrics.kubelet_s.labels("get", path, str(code)).observe(seconds)

    async def _listen(self) -> None:
        """Listen on the port, and try again while it is taken: the agent works without it."""
        if self._settings.address is None:
            return
        host, port = self._settings.address
        while True:
            try:
                self.port = await self.endpoint.listen(host, port)
                _LOG.info("listening on port %d", self.port)
                return
            except OSError as error:
                _LOG.warning("cannot listen on %s:%d, trying again every %.0f s: %s", host, port, RETRY_S, error)
            await self._clock.sleep(RETRY_S)


async def _probe_capabilities(control_loop: ControlLoop) -> list[Capability]:
    """Probe the kernel; tc is a program, which the event loop does not wait for."""
    without_tc = await asyncio.to_thread(tc.check_supported)
    return control_loop.capabilities(lambda: without_tc)
