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

from koord.api.config.component import LeaderElection
from koord.cli.election import lease_of
from koord.cli.flags import Values
from koord.cli.flags_logging import verbosity
from koord.cli.flags_scheduler import PROGRAM
from koord.cli.flags_serving import Guarded, Wrong, guard_of
from koord.cli.program import refuse
from koord.kube.client import Client
from koord.kube.connection import Connection
from koord.kube.election import Election
from koord.kube.fence import FencedTransport
from koord.kube.http import HttpTransport
from koord.kube.informers import Informers
from koord.kube.malformed import Malformed
from koord.kube.metered import MeteredTransport, RestMetrics
from koord.scheduler import resource_metrics
from koord.scheduler.assembly import Assembly, written
from koord.scheduler.duties.elastic_quota.status import Status as QuotaStatus
from koord.scheduler.explain import service
from koord.scheduler.explain.live import Explainer
from koord.scheduler.explain.quota import ledger_of
from koord.scheduler.gang_metrics import watch_gangs
from koord.scheduler.koordinator_metrics import KoordinatorMetrics
from koord.scheduler.metrics import SchedulerMetrics
from koord.scheduler.monitor import Late, Monitor
from koord.scheduler.monitor import Settings as MonitorSettings
from koord.scheduler.plugins.coscheduling.company import Company
from koord.scheduler.program import Scheduler
from koord.scheduler.quota_metrics import LedgerMeter, watch_quotas
from koord.scheduler.reservation_metrics import watch_reservations
from koord.telemetry import collector, health
from koord.telemetry.certificate import ServingCertificate
from koord.telemetry.clock import WallClock
from koord.telemetry.endpoint import Endpoint, Services
from koord.telemetry.health import Check
from koord.telemetry.logs import Logs
from koord.telemetry.metrics import exposition
from koord.telemetry.metrics.process import watch_process
from koord.telemetry.metrics.registry import Registry
from koord.telemetry.routing import Call, Reply

_LOG = logging.getLogger(__name__)

LOST = 1
LATE_S = 30.0  # how often a start that gets no answers says so
BLIND_S = 5.0  # how often dead informers are looked for
_NOT_LEADER = "the instance is not leader"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """SchedulerProcessPlan is everything that was settled before the first connection."""

    values: Values
    logs: Logs
    assembly: Assembly
    connection: Connection
    registry: Registry
    certificate: ServingCertificate | None
    environ: Mapping[str, str]


class Process:
    def __init__(self, plan: Plan) -> None:
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
        self._informers = Informers(self._client, self._clock, on_malformed=self._misread)
        self._metrics = SchedulerMetrics(plan.registry)
        self._extra = KoordinatorMetrics(plan.registry)
        watch_process(plan.registry)
        self.identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        self._scheduler = Scheduler(
            self._client,
            self._informers,
            self._clock,
            plan.assembly,
            seed=secrets.randbits(32),
            instance=f"{PROGRAM}-{self.identity}",
            meter=self._metrics,
            max_unschedulable_s=plan.values.seconds("pod-max-in-unschedulable-pods-duration"),
        )
        self._metrics.watch(self._scheduler.queue, self._scheduler.state, lambda: self._scheduler.binder.on_the_way)
        self._scheduler.loop.monitor = self._monitor = Monitor(self._late, _monitor_settings(plan.values))
        self._watch_quotas()
        self._watch_reservations()
        self._scheduler.loop.taken = self._extra.next_pod_s.observe
        watch_gangs(plan.registry, self._extra, self._scheduler.state.derived(Company))
        self._election = self._elect(config.leader_election)
        self._endpoint = self._serve()

    async def run(self, stop: asyncio.Event) -> int:
        guarded: Guarded | None = None
        ending = asyncio.create_task(stop.wait(), name="signal")
        blind = asyncio.create_task(self._blind(), name="frozen-view")
        try:
            listening = await self._listen()
            if isinstance(listening, str):
                return refuse(PROGRAM, [listening])
            guarded = listening
            working = asyncio.create_task(self._work(), name=PROGRAM)
            await asyncio.wait({ending, working, blind}, return_when=asyncio.FIRST_COMPLETED)
            self._stopping = True
            if working.done():
                return working.result()
            _LOG.info("ending: giving the lease back")
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            return 0 if ending.done() else LOST
        finally:
            for task in (ending, blind):
                task.cancel()
            await self._close(guarded)

    async def _blind(self) -> None:
        """Wait until an informer has died: going on would mean deciding on stale state."""
        while not (dead := self._informers.dead):
            await self._clock.sleep(BLIND_S)
        _LOG.critical("ending, as these died: %s", ", ".join(dead))

    async def _work(self) -> int:
        """Run until leadership is lost, or the scheduler ends by itself, which it never should."""
        await self._scheduler.start()
        election = self._election
        if not self._plan.assembly.config.delay_cache_until_active:
            self._informers.start()
            await self._synced()
        if election is None:
            await self._lead()
            return LOST
        ended = await election.run()
        if ended == "lost":
            _LOG.critical("leaderelection lost")
        return LOST

    async def _lead(self) -> None:
        self._leads = True
        watching = asyncio.create_task(self._monitor.run(self._clock), name="scheduler-monitor")
        try:
            self._informers.start()
            await self._synced()
            await self._scheduler.lead()
        finally:
            self._leads = False
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _synced(self) -> None:
        if self._scheduler.ready:
            return
        while True:
            try:
                await self._informers.synced(LATE_S)
                break
            except TimeoutError as late:
                _LOG.warning("still waiting for first lists: %s", late)
        await self._scheduler.synced()
        collector.settle()
        _LOG.info("every handler has heard its first list")

    async def _close(self, guarded: Guarded | None) -> None:
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

    def _serve(self) -> Endpoint:
        endpoint = Endpoint(self._clock)
        elected: dict[str, Check] = {} if self._election is None else {"leaderElection": self._lease_is_fresh}
        endpoint.health("healthz", elected or {"ping": health.ping})
        endpoint.health("livez", {"ping": health.ping})
        endpoint.health("readyz", {**elected, "shutdown": self._not_stopping, "sched-handler-sync": self._is_synced})
        endpoint.metrics([self._plan.registry])
        endpoint.routes.add("GET", "/metrics/resources", self._resources)
        shown = yaml.safe_load(written(self._plan.assembly))
        endpoint.config(lambda: shown)
        if self._plan.assembly.config.enable_profiling is not False:
            endpoint.debug()
        endpoint.flag("v", lambda text: verbosity(self._plan.logs, text))
        services = Services(endpoint, unavailable=lambda: None if self._leads else _NOT_LEADER)
        for path, handler in service.routes(Explainer(self._scheduler, self._clock)):
            services.add("GET", path, handler)
        return endpoint

    async def _listen(self) -> Guarded | str | None:
        """Return the guard of the secure port, if there is one; or why nothing can be served."""
        values, guarded = self._plan.values, None
        host, port = values.text("address"), values.number("port")
        try:
            if port:
                await self._endpoint.listen(host, port)
            if self._plan.certificate is not None:
                made = guard_of(values, self._plan.environ, self._clock)
                if isinstance(made, Wrong):
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

    async def _resources(self, _: Call) -> Reply:
        """Serve resource metrics; empty while another replica leads, so that a sum over replicas counts each pod once.

        """
        body = await resource_metrics.render(self._scheduler.intake.pods.list()) if self._leads else b""
        return Reply(body=body, content_type=exposition.TEXT)

    def _lease_is_fresh(self) -> str | None:
        election = self._election
        if election is None or not self._leads or election.leading:
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
        return Client(transport, clock=self._clock, qps=qps, burst=burst, user_agent=PROGRAM)

    def _may_write(self) -> bool:
        return self._election is None or self._election.leading

    def _elect(self, given: LeaderElection) -> Election | None:
        if not given.leader_elect:
            return None
        config = lease_of(given, self.identity)
        status = self._plan.registry.gauge(
            "leader_election_master_status", "1 while this process leads, 0 while it stands by.", ("name",)
        ).labels(config.name)

        async def lead() -> None:
            status.set(1)
            await self._lead()

        return Election(
            self._lease_client,
            self._clock,
            config,
            on_started=lead,
            on_stopped=lambda: status.set(0),
            on_new_leader=lambda who: _LOG.info("new leader elected: %s", who or "nobody"),
        )

    def _misread(self, what: Malformed) -> None:
        _LOG.warning("%s %s/%s cannot be read and is left out: %s", what.kind, what.namespace, what.name, what.error)
        self._scheduler.misread(what)

    def _watch_quotas(self) -> None:
        ledger = ledger_of(self._scheduler.profiles.values())
        if ledger is not None:
            watch_quotas(self._plan.registry, ledger, lambda: self._leads)
            ledger.meter = LedgerMeter(self._clock, self._extra.quota_s)
        for duty in self._scheduler.duties:
            if isinstance(duty, QuotaStatus):
                duty.took = self._extra.quota_status_s.observe

    def _watch_reservations(self) -> None:
        if any(plugin.name == "Reservation" for p in self._scheduler.profiles.values() for plugin in p.plugins()):
            watch_reservations(self._plan.registry, self._scheduler.handle, lambda: self._leads)

    def _late(self, late: Late) -> None:
        _LOG.warning("%s", late)
        self._extra.timeout.labels(late.profile).inc()


def _monitor_settings(values: Values) -> MonitorSettings:
    return MonitorSettings(
        period_s=values.seconds("scheduler-monitor-period"),
        timeout_s=values.seconds("scheduling-timeout"),
        drop_unhandled_s=values.seconds("scheduling-drop-unhandled-timeout"),
    )
