"""This module is the koord-manager program: controllers and webhooks against any API server."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import uuid

from koord.cli.daemons import lifecycle as process
from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.lifecycle import set_verbosity
from koord.cli.daemons.manager_flags import MANAGER_FLAGS, ManagerPlan, plan_manager
from koord.kube.client.typed_client import Client
from koord.kube.config.connection import BadConfig, Connection
from koord.kube.config.loader import load_connection
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.leader.election import LeaderElector
from koord.kube.leader.lease import LeaseConfig
from koord.kube.transport.http import HttpTransport
from koord.manager import program
from koord.manager.context import ManagerContext
from koord.manager.informer_transforms import register_transforms
from koord.manager.program import LEASE_NAME, Manager
from koord.manager.webhook_server.serving import WebhookServing, WebhooksNotReady
from koord.telemetry import component_server, gc_tuning
from koord.telemetry.clock import Clock, WallClock
from koord.telemetry.component_server import ComponentServer
from koord.telemetry.logs import Logs
from koord.telemetry.metrics.process import register_process_metrics

_LOG = logging.getLogger(__name__)

USER_AGENT = "koordinator-manager"
SYNC_TIMEOUT_S = 60.0


def run() -> None:
    sys.exit(process.run_program(MANAGER_FLAGS, sys.argv[1:], run_manager))


def run_manager(values: FlagValues, logs: Logs) -> int:
    hostname = socket.gethostname()
    plan = plan_manager(values, os.environ, hostname)
    if isinstance(plan, str):
        return _fail(plan)
    for name, why in MANAGER_FLAGS.set_without_effect(values):
        _LOG.info("--%s has no effect: %s", name, why)
    clock = WallClock()
    try:
        connection = load_connection(os.environ, clock, path=plan.kubeconfig)
    except BadConfig as wrong:
        return _fail(str(wrong))
    return process.run_event_loop(lambda stop: ManagerProcess(plan, connection, clock, logs, hostname).run(stop))


def _fail(words: str) -> int:
    print(f"koord-manager: {words}", file=sys.stderr)
    return 1


class ManagerProcess:
    """ManagerProcess is one run: everything is made, started in order and stopped in reverse."""

    def __init__(self, plan: ManagerPlan, connection: Connection, clock: Clock, logs: Logs, hostname: str) -> None:
        self._plan = plan
        self._clock = clock
        self._logs = logs
        self._identity = f"{hostname}_{uuid.uuid4()}"
        self._client = self._make_client(connection, plan.qps, plan.burst)
        self._informers = InformerFactory(self._client, clock)
        register_transforms(self._informers, plan.settings)
        recorder = EventRecorder(self._client, clock, controller="koord-manager", instance=f"koord-manager-{hostname}")
        world = ManagerContext(
            client=self._client, informers=self._informers, clock=clock, recorder=recorder, settings=plan.settings
        )
        self._manager = Manager(world, plan.wishes)
        self._election: LeaderElector | None = None
        self._lease_client: Client | None = None
        if plan.elects:
            self._lease_client = self._make_client(connection, 0, 0)
            config = LeaseConfig(name=LEASE_NAME, namespace=plan.lease_namespace, identity=self._identity)
            self._election = LeaderElector(self._lease_client, clock, config, on_started=self._lead)
        self._webhooks: WebhookServing | None = None
        if plan.serving is not None:
            self._webhooks = WebhookServing(
                world,
                self._manager.webhook_handlers.handlers,
                self._manager.metrics,
                plan.serving,
                excluded=self._manager.webhook_handlers.excluded_namespaces,
                pages={"/elasticQuota": self._manager.quotas.to_json},
                leads=self._leads,
            )
        self._endpoint = self._build_endpoint()
        self._health = self._build_health_endpoint()

    def _make_client(self, connection: Connection, qps: float, burst: int) -> Client:
        return Client(
            HttpTransport(connection, self._clock), clock=self._clock, qps=qps, burst=burst, user_agent=USER_AGENT
        )

    def _leads(self) -> bool:
        return self._election is None or self._election.is_leading

    async def run(self, stop: asyncio.Event) -> int:
        """Run until `stop`, or until the lease is lost: the process then ends, so that nothing of its leadership is
        left.
        """
        try:
            await self._listen()
            await self._manager.start()
            self._informers.start()
            await self._informers.wait_for_cache_sync(SYNC_TIMEOUT_S)
            gc_tuning.freeze_after_startup()
            if self._webhooks is not None:
                await self._webhooks.start()
            return await self._work(stop)
        except TimeoutError as late:
            return _fail(
                f"no first answer within {SYNC_TIMEOUT_S:.0f} s: {late}. Are the CustomResourceDefinitions installed "
                "(koord crds | kubectl apply --server-side -f -), and may this account read them (koord manifests)?"
            )
        except WebhooksNotReady as why:
            return _fail(str(why))
        finally:
            await self._close()

    async def _work(self, stop: asyncio.Event) -> int:
        stopped = asyncio.create_task(stop.wait())
        if self._election is None:
            await self._manager.start_leading()
            await stopped
            return 0
        leading = asyncio.create_task(self._election.run())
        await asyncio.wait({stopped, leading}, return_when=asyncio.FIRST_COMPLETED)
        if leading.done():
            stopped.cancel()
            _LOG.error("leadership of %s ended: %s", LEASE_NAME, leading.result())
            return 1
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        return 0

    async def _lead(self) -> None:
        await self._manager.start_leading()
        try:
            await asyncio.Event().wait()
        finally:
            await self._manager.stop_leading()

    async def _close(self) -> None:
        if self._webhooks is not None:
            await self._webhooks.stop()
        await self._manager.stop()
        await self._informers.stop()
        for client in (self._client, self._lease_client):
            if client is not None:
                await client.close()
        await self._endpoint.close()
        await self._health.close()

    # Ports -------------------------------------------------------------------------------------------------------

    def _build_endpoint(self) -> ComponentServer:
        registry = self._manager.registry
        register_process_metrics(registry)
        endpoint = ComponentServer(self._clock)
        # Upstream has two registries and a merged view. There is one here, and every path shows all of it.
        for path in ("/metrics", "/internal-metrics", "/external-metrics", "/all-metrics"):
            endpoint.metrics((registry,), path)
        program.serve_explanations(endpoint, self._manager, self._leads)
        endpoint.flag("v", lambda text: set_verbosity(self._logs, text))
        return endpoint

    def _build_health_endpoint(self) -> ComponentServer:
        endpoint = ComponentServer(self._clock)
        checks: dict[str, component_server.HealthCheck] = {"ping": component_server.ping}
        endpoint.health("healthz", checks)
        ready = {**checks, "informer-sync": self._synced}
        if self._webhooks is not None:
            ready["webhook-ready"] = self._webhooks.check_ready
        endpoint.health("readyz", ready)
        return endpoint

    def _synced(self) -> str | None:
        late = [informer.resource.plural for informer in self._informers if not informer.has_synced]
        return f"no first answer about {', '.join(late)}" if late else None

    async def _listen(self) -> None:
        for endpoint, place in ((self._endpoint, self._plan.metrics), (self._health, self._plan.health)):
            if place is None:
                continue
            try:
                await endpoint.listen(*place)
            except OSError as error:
                raise WebhooksNotReady(f"cannot listen on {place[0]}:{place[1]}: {error.strerror or error}") from error


if __name__ == "__main__":
    run()
