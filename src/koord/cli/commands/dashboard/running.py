"""This module joins the dashboard's server, the watch that feeds it, and its reports."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping

from koord.cli.commands.dashboard.cluster_watch import ClusterWatch
from koord.dashboard.fleet import FleetTable
from koord.dashboard.report import Report
from koord.dashboard.server import DashboardServer
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.telemetry.clock import Clock


class RunningDashboard:
    """RunningDashboard is the server and what feeds it: `listen` for its address, then `start`, then `stop`."""

    def __init__(self, client: Client, informers: InformerFactory, clock: Clock) -> None:
        fleet = FleetTable(secrets.token_hex(4), clock.time())
        self.watch = ClusterWatch(client, informers, clock, fleet)
        self.server = DashboardServer(fleet, lambda: _load_reports(client, clock, self.watch), clock)
        self._task: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int) -> str:
        """Return the address with its token. Raises NotLoopback, and OSError where it cannot listen."""
        return await self.server.listen(host, port)

    def start(self) -> None:
        self.watch.start()
        self.server.before_tick = self.watch.refresh
        self._task = asyncio.create_task(self.server.run(), name="dashboard")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.watch.stop()
        await self.server.close()


def _load_reports(client: Client, clock: Clock, watch: ClusterWatch) -> Mapping[str, Report]:
    """Load the modules of a dozen commands: a tenth of a second that `koord up` does not wait for."""
    from koord.cli.commands.dashboard.reports import DashboardReports

    return DashboardReports(client, clock, watch).table()
