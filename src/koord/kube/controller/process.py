"""This module runs one leader-elected program as a process: ports, a client whose writes are fenced by the lease,
informers, the lease, and a clean end.

Ports come first, then watching; then comes the lease. A standby does all but the leader's work, unless
`delay_cache_until_leading` keeps it from watching before it leads.

Requests of the transport are counted as rest_client_* metrics.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from koord.kube.client.typed_client import Client
from koord.kube.config.connection import Connection
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.reflector import MalformedObject
from koord.kube.leader_election import LeaderElector, LeaseConfig
from koord.kube.transport.fenced_socket import WriteFence
from koord.kube.transport.http import HttpTransport
from koord.kube.transport.interface import ApiRequest, ApiResponse, Transport, Unreachable, WatchStream
from koord.telemetry.clock import Clock
from koord.telemetry.component_server import ComponentServer, HealthCheck
from koord.telemetry.http_routing import HttpGuard
from koord.telemetry.metrics import Gauge, MetricFamily, MetricRegistry
from koord.telemetry.process import freeze_after_startup, register_process_metrics
from koord.telemetry.serving_certificate import ServingCertificate

_DURATION_BUCKETS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
NO_RESPONSE_CODE = "<error>"  # in place of a status code


class RestMetrics:
    """RestMetrics holds the request metrics of a program; its clients share it."""

    def __init__(self, registry: MetricRegistry) -> None:
        self.requests = registry.counter(
            "rest_client_requests_total",
            "Requests to the API server by status code, method and host.",
            ("code", "host", "method"),
        )
        self.seconds = registry.histogram(
            "rest_client_request_duration_seconds",
            "Time from a request to the API server to its answer, by verb and host.",
            ("verb", "host"),
            _DURATION_BUCKETS_S,
        )


class MeteredTransport:
    def __init__(self, inner: Transport, metrics: RestMetrics, server: str, clock: Clock) -> None:
        """Wrap `inner`. `server` is the URL whose host the metrics name."""
        self._inner = inner
        self._metrics = metrics
        self._host = urlsplit(server).netloc
        self._clock = clock

    async def send(self, request: ApiRequest) -> ApiResponse:
        started = self._clock.monotonic()
        code = NO_RESPONSE_CODE
        try:
            answer = await self._inner.send(request)
            code = str(answer.status)
            return answer
        finally:
            self._count(request, code, started)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        started = self._clock.monotonic()
        try:
            opened = await self._inner.watch(request)
        except Unreachable:
            self._count(request, NO_RESPONSE_CODE, started)
            raise
        self._count(request, str(opened.status) if isinstance(opened, ApiResponse) else "200", started)
        return opened

    async def close(self) -> None:
        await self._inner.close()

    def _count(self, request: ApiRequest, code: str, started: float) -> None:
        self._metrics.requests.labels(code, self._host, request.method).inc()
        self._metrics.seconds.labels(request.method, self._host).observe(self._clock.monotonic() - started)


_LOG = logging.getLogger(__name__)

EXIT_LEASE_LOST = 1
SYNC_WARNING_INTERVAL_S = 30.0  # how often a start that gets no answers says so
DEAD_INFORMER_CHECK_S = 5.0  # how often dead informers are looked for


def leader_status(registry: MetricRegistry) -> MetricFamily[Gauge]:
    """Register the metric that says whether a process leads."""
    return registry.gauge(
        "leader_election_master_status",
        "1 while this process holds the lease of this name, 0 while it stands by.",
        ("name",),
    )


class StartupError(Exception):
    """StartupError means that a process cannot start; the message is a line for the operator."""


class ControllerProgram(Protocol):
    """ControllerProgram is the work of a process. It is built before the informers start."""

    async def start(self) -> None:
        """Start what runs on every replica; informers have not started yet."""

    async def on_synced(self) -> None:
        """Return when the program has taken in the first lists of all informers. It runs once."""

    async def lead(self) -> None:
        """Do the leader's work until cancelled."""

    async def stop(self) -> None:
        """Stop all that `start` and `on_synced` started, also where they failed or were never called."""


P = TypeVar("P", bound=ControllerProgram)


class ListenAddress(msgspec.Struct, frozen=True, kw_only=True):
    """ListenAddress is one port; with a certificate it is served over HTTPS, and `guard` checks each call."""

    host: str
    port: int
    is_health: bool = False  # whether it serves `health_server` and not `server`
    certificate: ServingCertificate | None = None
    guard: HttpGuard | None = None
    guard_transports: tuple[Transport, ...] = ()  # what the guard asks over; they are closed with the port
    share_address: bool = False
    share_port: bool = False


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """ProcessSettings is everything about a process that was settled before its first connection."""

    name: str  # of the program
    user_agent: str
    connection: Connection
    qps: float
    burst: int
    identity: str
    lease: LeaseConfig | None  # None: this process always leads
    addresses: tuple[ListenAddress, ...]
    registry: MetricRegistry
    delay_cache_until_leading: bool = False
    sync_timeout_s: float | None = None  # None: it waits for first lists for as long as they take


def process_identity(hostname: str = "") -> str:
    """Return an identity that no other process has; a host name alone is shared by the next process on that host."""
    return f"{hostname or socket.gethostname()}_{uuid.uuid4()}"


class TransportFactory(Protocol):
    def __call__(self, connection: Connection, clock: Clock, *, fence: WriteFence | None) -> Transport: ...


class ControllerProcess:
    """ControllerProcess owns what every program needs: build one from its parts, add its routes, then `run` it."""

    def __init__(
        self,
        settings: ProcessSettings,
        clock: Clock,
        *,
        connect: TransportFactory = HttpTransport,
        seed: int | None = None,
    ) -> None:
        """Build the parts; nothing runs yet. `seed` makes what is random repeat from run to run."""
        self.settings = settings
        self.clock = clock
        self._connect_transport = connect
        self._rng = random.Random(seed)
        self._stopping = False
        self._leads = False
        self._synced = False
        self._transports: list[Transport] = []
        self._rest_metrics = RestMetrics(settings.registry)
        self.client = self._client(self._connect(self._write_fence()))
        self.on_malformed: Callable[[MalformedObject], None] | None = None
        self.informers = InformerFactory(self.client, clock, seed=seed, on_malformed=self._malformed)
        register_process_metrics(settings.registry)
        self._elector: LeaderElector | None = None
        self._program: ControllerProgram | None = None
        if settings.lease is not None:
            self._elector = self._build_elector(settings.lease)
        self.server = ComponentServer(clock)
        self.health_server = ComponentServer(clock)  # for programs with a port of their own for health

    def unfenced_client(self) -> Client:
        """Return a client for writes that every replica makes, such as those of admission webhooks."""
        return self._client(self._connect())

    def leads(self) -> bool:
        """Return whether the leader's work is under way, or about to be."""
        return self._leads

    def may_write(self) -> bool:
        """Return whether this process holds the lease at this moment."""
        return self._elector is None or self._elector.is_leading

    # Health ------------------------------------------------------------------------------------------------------

    def election_checks(self) -> dict[str, HealthCheck]:
        """Return the check of leader election; there is none without election."""
        return {} if self._elector is None else {"leaderElection": self._lease_is_fresh}

    def not_stopping(self) -> str | None:
        return "process is shutting down" if self._stopping else None

    def informers_synced(self) -> str | None:
        late = [informer.resource.plural for informer in self.informers if not informer.has_synced]
        return f"no first answer about {', '.join(late)}" if late else None

    def _lease_is_fresh(self) -> str | None:
        elector = self._elector
        if elector is None or not self._leads or elector.is_leading:
            return None
        return f"failed election to renew leadership on lease {elector.config.name}"

    # Running -----------------------------------------------------------------------------------------------------

    async def run(self, program: ControllerProgram, stop: asyncio.Event) -> int:
        """Run until `stop`, or until the lease is lost: the process then ends, so that nothing of its leadership is
        left. Return the exit code; raise StartupError.
        """
        self._program = program
        ending = asyncio.create_task(stop.wait(), name="signal")
        dead = asyncio.create_task(self._wait_for_dead_informer(), name="dead-informers")
        try:
            await self._listen()
            working = asyncio.create_task(self._run_until_leadership_ends(program), name=self.settings.name)
            await asyncio.wait({ending, working, dead}, return_when=asyncio.FIRST_COMPLETED)
            self._stopping = True
            if working.done():
                return working.result()
            _LOG.info("ending: giving the lease back")
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            return 0 if ending.done() else EXIT_LEASE_LOST
        finally:
            for task in (ending, dead):
                task.cancel()
            await self._close(program)

    async def _listen(self) -> None:
        for address in self.settings.addresses:
            server = self.health_server if address.is_health else self.server
            try:
                await server.listen(
                    address.host,
                    address.port,
                    certificate=address.certificate,
                    guard=address.guard,
                    share_address=address.share_address or None,
                    share_port=address.share_port or None,
                )
            except OSError as error:
                reason = os.strerror(error.errno or 0).lower()
                raise StartupError(f"cannot listen on {address.host}:{address.port}: {reason}") from error

    async def _wait_for_dead_informer(self) -> None:
        """Wait until an informer has died: going on would mean deciding on stale state."""
        while not (dead := self.informers.dead_informers):
            await self.clock.sleep(DEAD_INFORMER_CHECK_S)
        _LOG.critical("ending, as these died: %s", ", ".join(dead))

    async def _run_until_leadership_ends(self, program: ControllerProgram) -> int:
        """Run until leadership is lost, or the program ends by itself, which it never should."""
        await program.start()
        if not self.settings.delay_cache_until_leading:
            await self._sync(program)
        if self._elector is None:
            await self._lead()
        elif await self._elector.run() == "lost":
            _LOG.critical("leaderelection lost")
        return EXIT_LEASE_LOST

    async def _lead(self) -> None:
        program = self._program
        assert program is not None  # `run` came first
        self._leads = True
        try:
            await self._sync(program)
            await program.lead()
        finally:
            self._leads = False

    async def _sync(self, program: ControllerProgram) -> None:
        if self._synced:
            return
        self.informers.start()
        limit = self.settings.sync_timeout_s
        while True:
            try:
                await self.informers.wait_for_cache_sync(limit or SYNC_WARNING_INTERVAL_S)
                break
            except TimeoutError as late:
                if limit is not None:
                    raise StartupError(
                        f"no first answer within {limit:.0f} s: {late}. Are the CustomResourceDefinitions installed "
                        "(koord crds | kubectl apply --server-side -f -), and may this account read them "
                        "(koord manifests)?"
                    ) from late
                _LOG.warning("still waiting for first lists: %s", late)
        await program.on_synced()
        self._synced = True
        freeze_after_startup()
        _LOG.info("every handler has heard its first list")

    async def _close(self, program: ControllerProgram) -> None:
        """Close the parts, the last made first; one that fails to close does not keep the others from closing."""
        async with AsyncExitStack() as parts:
            for transport in self._transports:
                parts.push_async_callback(transport.close)
            for address in self.settings.addresses:
                for transport in address.guard_transports:
                    parts.push_async_callback(transport.close)
            for server in (self.health_server, self.server):
                parts.push_async_callback(server.close)
            parts.push_async_callback(self.informers.stop)
            parts.push_async_callback(program.stop)

    # Parts -------------------------------------------------------------------------------------------------------

    def _write_fence(self) -> WriteFence | None:
        lease = self.settings.lease
        if lease is None:
            return None
        # What left by the renew deadline is delivered or given up before another may acquire the lease.
        return WriteFence(is_open=self.may_write, unacknowledged_s=lease.duration_s - lease.renew_deadline_s)

    def _connect(self, fence: WriteFence | None = None) -> Transport:
        connection = self.settings.connection
        transport = MeteredTransport(
            self._connect_transport(connection, self.clock, fence=fence),
            self._rest_metrics,
            connection.server,
            self.clock,
        )
        self._transports.append(transport)
        return transport

    def _client(self, transport: Transport) -> Client:
        given = self.settings
        return Client(
            transport,
            clock=self.clock,
            qps=given.qps,
            burst=given.burst,
            user_agent=given.user_agent,
            chance=random.Random(self._rng.getrandbits(64)),
        )

    def _build_elector(self, lease: LeaseConfig) -> LeaderElector:
        status = leader_status(self.settings.registry).labels(lease.name)

        async def lead() -> None:
            status.set(1)
            await self._lead()

        return LeaderElector(
            self._client(self._connect()),  # renewals must not queue behind a busy program's requests
            self.clock,
            lease,
            on_started=lead,
            on_stopped=lambda: status.set(0),
            on_new_leader=lambda who: _LOG.info("new leader elected: %s", who or "nobody"),
            rng=random.Random(self._rng.getrandbits(64)),
        )

    def _malformed(self, what: MalformedObject) -> None:
        _LOG.warning("%s %s/%s cannot be read and is left out: %s", what.kind, what.namespace, what.name, what.error)
        if self.on_malformed is not None:
            self.on_malformed(what)


class StandaloneProgram(Generic[P]):
    """StandaloneProgram runs a program that always leads, in a process that starts the informers itself."""

    def __init__(self, name: str, program: P) -> None:
        self.program = program
        self._name = name
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.program.start()
        self._task = asyncio.create_task(self._lead(), name=self._name)
        self._task.add_done_callback(self._log_if_failed)

    async def stop(self) -> None:
        """Stop the program, and raise the exception that ended it, if there was one."""
        died: BaseException | None = None
        if self._task is not None:
            self._task.cancel()
            (end,) = await asyncio.gather(self._task, return_exceptions=True)
            died = end if isinstance(end, Exception) else None
        await self.program.stop()
        if died is not None:
            raise died

    async def _lead(self) -> None:
        await self.program.on_synced()
        await self.program.lead()

    def _log_if_failed(self, task: asyncio.Task[None]) -> None:
        """Log a program that ended with an exception at once: nobody may stop the process and see it for long."""
        if not task.cancelled() and task.exception() is not None:
            _LOG.critical("%s ended and does nothing any more", self._name, exc_info=task.exception())
