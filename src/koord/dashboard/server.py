"""This module serves the dashboard: its page, updates by long polling, reports, and what-if runs."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from typing import Any

import msgspec

from koord.dashboard.access import SESSION_PATH, DashboardAccess
from koord.dashboard.fleet import FleetTable
from koord.dashboard.report import Report, ReportTable
from koord.telemetry import http_routing
from koord.telemetry.clock import Clock
from koord.telemetry.component_server import ComponentServer
from koord.telemetry.http_routing import HttpCall, HttpHandler, HttpReply

# The pages by the first part of their path, as web/main.js has them.
PAGES = ("nodes", "pods", "quotas", "gangs", "reservations", "moves", "interference")
POLL_S = 20.0  # less than a component server's deadline for an answer
TICK_S = 1.0
CATCH_UP_S = 0.05  # between parts of a large change
_CONTENT_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


class NotLoopback(Exception):
    """NotLoopback is raised for an address that other machines could reach."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"{host} can be reached by other machines and the dashboard speaks plain HTTP: listen on 127.0.0.1, and "
            "reach it through an SSH tunnel (ssh -L)"
        )


class DashboardServer:
    """DashboardServer serves one cluster: `listen`, then feed `fleet`, whose seconds `run` closes, then `close`."""

    def __init__(
        self,
        fleet: FleetTable,
        load_reports: Callable[[], Mapping[str, Report]],
        clock: Clock,
        access: DashboardAccess | None = None,
    ) -> None:
        self.fleet = fleet
        self.access = access or DashboardAccess()
        self.before_tick: Callable[[], bool] = lambda: False  # brings rows up to date; true: there are more to do
        self._clock = clock
        self._reports = ReportTable(load_reports, clock)
        self._changed = asyncio.Event()
        self._assets: dict[str, bytes] = {}
        self._server = ComponentServer(clock)
        self._add_routes()

    async def listen(self, host: str, port: int) -> str:
        """Listen, and return the address with its token. Raises NotLoopback, and OSError where it cannot listen."""
        if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
            raise NotLoopback(host)
        bound = await self._server.listen(host, port, guard=self._guard)
        return self.access.serve_at(host, bound)

    async def run(self) -> None:
        """Tick every second, and sooner while rows are left to do, until cancelled."""
        while True:
            more = self.tick()
            await self._clock.sleep(CATCH_UP_S if more else TICK_S)

    def tick(self) -> bool:
        """Bring the rows up to date and wake the pages that wait; return whether rows are left to do."""
        more = self.before_tick()
        if self.fleet.tick(self._clock.time()):
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
        return more

    async def close(self) -> None:
        self._changed.set()
        await self._server.close()
        await self._reports.close()

    async def _guard(self, call: HttpCall) -> HttpReply | None:
        refusal = await self.access.guard(call)
        return None if refusal is None else _secured(refusal)

    def _add_routes(self) -> None:
        self._add("POST", SESSION_PATH, self.access.open_session)
        self._add("GET", "/api/updates", self._update)
        self._add("POST", "/api/what-if", self._run_what_if)
        self._add("GET", "/api/reports/:name", self._report)
        self._add("GET", "/assets/:file", lambda call: self._asset(call.parameters["file"]))
        self._add("GET", "/", lambda _: self._asset("index.html"))
        for path in ("/:page", "/:page/:name", "/:page/:namespace/:name"):
            self._add("GET", path, self._page)

    def _add(self, method: str, path: str, handler: HttpHandler) -> None:
        async def answer(call: HttpCall) -> HttpReply:
            answered = handler(call)
            reply = await answered if isinstance(answered, Awaitable) else answered
            return _secured(reply if isinstance(reply, HttpReply) else http_routing.json_reply(reply))

        self._server.routes.add(method, path, answer)

    def _page(self, call: HttpCall) -> HttpReply:
        return self._asset("index.html") if call.parameters["page"] in PAGES else http_routing.NOT_FOUND

    def _asset(self, name: str) -> HttpReply:
        kind = _CONTENT_TYPES.get(name.rpartition(".")[2])
        if kind is None or "/" in name or "\\" in name:
            return http_routing.NOT_FOUND
        if name not in self._assets:
            file = resources.files("koord.dashboard") / "web" / name
            if not file.is_file():
                return http_routing.NOT_FOUND
            self._assets[name] = file.read_bytes()
        return HttpReply(body=self._assets[name], content_type=kind)

    async def _update(self, call: HttpCall) -> dict[str, Any] | HttpReply:
        """Answer with what is newer than the page's state, as soon as something is."""
        epoch, since = call.first_value("epoch") or "", call.first_value("since") or "0"
        if not since.isdecimal() or len(since) > 18:
            return http_routing.error_reply(400, "since: must be the version of an earlier answer")
        if epoch == self.fleet.epoch and int(since) == self.fleet.version:
            try:
                async with asyncio.timeout(POLL_S):
                    await self._changed.wait()
            except TimeoutError:
                pass  # the page learns that the server is there
        return self.fleet.update(epoch, int(since))

    async def _report(self, call: HttpCall) -> HttpReply:
        parameters = {name: values[0] for name, values in call.query.items()}
        return await self._reports.reply(call.parameters["name"], parameters)

    async def _run_what_if(self, call: HttpCall) -> HttpReply:
        try:
            manifest = call.body.decode()
        except UnicodeDecodeError:
            return http_routing.error_reply(400, "the manifest is not UTF-8")
        return await self._reports.what_if(manifest)


def _secured(reply: HttpReply) -> HttpReply:
    return msgspec.structs.replace(reply, headers={**_HEADERS, **reply.headers})
