"""Assemble koord-scheduler from a client, informers and a completed configuration, and run it while it leads.

The component knows neither flags nor files nor which API server it talks to. `start` registers what is to be watched;
leading is a task of its own, so that a standby keeps its caches warm. The journey of a pod is event_handlers -> queue
-> schedule_one -> bind.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from random import Random

from koord.api.config.scheduler.configuration import Extender
from koord.api.model import ObjectReference
from koord.kube.client.typed_client import Client
from koord.kube.controller.process import StandaloneProgram
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.reflector import MalformedObject
from koord.scheduler.bind import SCHEDULER_NAME_UNMATCHED, Binder
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration import feature_gates
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.controller import (
    ControllerFactory,
    MetricsProvider,
    SchedulerControllerContext,
    build_controllers,
    run_controllers,
)
from koord.scheduler.event_handlers import EventHandlers
from koord.scheduler.evictor import SchedulerEvictor
from koord.scheduler.extender import ExtenderTransport, HttpExtenderTransport, build_extenders
from koord.scheduler.framework.attempt import AttemptLog
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.live_handle import LiveHandle, LiveSchedulerActions
from koord.scheduler.metrics import (
    KoordinatorMetrics,
    MetricsRecorder,
    PointTimer,
    QueueingHintTimer,
    SchedulerMetrics,
)
from koord.scheduler.plugins.coscheduling.controller import NetworkTopologyController, gang_controllers
from koord.scheduler.plugins.coscheduling.gang_manager import GangManager
from koord.scheduler.plugins.coscheduling.messages import ALL_MEMBERS_ATTEMPTED
from koord.scheduler.plugins.coscheduling.metrics import register_gang_metrics
from koord.scheduler.plugins.device_share.controller import device_controllers
from koord.scheduler.plugins.elastic_quota.controller import quota_controllers
from koord.scheduler.plugins.elastic_quota.explain import quota_cache_of
from koord.scheduler.plugins.elastic_quota.metrics import register_quota_metrics
from koord.scheduler.plugins.reservation.controller import reservation_controllers
from koord.scheduler.plugins.reservation.metrics import register_reservation_metrics
from koord.scheduler.preemption.evaluator import PreemptionsInProgress
from koord.scheduler.queue.backoff import QueueSettings
from koord.scheduler.queue.scheduling_queue import SchedulingQueue
from koord.scheduler.schedule_one import SchedulingLoop
from koord.scheduler.scheduler_monitor import AttemptDump, SchedulerMonitor, SchedulerMonitorSettings, SchedulingTimeout
from koord.scheduler.status_reporter import EventThrottle, PodStatusWriter, StatusReporter
from koord.scheduler.sync_barrier import SyncBarrier, SyncBarrierSettings
from koord.scheduler.waiting_pods import WaitingPods
from koord.scheduler.workload_auditor import WorkloadAuditor, WorkloadAuditorMetrics, WorkloadAuditorSettings
from koord.telemetry.clock import Clock
from koord.telemetry.metrics import MetricRegistry

_LOG = logging.getLogger(__name__)

_POD_GONE_MESSAGE = "the pod is gone"

CONTROLLER_FACTORIES: Mapping[str, ControllerFactory] = {
    "Coscheduling": gang_controllers,
    "DeviceShare": device_controllers,
    "ElasticQuota": quota_controllers,
    "Reservation": reservation_controllers,
}  # by the name of the plugin


class Scheduler:
    """Own all parts of one scheduler: call `start`, start the informers, then `lead` while leading."""

    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        clock: Clock,
        completed_config: CompletedConfig,
        *,
        seed: int = 0,
        instance: str = "koord-scheduler",
        registry: MetricRegistry | None = None,
        monitor: SchedulerMonitorSettings | None = None,
        max_unschedulable_s: float = 300.0,
        controller_plugins: Sequence[str] = ("*",),
        network_topology_manager: bool = True,
        sync_barrier: SyncBarrierSettings = SyncBarrierSettings(),  # noqa: B008 - a frozen value
        extender_transport: Callable[[Extender, str], ExtenderTransport] = HttpExtenderTransport,
        dump: AttemptDump | None = None,
        auditor: WorkloadAuditorSettings | None = None,
    ) -> None:
        """Wire all parts together; nothing runs yet.

        Without `registry` nothing is measured, without `monitor` nobody looks for attempts that last too long.
        `max_unschedulable_s`: after this long an unschedulable pod is tried again whatever happened meanwhile.
        `controller_plugins` says whose controllers run (`runs_controllers`); without `network_topology_manager` nobody
        writes the status of the ClusterNetworkTopology. `sync_barrier` is where a new leader waits if its gate is on.
        `extender_transport` makes the way to each extender of the configuration. Raise BadConfig for one that cannot
        be reached as it says. `dump` writes what came of attempts to the log. With `auditor` workloads are
        audited, where something is measured.
        """
        self.dump = dump or AttemptDump()
        self._clock = clock
        self.completed_config = completed_config
        self.state = ClusterState()
        self.handle = LiveHandle(self.state, informers, clock, completed_config.pod_transform)
        self.waiting_pods = WaitingPods()
        self.attempt_log = AttemptLog()
        self.profiles: Mapping[str, SchedulerProfile] = {
            p.scheduler_name: p for p in completed_config.make_profiles(self.handle)
        }
        # Events carry the name of the scheduler that the pod asked for.
        self._recorders = {
            name: EventRecorder(client, clock, controller=name, instance=instance, rng=Random(seed))
            for name in self.profiles
        }
        config = completed_config.config
        settings = QueueSettings(
            initial_backoff_s=float(config.pod_initial_backoff_seconds or 0),
            max_backoff_s=float(config.pod_max_backoff_seconds or 0),
            max_unschedulable_s=max_unschedulable_s,
        )
        self.extenders = build_extenders(
            config.extenders,
            client,
            informers,
            self.state,
            self._latest_pod,
            extender_transport,
        )
        scheduler_metrics = SchedulerMetrics(registry) if registry is not None else None
        self._koordinator_metrics = KoordinatorMetrics(registry) if registry is not None else None
        metrics = scheduler_metrics or MetricsRecorder()
        is_extended = self.extenders.are_interested if self.extenders is not None else None
        hint_timer = QueueingHintTimer(scheduler_metrics, clock) if scheduler_metrics is not None else None
        self.queue = SchedulingQueue(tuple(self.profiles.values()), settings, is_extended, hint_timer)
        self.engines = {
            name: SchedulingEngine(profile, self.state, seed ^ zlib.crc32(name.encode()), self.queue.nominations)
            for name, profile in self.profiles.items()
        }
        self.wakeup = asyncio.Event()  # set by whatever may have made a queued pod schedulable
        self.status_writer = PodStatusWriter(client, clock, self.handle.pods.get)
        self.event_handlers = EventHandlers(
            informers,
            self.handle,
            self.queue,
            clock,
            schedulers=frozenset(self.profiles),
            reservation_schedulers=frozenset(
                name for name, p in self.profiles.items() if any(one.name == "Reservation" for one in p.plugins())
            ),
            gone=self._pod_gone,
            assumed_changed=self._assumed_pod_changed,
            wake=self.wakeup.set,
            metrics=metrics,
            follows_other_schedulers=completed_config.gates[feature_gates.CROSS_SCHEDULER_NOMINATION],
        )
        self._monitor = SchedulerMonitor(self._on_slow_cycle, monitor) if monitor is not None else None
        self._leads = False
        self._sync_barrier = (
            SyncBarrier(client, self.handle.pods, self.state, clock, sync_barrier)
            if completed_config.gates[feature_gates.SYNC_BARRIER]
            else None
        )
        self._checks_scheduler_name = completed_config.gates[feature_gates.DYNAMIC_SCHEDULER_CHECK]
        self.binder = Binder(
            client,
            clock,
            self.waiting_pods,
            committed=self.queue.committed,
            metrics=metrics,
            latest_pod=self.event_handlers.latest_pod if self._checks_scheduler_name else None,
            extenders=self.extenders,
        )
        self.evictor = SchedulerEvictor(
            client,
            clock,
            self._recorders,
            self.waiting_pods,
            self.state.derived(PreemptionsInProgress),
            failed=self._retry_preemptor,
            metrics=metrics,
        )
        self.auditor = (
            build_workload_auditor(registry, clock, auditor, self.state.derived(GangManager))
            if registry is not None and auditor is not None
            else None
        )
        self.queue.observer = self.auditor
        self.event_throttle = EventThrottle(clock, self._is_busy, lambda: self.unwritten_events)
        self.scheduling_loop = SchedulingLoop(
            state=self.state,
            queue=self.queue,
            wakeup=self.wakeup,
            latest_pod=self.event_handlers.latest_pod,
            engines=self.engines,
            binder=self.binder,
            evictor=self.evictor,
            status_reporter=StatusReporter(
                state=self.state,
                recorders=self._recorders,
                status_writer=self.status_writer,
                event_throttle=self.event_throttle,
                metrics=metrics,
                clock=clock,
            ),
            attempt_log=self.attempt_log,
            clock=clock,
            point_timer=PointTimer(metrics, clock),
            next_pod_plugin=_next_pod_plugin(self.profiles),
            monitor=self._monitor,
            observe_next_pod_s=self._koordinator_metrics.next_pod_s.observe if self._koordinator_metrics else None,
            extenders=self.extenders,
            dump=self.dump,
            auditor=self.auditor,
        )
        self.handle.actions.backend = LiveSchedulerActions(
            self.waiting_pods,
            self.queue,
            clock,
            self.wakeup.set,
            self.status_writer.submit,
            self.scheduling_loop.write_status,
        )
        controllers = build_controllers(
            self.profiles.values(),
            CONTROLLER_FACTORIES,
            lambda plugins: SchedulerControllerContext(
                client, self.handle, clock, self._recorders, self.evictor, plugins, self._koordinator_metrics
            ),
            controller_plugins,
        )
        self.controllers = tuple(
            controller
            for controller in controllers
            if network_topology_manager or not isinstance(controller, NetworkTopologyController)
        )
        if registry is not None and scheduler_metrics is not None and self._koordinator_metrics is not None:
            self._register_metrics(registry, scheduler_metrics, self._koordinator_metrics)

    @property
    def ready(self) -> bool:
        """Return whether every handler has received its first list completely."""
        return self.event_handlers.synced

    async def start(self) -> None:
        self.event_handlers.connect()
        for recorder in self._recorders.values():
            recorder.start()

    async def wait_synced(self) -> None:
        await self.event_handlers.wait_synced()

    on_synced = wait_synced  # as a process calls it

    async def lead(self) -> None:
        """Run the scheduling loop and the controllers until cancelled.

        Bindings that are in progress at that moment are left to the next leader, which learns of them from its watch.
        """
        await self.wait_synced()
        if self.extenders is not None:
            await self.extenders.wait_synced()
        if self._sync_barrier is not None:
            await self._sync_barrier.wait()
        self.status_writer.start()
        self._leads = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run_controllers(self.controllers, self._clock))
                if self._monitor is not None:
                    group.create_task(self._monitor.run(self._clock))
                group.create_task(self.scheduling_loop.run())
        finally:
            self._leads = False
            await self.scheduling_loop.stop()
            await self.evictor.stop()
            await self.status_writer.stop()

    async def stop(self) -> None:
        await self.event_throttle.stop()
        if self.extenders is not None:
            await self.extenders.close()
        await asyncio.gather(*(recorder.stop() for recorder in self._recorders.values()))

    def report_malformed(self, what: MalformedObject) -> None:
        """Record a warning event on an object that cannot be decoded; everything else goes on without it."""
        about = ObjectReference(kind=what.kind, namespace=what.namespace, name=what.name, uid=what.uid)
        recorder = next(iter(self._recorders.values()))
        recorder.record(about, "Warning", "MalformedObject", f"left out of scheduling: {what.error}", action="Reading")

    # Metrics -----------------------------------------------------------------------------------------------------

    def _register_metrics(self, registry: MetricRegistry, metrics: SchedulerMetrics, more: KoordinatorMetrics) -> None:
        """Register the metrics that are read from the parts of the scheduler when they are served."""
        evaluations = {name: engine.plugin_evaluations for name, engine in self.engines.items()}
        metrics.serve_sources(self.queue, self.state, lambda: self.binder.in_progress, evaluations)
        register_gang_metrics(registry, more, self.state.derived(GangManager))
        quotas = quota_cache_of(self.profiles.values())
        if quotas is not None:
            register_quota_metrics(registry, more, quotas, self._clock, lambda: self._leads)
        for plugin in self.distinct_plugins():
            if isinstance(plugin, MetricsProvider):
                plugin.register_metrics(registry)
        if any(plugin.name == "Reservation" for p in self.profiles.values() for plugin in p.plugins()):
            register_reservation_metrics(registry, self.handle, lambda: self._leads)

    def distinct_plugins(self) -> Sequence[Plugin]:
        """Return one instance of each plugin, of the first profile that has it."""
        found: dict[str, Plugin] = {}
        for profile in self.profiles.values():
            for plugin in profile.plugins():
                found.setdefault(plugin.name, plugin)
        return tuple(found.values())

    def _on_slow_cycle(self, late: SchedulingTimeout) -> None:
        _LOG.warning("%s", late)
        if self._koordinator_metrics is not None:
            self._koordinator_metrics.timeout.labels(late.profile).inc()

    # Joints ------------------------------------------------------------------------------------------------------

    @property
    def unwritten_events(self) -> int:
        """Return the number of events that wait to be written."""
        return sum(recorder.pending for recorder in self._recorders.values())

    def _is_busy(self) -> bool:
        """Return whether bindings are in progress or soon will be.

        While the members of a gang are tried none is in progress yet, so active pods count as well.
        """
        return self.binder.in_progress > 0 or self.queue.counts()["active"] > 0

    def _pod_gone(self, uid: str) -> None:
        self.waiting_pods.reject(uid, "", _POD_GONE_MESSAGE)
        self.status_writer.drop(uid)
        if self.auditor is not None:
            self.auditor.pod_gone(uid)

    def _assumed_pod_changed(self, pod: Pod) -> None:
        """Release a pod that waits at Permit and asks for another scheduler by now."""
        waiting_pod = self.waiting_pods.get(pod.metadata.uid)
        if (
            self._checks_scheduler_name
            and waiting_pod is not None
            and waiting_pod.pod.scheduler != pod.spec.scheduler_name
        ):
            self.waiting_pods.reject(pod.metadata.uid, "", SCHEDULER_NAME_UNMATCHED)

    def _latest_pod(self, pod: PodInfo) -> Pod | None:
        return self.event_handlers.latest_pod(pod)

    def _retry_preemptor(self, pod: PodInfo) -> None:
        if self.queue.activate((pod.uid,), self._clock.monotonic()):
            self.wakeup.set()


def _next_pod_plugin(profiles: Mapping[str, SchedulerProfile]) -> Plugin | None:
    """Return the plugin that may name the next pod: the first of all profiles that implements `next_pod`."""
    return next((plugin for profile in profiles.values() for plugin in profile.plugins_at(Plugin.next_pod)), None)


def build_workload_auditor(
    registry: MetricRegistry, clock: Clock, settings: WorkloadAuditorSettings, gang_manager: GangManager
) -> WorkloadAuditor:
    """Make the auditor and let gangs tell it what becomes of them."""
    gangs = gang_manager.gangs

    def group_of(uid: str) -> str | None:
        gang = gangs.gang_of_pod(uid)
        return gangs.group_of_gang(gang).id if gang is not None and gang.spec is not None else None

    def has_waiting_members(key: str) -> bool:
        group = gangs.groups.get(key)
        return group is not None and bool(gangs.pending_in_group(group) or gangs.waiting_in_group(group))

    auditor = WorkloadAuditor(
        WorkloadAuditorMetrics(registry, settings.metric_labels),
        clock,
        settings,
        gang_group_of=group_of,
        has_waiting_members=has_waiting_members,
    )
    gang_manager.group_ready_callbacks.append(auditor.gang_ready)
    gang_manager.group_removed_callbacks.append(auditor.gang_removed)
    gang_manager.round_ended_callbacks.append(
        lambda group, reason, _members, _took_s: auditor.gang_round_ended(
            group, all_attempted=reason == ALL_MEMBERS_ATTEMPTED
        )
    )
    gang_manager.search_done_callbacks.append(
        lambda group, found, _took_s: auditor.gang_preemption_searched(group, found=found)
    )
    return auditor


class StandaloneScheduler(StandaloneProgram[Scheduler]):
    """Run a scheduler without leader election, in a process that has no rival."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__("koord-scheduler", scheduler)
        self.scheduler = scheduler
