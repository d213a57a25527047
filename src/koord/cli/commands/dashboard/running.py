"""This module joins the dashboard's server, the watch that feeds it, and its reports."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from koord.cli.commands.dashboard.cluster_watch import ClusterWatch
from koord.dashboard.fleet import FleetTable
from koord.dashboard.history_file import SAVE_EVERY_S, HistoryFile, HistoryUnreadable
from koord.dashboard.report import Report
from koord.dashboard.server import DashboardServer
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.telemetry.clock import Clock

if TYPE_CHECKING:
    from koord.cli.commands.dashboard.program_places import GivenPlaces


class RunningDashboard:
    """RunningDashboard is the server and what feeds it: `listen` for its address, then `start`, then `stop`."""

    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        clock: Clock,
        history: HistoryFile | None = None,
        given: GivenPlaces | None = None,
    ) -> None:
        """Create the dashboard. Without `history` its time lines begin with the process and end with it; without
        `given` koord's programs are looked for.
        """
        self._fleet = fleet = FleetTable(secrets.token_hex(4), clock.time())
        self._clock = clock
        self._history = history
        if history is not None:
            self._restore(history)
        self.watch = ClusterWatch(client, informers, clock, fleet)
        self.server = DashboardServer(fleet, lambda: _load_reports(client, clock, self.watch, given), clock)
        self._tasks: list[asyncio.Task[None]] = []

    async def listen(self, host: str, port: int) -> str:
        """Return the address with its token. Raises NotLoopback, and OSError where it cannot listen."""
        return await self.server.listen(host, port)

    def start(self) -> None:
        self.watch.start()
        self.server.before_tick = self.watch.refresh
        self._tasks.append(asyncio.create_task(self.server.run(), name="dashboard"))
        if self._history is not None:
            self._tasks.append(asyncio.create_task(self._keep(self._history), name="dashboard-history"))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._tasks and self._history is not None:
            self._history.save(self._fleet.history())
        await self.watch.stop()
        await self.server.close()

    def _restore(self, history: HistoryFile) -> None:
        past = history.load()
        if isinstance(past, HistoryUnreadable):
            self._fleet.history_problem = past.text
        elif past is not None:
            self._fleet.restore(past)

    async def _keep(self, history: HistoryFile) -> None:
        """Save the past every minute, in a thread: a slow disk holds nobody up."""
        while True:
            await self._clock.sleep(SAVE_EVERY_S)
            self._fleet.history_problem = await asyncio.to_thread(history.save, self._fleet.history())


def _load_reports(client: Client, clock: Clock, watch: ClusterWatch, given: GivenPlaces | None) -> Mapping[str, Report]:
    """Load the modules of a dozen commands: a tenth of a second that `koord up` does not wait for."""
    from koord.cli.commands.dashboard.program_places import NOTHING_GIVEN
    from koord.cli.commands.dashboard.reports import DashboardReports

    return DashboardReports(client, clock, watch, given or NOTHING_GIVEN).table()
