"""This module is the koord-descheduler program: rounds and migrations against any API server."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from koord.api.model import to_dict
from koord.cli.beginning import ground, settled, write_config
from koord.cli.descheduler_config import Configured, configured
from koord.cli.election import lease_of
from koord.cli.flags import Values
from koord.cli.flags_descheduler import PROGRAM, descheduler_flags
from koord.cli.flags_logging import verbosity
from koord.cli.flags_serving import Guarded, Wrong, guard_of
from koord.cli.program import refuse, run, run_loop
from koord.descheduler.assembly import Assembly
from koord.descheduler.explain import service
from koord.descheduler.metrics import Metrics
from koord.descheduler.program import Descheduler
from koord.descheduler.slimming import slim
from koord.descheduler.world import World
from koord.kube.client import Client
from koord.kube.connection import Connection
from koord.kube.election import Election
from koord.kube.fence import FencedTransport
from koord.kube.http import HttpTransport
from koord.kube.informers import Informers
from koord.kube.recorder import Recorder
from koord.telemetry import collector, health
from koord.telemetry.certificate import ServingCertificate
from koord.telemetry.clock import WallClock
from koord.telemetry.endpoint import Endpoint
from koord.telemetry.health import Check
from koord.telemetry.logs import Logs
from koord.telemetry.metrics.process import watch_process
from koord.telemetry.metrics.registry import Registry

_LOG = logging.getLogger("koord.cli.koord_descheduler")  # by name: as a script this module is called __main__

LOST = 1
LATE_S = 30.0  # how often a start that gets no answers says so


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """DeschedulerProcessPlan is everything that was settled before the first connection."""

    values: Values
    logs: Logs
    configured: Configured
    connection: Connection
    registry: Registry
    certificate: ServingCertificate | None
    environ: Mapping[str, str]


def main() -> None:
    """Run the console script."""
    sys.exit(run(descheduler_flags(), sys.argv[1:], lambda values, logs: work(values, logs, os.environ)))


def work(values: Values, logs: Logs, environ: Mapping[str, str]) -> int:
    """Run the descheduler and return the exit code. What is wrong is printed, one line each."""
    ready = settled(descheduler_flags(), values, configured)
    if isinstance(ready, int):
        return ready
    if values.text("write-config-to"):
        return write_config(PROGRAM, written(ready.assembly), Path(values.text("write-config-to")))
    stand = ground(PROGRAM, values, environ, ready.assembly.config.client_connection.kubeconfig)
    if isinstance(stand, Wrong):
        return refuse(PROGRAM, [stand.message])
    plan = Plan(
        values=values,
        logs=logs,
        configured=ready,
        connection=stand.connection,
        registry=stand.registry,
        certificate=stand.certificate,
        environ=environ,
    )
    return run_loop(lambda stop: Process(plan).run(stop))


def written(assembly: Assembly) -> str:
    return yaml.safe_dump(to_dict(assembly.config), sort_keys=False)


class Process:
    """DeschedulerProcess is one run: ports, then the lease, then watching and work; a standby only waits."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._clock = WallClock()
        self._leads = False
        hostname = socket.gethostname()
        self.identity = f"{hostname}_{uuid.uuid4()}"
        self._client = self._connect(fenced=True)
        self._lease_client = self._connect()  # renewals must not queue behind the work
        self._informers = Informers(self._client, self._clock)
        slim(self._informers)
        self._recorder = Recorder(self._client, self._clock, controller=PROGRAM, instance=f"{PROGRAM}-{self.identity}")
        watch_process(plan.registry)
        world = World(
            client=self._client,
            informers=self._informers,
            clock=self._clock,
            recorder=self._recorder,
            metrics=Metrics(plan.registry),
            identity=str(uuid.uuid4()),
            gates=plan.configured.gates,
        )
        self._descheduler = Descheduler(world, plan.configured.assembly)
        self._election = self._elect()
        self._endpoint = self._serve()

    async def run(self, stop: asyncio.Event) -> int:
        guarded: Guarded | None = None
        ending = asyncio.create_task(stop.wait(), name="signal")
        try:
            listening = await self._listen()
            if isinstance(listening, str):
                return refuse(PROGRAM, [listening])
            guarded = listening
            working = asyncio.create_task(self._work(), name=PROGRAM)
            await asyncio.wait({ending, working}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            return 0
        finally:
            ending.cancel()
            await self._close(guarded)

    async def _work(self) -> int:
        if self._election is None:
            await self._lead()
            return LOST
        if await self._election.run() == "lost":
            _LOG.critical("lost lease")
        return LOST

    async def _lead(self) -> None:
        self._leads = True
        self._recorder.start()
        self._informers.start()
        try:
            while True:
                try:
                    await self._informers.synced(LATE_S)
                    break
                except TimeoutError as late:
                    _LOG.warning("still waiting for first lists: %s", late)
            collector.settle()
            await self._descheduler.lead()
        finally:
            self._leads = False

    async def _close(self, guarded: Guarded | None) -> None:
        await self._informers.stop()
        await self._recorder.stop()
        await self._endpoint.close()
        if guarded is not None:
            await guarded.close()
        for client in (self._client, self._lease_client):
            await client.close()

    # Parts -------------------------------------------------------------------------------------------------------

    def _connect(self, *, fenced: bool = False) -> Client:
        given = self._plan.configured.assembly.config.client_connection
        inner = HttpTransport(self._plan.connection, self._clock)
        transport = FencedTransport(inner, self._may_write) if fenced else inner
        return Client(transport, clock=self._clock, qps=given.qps, burst=given.burst, user_agent=PROGRAM)

    def _may_write(self) -> bool:
        return self._election is None or self._election.leading

    def _elect(self) -> Election | None:
        given = self._plan.configured.assembly.config.leader_election
        if not given.leader_elect:
            return None
        return Election(
            self._lease_client,
            self._clock,
            lease_of(given, self.identity),
            on_started=self._lead,
            on_new_leader=lambda who: _LOG.info("new leader elected: %s", who or "nobody"),
        )

    def _serve(self) -> Endpoint:
        endpoint = Endpoint(self._clock)
        elected: dict[str, Check] = {} if self._election is None else {"leaderElection": self._lease_is_fresh}
        endpoint.health("healthz", elected or {"ping": health.ping})
        endpoint.metrics([self._plan.registry])
        config = self._plan.configured.assembly.config
        shown = yaml.safe_load(written(self._plan.configured.assembly))
        endpoint.config(lambda: shown)
        if config.enable_profiling is not False:
            endpoint.debug()
        endpoint.flag("v", lambda text: verbosity(self._plan.logs, text))
        service.serve(endpoint, self._descheduler, lambda: self._leads)
        return endpoint

    def _lease_is_fresh(self) -> str | None:
        election = self._election
        if election is None or not self._leads or election.leading:
            return None
        return f"failed election to renew leadership on lease {election.config.name}"

    async def _listen(self) -> Guarded | str | None:
        """Return the guard of the secure port, if there is one; or why nothing can be served."""
        config, values = self._plan.configured.assembly.config, self._plan.values
        places = dict.fromkeys((config.healthz_bind_address or "", config.metrics_bind_address or ""))
        where, guarded = "", None
        try:
            for where in places:
                host, _, port = where.rpartition(":")
                if int(port):
                    await self._endpoint.listen(host.strip("[]"), int(port))
            if self._plan.certificate is not None:
                made = guard_of(values, self._plan.environ, self._clock)
                if isinstance(made, Wrong):
                    return made.message
                guarded = made
                where = f"{values.text('bind-address')}:{values.number('secure-port')}"
                await self._endpoint.listen(
                    values.text("bind-address"),
                    values.number("secure-port"),
                    certificate=self._plan.certificate,
                    guard=guarded.guard,
                )
        except OSError as trouble:
            return f"cannot listen on {where}: {os.strerror(trouble.errno or 0).lower()}"
        return guarded


if __name__ == "__main__":
    main()
