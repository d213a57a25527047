"""This module is the dashboard inside `koord up`: it shares the cluster's informers and listens on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koord.embedded.cluster import ComponentContext

if TYPE_CHECKING:
    from koord.cli.commands.dashboard.running import RunningDashboard


HISTORY_FILE = "dashboard-history.json"


class DashboardListenError(Exception):
    """DashboardListenError says that the address of the dashboard cannot be used."""


class LocalDashboard:
    """LocalDashboard is a component of the embedded cluster; `url` is its address once it has started."""

    def __init__(self, context: ComponentContext, host: str, port: int) -> None:
        self._context = context
        self._address = host, port
        self._running: RunningDashboard | None = None
        self.url = ""

    async def start(self) -> None:
        from koord.cli.commands.dashboard.running import RunningDashboard
        from koord.dashboard.history_file import HistoryFile

        context = self._context
        # A cluster in memory is another one after a restart, and has no past.
        history = HistoryFile(context.data_dir / HISTORY_FILE) if context.data_dir is not None else None
        self._running = RunningDashboard(context.client, context.informers, context.clock, history)
        host, port = self._address
        try:
            self.url = await self._running.listen(host, port)
        except OSError as error:
            why = error.strerror or str(error)
            raise DashboardListenError(
                f"the dashboard cannot listen on {host}:{port}: {why}; choose another address with --set "
                "dashboard.listen=HOST:PORT, or leave it out with --set dashboard.enabled=false"
            ) from error
        self._running.start()

    async def stop(self) -> None:
        if self._running is not None:
            await self._running.stop()
