"""This module is one run of koord-scheduler: ports, watching, readiness, the lease, scheduling, and a clean
end.

Ports come first, then watching; it is ready when every handler has processed its first list; then comes the
lease. A standby does all but scheduling, unless delayCacheUntilActive keeps it from watching before it
leads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack

import msgspec
import yaml

from koord.api.config.component import LeaderElectionConfiguration
from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.lifecycle import report_errors, set_verbosity
from koord.cli.daemons.scheduler_config import SCHEDULER_PROGRAM
from koord.cli.daemons.serving_flags import FlagError, SecurePortGuard, guard_from_flags
from koord.cli.daemons.startup import lease_config
from koord.kube.client.typed_client import Client
from koord.kube.config.connection import Connection
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.malformed_objects import MalformedObject
from koord.kube.leader.election import LeaderElector
from koord.kube.transport.http import HttpTransport
from koord.kube.transport.wrappers import FencedTransport, MeteredTransport, RestMetrics
from koord.scheduler import resource_metrics
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import dump_configuration
from koord.scheduler.explain import http
from koord.scheduler.explain.explainer import Explainer
from koord.scheduler.metrics import KoordinatorMetrics, SchedulerMetrics
from koord.scheduler.plugins.coscheduling.gang_manager import GangManager
from koord.scheduler.plugins.coscheduling.metrics import register_gang_metrics
from koord.scheduler.plugins.elastic_quota.controller import QuotaStatusController as QuotaStatus
from koord.scheduler.plugins.elastic_quota.explain import quota_cache_of
from koord.scheduler.plugins.elastic_quota.metrics import QuotaCacheTimer, register_quota_metrics
from koord.scheduler.plugins.reservation.metrics import register_reservation_metrics
from koord.scheduler.scheduler import Scheduler
from koord.scheduler.scheduler_monitor import SchedulerMonitor, SchedulingTimeout
from koord.scheduler.scheduler_monitor import SchedulerMonitorSettings as MonitorSettings
from koord.telemetry import component_server, gc_tuning
from koord.telemetry.clock import WallClock
from koord.telemetry.component_server import ComponentServer, HealthCheck, ServiceRoutes
from koord.telemetry.http_routing import HttpCall, HttpReply
from koord.telemetry.logs import Logs
from koord.telemetry.metrics import exposition
from koord.telemetry.metrics.process import register_process_metrics
from koord.telemetry.metrics.registry import MetricRegistry
from koord.telemetry.serving_certificate import ServingCertificate

_LOG = logging.getLogger(__name__)

EXIT_LEASE_LOST = 1
SYNC_WARNING_INTERVAL_S = 30.0  # how often a start that gets no answers says so
DEAD_INFORMER_CHECK_S = 5.0  # how often dead informers are looked for
_NOT_LEADER = "the instance is not leader"


class SchedulerProcessPlan(msgspec.Struct, frozen=True, kw_only=True):
    """SchedulerProcessPlan is everything that was settled before the first connection."""

    values: FlagValues
    logs: Logs
    assembly: CompletedConfig
    connection: Connection
    registry: MetricRegistry
    certificate: ServingCertificate | None
    environ: Mapping[str, str]


class SchedulerProcess:
    def __init__(self, plan: SchedulerProcessPlan) -> None:
        self._plan = plan
        self._clock = WallClock()
        self._stopping = False
        self._leads = False
        config = plan.assembly.config
        rest = RestMetrics(plan.registry)
        connection = config.client_connection
        self._transports: list[MeteredTransport] = []
        self._client = self._connect(rest, connection.qps, connection.burst, fenced=True)
        # Renewals must not queue behind a busy scheduler's requests.
        self._lease_client = self._connect(rest, connection.qps, connection.burst)
        self._informers = InformerFactory(self._client, self._clock, on_malformed=self._on_malformed)
        self._metrics = SchedulerMetrics(plan.registry)
        self._extra = KoordinatorMetrics(plan.registry)
        register_process_metrics(plan.registry)
        self.identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        self._scheduler = Scheduler(
            self._client,
            self._informers,
            self._clock,
            plan.assembly,
            seed=secrets.randbits(32),
            instance=f"{SCHEDULER_PROGRAM}-{self.identity}",
            meter=self._metrics,
            max_unschedulable_s=plan.values.seconds("pod-max-in-unschedulable-pods-duration"),
        )
        self._metrics.serve_sources(
            self._scheduler.queue, self._scheduler.state, lambda: self._scheduler.binder.in_progress
        )
        self._scheduler.scheduling_loop.monitor = self._monitor = SchedulerMonitor(
            self._on_slow_cycle, _monitor_settings(plan.values)
        )
        self._watch_quotas()
        self._watch_reservations()
        self._scheduler.scheduling_loop.observe_next_pod_s = self._extra.next_pod_s.observe
        register_gang_metrics(plan.registry, self._extra, self._scheduler.state.derived(GangManager))
        self._election = self._build_elector(config.leader_election)
        self._endpoint = self._build_endpoint()

    async def run(self, stop: asyncio.Event) -> int:
        guarded: SecurePortGuard | None = None
        ending = asyncio.create_task(stop.wait(), name="signal")
        blind = asyncio.create_task(self._wait_for_dead_informer(), name="frozen-view")
        try:
            listening = await self._listen()
            if isinstance(listening, str):
                return report_errors(SCHEDULER_PROGRAM, [listening])
            guarded = listening
            working = asyncio.create_task(self._run_until_leadership_ends(), name=SCHEDULER_PROGRAM)
            await asyncio.wait({ending, working, blind}, return_when=asyncio.FIRST_COMPLETED)
            self._stopping = True
            if working.done():
                return working.result()
            _LOG.info("ending: giving the lease back")
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            return 0 if ending.done() else EXIT_LEASE_LOST
        finally:
            for task in (ending, blind):
                task.cancel()
            await self._close(guarded)

    async def _wait_for_dead_informer(self) -> None:
        """Wait until an informer has died: going on would mean deciding on stale state."""
        while not (dead := self._informers.dead_informers):
            await self._clock.sleep(DEAD_INFORMER_CHECK_S)
        _LOG.critical("ending, as these died: %s", ", ".join(dead))

    async def _run_until_leadership_ends(self) -> int:
        """Run until leadership is lost, or the scheduler ends by itself, which it never should."""
        await self._scheduler.start()
        election = self._election
        if not self._plan.assembly.config.delay_cache_until_active:
            self._informers.start()
            await self._wait_for_sync()
        if election is None:
            await self._lead()
            return EXIT_LEASE_LOST
        ended = await election.run()
        if ended == "lost":
            _LOG.critical("leaderelection lost")
        return EXIT_LEASE_LOST

    async def _lead(self) -> None:
        self._leads = True
        watching = asyncio.create_task(self._monitor.run(self._clock), name="scheduler-monitor")
        try:
            self._informers.start()
            await self._wait_for_sync()
            await self._scheduler.lead()
        finally:
            self._leads = False
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _wait_for_sync(self) -> None:
        if self._scheduler.ready:
            return
        while True:
            try:
                await self._informers.wait_for_cache_sync(SYNC_WARNING_INTERVAL_S)
                break
            except TimeoutError as late:
                _LOG.warning("still waiting for first lists: %s", late)
        await self._scheduler.wait_synced()
        gc_tuning.freeze_after_startup()
        _LOG.info("every handler has heard its first list")

    async def _close(self, guarded: SecurePortGuard | None) -> None:
        """Close the parts, the last made first; one that fails to close does not keep the others from closing."""
        async with AsyncExitStack() as parts:
            for transport in self._transports:
                parts.push_async_callback(transport.close)
            if guarded is not None:
                parts.push_async_callback(guarded.close)
            parts.push_async_callback(self._endpoint.close)
            parts.push_async_callback(self._informers.stop)
            parts.push_async_callback(self._scheduler.stop)

    # Ports -----------------------------------------------------------------------------------------------------------

    def _build_endpoint(self) -> ComponentServer:
        endpoint = ComponentServer(self._clock)
        elected: dict[str, HealthCheck] = {} if self._election is None else {"leaderElection": self._lease_is_fresh}
        endpoint.health("healthz", elected or {"ping": component_server.ping})
        endpoint.health("livez", {"ping": component_server.ping})
        endpoint.health("readyz", {**elected, "shutdown": self._not_stopping, "sched-handler-sync": self._is_synced})
        endpoint.metrics([self._plan.registry])
        endpoint.routes.add("GET", "/metrics/resources", self._resources)
        shown = yaml.safe_load(dump_configuration(self._plan.assembly))
        endpoint.config(lambda: shown)
        if self._plan.assembly.config.enable_profiling is not False:
            endpoint.debug()
        endpoint.flag("v", lambda text: set_verbosity(self._plan.logs, text))
        services = ServiceRoutes(endpoint, unavailable=lambda: None if self._leads else _NOT_LEADER)
        for path, handler in http.explain_routes(Explainer(self._scheduler, self._clock)):
            services.add("GET", path, handler)
        return endpoint

    async def _listen(self) -> SecurePortGuard | str | None:
        """Return the guard of the secure port, if there is one; or why nothing can be served."""
        values, guarded = self._plan.values, None
        host, port = values.text("address"), values.number("port")
        try:
            if port:
                await self._endpoint.listen(host, port)
            if self._plan.certificate is not None:
                made = guard_from_flags(values, self._plan.environ, self._clock)
                if isinstance(made, FlagError):
                    return made.message
                guarded = made
                host, port = values.text("bind-address"), values.number("secure-port")
                await self._endpoint.listen(
                    host,
                    port,
                    certificate=self._plan.certificate,
                    guard=guarded.guard,
                    share_address=values.switch("permit-address-sharing") or None,
                    share_port=values.switch("permit-port-sharing") or None,
                )
        except OSError as trouble:
            return f"cannot listen on {host}:{port}: {os.strerror(trouble.errno or 0).lower()}"
        return guarded

    async def _resources(self, _: HttpCall) -> HttpReply:
        """Serve resource metrics; empty while another replica leads, so that a sum over replicas counts each
        pod once.
        """
        body = (
            await resource_metrics.render_resource_metrics(self._scheduler.event_handlers.pods.list())
            if self._leads
            else b""
        )
        return HttpReply(body=body, content_type=exposition.TEXT_CONTENT_TYPE)

    def _lease_is_fresh(self) -> str | None:
        election = self._election
        if election is None or not self._leads or election.is_leading:
            return None
        return f"failed election to renew leadership on lease {election.config.name}"

    def _not_stopping(self) -> str | None:
        return "process is shutting down" if self._stopping else None

    def _is_synced(self) -> str | None:
        return None if self._scheduler.ready else "waiting for handlers to sync"

    # Parts -----------------------------------------------------------------------------------------------------------

    def _connect(self, rest: RestMetrics, qps: float, burst: int, *, fenced: bool = False) -> Client:
        inner = HttpTransport(self._plan.connection, self._clock)
        metered = MeteredTransport(inner, rest, self._plan.connection.server, self._clock)
        self._transports.append(metered)
        transport = FencedTransport(metered, self._may_write) if fenced else metered
        return Client(transport, clock=self._clock, qps=qps, burst=burst, user_agent=SCHEDULER_PROGRAM)

    def _may_write(self) -> bool:
        return self._election is None or self._election.is_leading

    def _build_elector(self, given: LeaderElectionConfiguration) -> LeaderElector | None:
        if not given.leader_elect:
            return None
        config = lease_config(given, self.identity)
        status = self._plan.registry.gauge(
            "leader_election_master_status", "1 while this process leads, 0 while it stands by.", ("name",)
        ).labels(config.name)

        async def lead() -> None:
            status.set(1)
            await self._lead()

        return LeaderElector(
            self._lease_client,
            self._clock,
            config,
            on_started=lead,
            on_stopped=lambda: status.set(0),
            on_new_leader=lambda who: _LOG.info("new leader elected: %s", who or "nobody"),
        )

    def _on_malformed(self, what: MalformedObject) -> None:
        _LOG.warning("%s %s/%s cannot be read and is left out: %s", what.kind, what.namespace, what.name, what.error)
        self._scheduler.report_malformed(what)

    def _watch_quotas(self) -> None:
        ledger = quota_cache_of(self._scheduler.profiles.values())
        if ledger is not None:
            register_quota_metrics(self._plan.registry, ledger, lambda: self._leads)
            ledger.timer = QuotaCacheTimer(self._clock, self._extra.quota_s)
        for duty in self._scheduler.controllers:
            if isinstance(duty, QuotaStatus):
                duty.observe_write_s = self._extra.quota_status_s.observe

    def _watch_reservations(self) -> None:
        if any(plugin.name == "Reservation" for p in self._scheduler.profiles.values() for plugin in p.plugins()):
            register_reservation_metrics(self._plan.registry, self._scheduler.handle, lambda: self._leads)

    def _on_slow_cycle(self, late: SchedulingTimeout) -> None:
        _LOG.warning("%s", late)
        self._extra.timeout.labels(late.profile).inc()


def _monitor_settings(values: FlagValues) -> MonitorSettings:
    return MonitorSettings(
        period_s=values.seconds("scheduler-monitor-period"),
        timeout_s=values.seconds("scheduling-timeout"),
        drop_unhandled_s=values.seconds("scheduling-drop-unhandled-timeout"),
    )
