"""This module is the koord-manager program: controllers and webhooks against any API server."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import uuid

from koord.cli import program as process
from koord.cli.flags import Values
from koord.cli.flags_logging import verbosity
from koord.cli.manager_flags import FLAGS, Plan, planned
from koord.kube.client import Client
from koord.kube.connection import BadConfig, Connection
from koord.kube.election import Election
from koord.kube.http import HttpTransport
from koord.kube.informers import Informers
from koord.kube.lease import LeaseConfig
from koord.kube.loader import load
from koord.kube.recorder import Recorder
from koord.manager.explain import service
from koord.manager.program import LEASE, Manager
from koord.manager.serving.webhooks import NotServing, Webhooks
from koord.manager.slimming import slim
from koord.manager.world import World
from koord.telemetry import collector, health
from koord.telemetry.clock import Clock, WallClock
from koord.telemetry.endpoint import Endpoint
from koord.telemetry.logs import Logs
from koord.telemetry.metrics.process import watch_process

_LOG = logging.getLogger(__name__)

USER_AGENT = "koordinator-manager"
SYNC_S = 60.0


def run() -> None:
    sys.exit(process.run(FLAGS, sys.argv[1:], work))


def work(values: Values, logs: Logs) -> int:
    hostname = socket.gethostname()
    plan = planned(values, os.environ, hostname)
    if isinstance(plan, str):
        return _fail(plan)
    for name, why in FLAGS.unused(values):
        _LOG.info("--%s has no effect: %s", name, why)
    clock = WallClock()
    try:
        connection = load(os.environ, clock, path=plan.kubeconfig)
    except BadConfig as wrong:
        return _fail(str(wrong))
    return process.run_loop(lambda stop: Program(plan, connection, clock, logs, hostname).run(stop))


def _fail(words: str) -> int:
    print(f"koord-manager: {words}", file=sys.stderr)
    return 1


class Program:
    """ManagerProcess is one run: everything is made, started in order and stopped in reverse."""

    def __init__(self, plan: Plan, connection: Connection, clock: Clock, logs: Logs, hostname: str) -> None:
        self._plan = plan
        self._clock = clock
        self._logs = logs
        self._identity = f"{hostname}_{uuid.uuid4()}"
        self._client = self._connected(connection, plan.qps, plan.burst)
        self._informers = Informers(self._client, clock)
        slim(self._informers, plan.settings)
        recorder = Recorder(self._client, clock, controller="koord-manager", instance=f"koord-manager-{hostname}")
        world = World(
            client=self._client, informers=self._informers, clock=clock, recorder=recorder, settings=plan.settings
        )
        self._manager = Manager(world, plan.wishes)
        self._election: Election | None = None
        self._lease_client: Client | None = None
        if plan.elects:
            self._lease_client = self._connected(connection, 0, 0)
            config = LeaseConfig(name=LEASE, namespace=plan.lease_namespace, identity=self._identity)
            self._election = Election(self._lease_client, clock, config, on_started=self._lead)
        self._webhooks: Webhooks | None = None
        if plan.serving is not None:
            self._webhooks = Webhooks(
                world,
                self._manager.judge.doors,
                self._manager.metrics,
                plan.serving,
                excluded=self._manager.judge.excluded,
                pages={"/elasticQuota": self._manager.quotas.to_json},
                leads=self._leads,
            )
        self._endpoint = self._made_endpoint()
        self._health = self._made_health()

    def _connected(self, connection: Connection, qps: float, burst: int) -> Client:
        return Client(
            HttpTransport(connection, self._clock), clock=self._clock, qps=qps, burst=burst, user_agent=USER_AGENT
        )

    def _leads(self) -> bool:
        return self._election is None or self._election.leading

    async def run(self, stop: asyncio.Event) -> int:
        """Run until `stop`, or until the lease is lost: the process then ends, so that nothing of its leadership is
        left.
        """
        try:
            await self._listen()
            await self._manager.start()
            self._informers.start()
            await self._informers.synced(SYNC_S)
            collector.settle()
            if self._webhooks is not None:
                await self._webhooks.start()
            return await self._work(stop)
        except TimeoutError as late:
            return _fail(
                f"no first answer within {SYNC_S:.0f} s: {late}. Are the CustomResourceDefinitions installed "
                "(koord crds | kubectl apply --server-side -f -), and may this account read them (koord manifests)?"
            )
        except NotServing as why:
            return _fail(str(why))
        finally:
            await self._end()

    async def _work(self, stop: asyncio.Event) -> int:
        stopped = asyncio.create_task(stop.wait())
        if self._election is None:
            await self._manager.lead()
            await stopped
            return 0
        leading = asyncio.create_task(self._election.run())
        await asyncio.wait({stopped, leading}, return_when=asyncio.FIRST_COMPLETED)
        if leading.done():
            stopped.cancel()
            _LOG.error("leadership of %s ended: %s", LEASE, leading.result())
            return 1
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        return 0

    async def _lead(self) -> None:
        await self._manager.lead()
        try:
            await asyncio.Event().wait()
        finally:
            await self._manager.resign()

    async def _end(self) -> None:
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

    def _made_endpoint(self) -> Endpoint:
        registry = self._manager.registry
        watch_process(registry)
        endpoint = Endpoint(self._clock)
        # Upstream has two registries and a merged view. There is one here, and every path shows all of it.
        for path in ("/metrics", "/internal-metrics", "/external-metrics", "/all-metrics"):
            endpoint.metrics((registry,), path)
        service.serve(endpoint, self._manager, self._leads)
        endpoint.flag("v", lambda text: verbosity(self._logs, text))
        return endpoint

    def _made_health(self) -> Endpoint:
        endpoint = Endpoint(self._clock)
        checks: dict[str, health.Check] = {"ping": health.ping}
        endpoint.health("healthz", checks)
        ready = {**checks, "informer-sync": self._synced}
        if self._webhooks is not None:
            ready["webhook-ready"] = self._webhooks.ready
        endpoint.health("readyz", ready)
        return endpoint

    def _synced(self) -> str | None:
        late = [informer.resource.plural for informer in self._informers if not informer.synced]
        return f"no first answer about {', '.join(late)}" if late else None

    async def _listen(self) -> None:
        for endpoint, place in ((self._endpoint, self._plan.metrics), (self._health, self._plan.health)):
            if place is None:
                continue
            try:
                await endpoint.listen(*place)
            except OSError as error:
                raise NotServing(f"cannot listen on {place[0]}:{place[1]}: {error.strerror or error}") from error


if __name__ == "__main__":
    run()
