"""The ports on which a program tells about itself: health, metrics, configuration, log level, and its own services.

Plain HTTP and HTTPS serve the same routes; a guard may stand before them. A client that is slow, dead or one of too
many costs its own connection only: every answer has a deadline, which covers writing it, and connections are capped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from koord.telemetry import health, routing, stacks
from koord.telemetry.certificate import BadCertificate, ServingCertificate
from koord.telemetry.clock import Clock
from koord.telemetry.health import Check, Report
from koord.telemetry.metrics import exposition
from koord.telemetry.metrics.registry import Registry
from koord.telemetry.routing import NOT_FOUND, Call, Guard, Handler, Reply, Routes

_LOG = logging.getLogger(__name__)

ANSWER_S = 30.0  # to read a request's body, answer it and have the answer taken
IDLE_S = 60.0
MAX_CONNECTIONS = 512
MAX_BODY_BYTES = 1 << 20
REFRESH_S = 60.0  # how often certificate files are looked at
_HEADERS = {"Cache-Control": "no-cache, private", "X-Content-Type-Options": "nosniff"}


class Endpoint:
    """Serves a program's own routes: register them, then `listen` once per port, then `close`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._runners: list[web.ServerRunner] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.routes = Routes()

    # What is served --------------------------------------------------------------------------------------------------

    def health(self, name: str, checks: Mapping[str, Check]) -> None:
        """Serve /<name> with all checks and /<name>/<check> with one; `checks` may grow later."""

        def all_of(call: Call) -> Reply:
            exclude = call.query.get("exclude", ())
            verbose = "verbose" in call.query
            return _health(name, health.report(name, checks, verbose=verbose, exclude=exclude))

        def one_of(call: Call) -> Reply:
            check = checks.get(call.parameters["check"])
            return NOT_FOUND if check is None else _health(name, health.single(check))

        self.routes.add("*", f"/{name}", all_of)
        self.routes.add("*", f"/{name}/:check", one_of)

    def metrics(self, registries: Iterable[Registry], path: str = "/metrics") -> None:
        shown = tuple(registries)

        def serve(call: Call) -> Reply:
            open_metrics = exposition.wants_open(call.headers.get("Accept", ""))
            kind = exposition.OPEN if open_metrics else exposition.TEXT
            return Reply(body=exposition.render(shown, open_metrics=open_metrics), content_type=kind)

        self.routes.add("GET", path, serve)

    def config(self, read: Callable[[], Any], name: str = "componentconfig") -> None:
        self.routes.add("GET", "/configz", lambda _: {name: read()})

    def debug(self) -> None:
        """Serve /debug/tasks: what every task of the process is waiting for."""
        self.routes.add("GET", "/debug/tasks", lambda _: routing.text(stacks.tasks()))

    def flag(self, name: str, put: Callable[[str], str]) -> None:
        """Serve PUT /debug/flags/<name>: `put` takes the body and returns what it did, or raises ValueError."""

        def change(call: Call) -> Reply:
            if call.method != "PUT":
                return routing.text("unsupported http method\n", 406)
            try:
                return routing.text(put(call.body.decode()) + "\n")
            except ValueError as wrong:
                return routing.text(f"{wrong}\n", 400)

        self.routes.add("*", f"/debug/flags/{name}", change)

    # Serving ---------------------------------------------------------------------------------------------------------

    async def listen(
        self,
        host: str,
        port: int,
        *,
        certificate: ServingCertificate | None = None,
        guard: Guard | None = None,
        share_address: bool | None = None,
        share_port: bool | None = None,
    ) -> int:
        """Listen and return the port, chosen by the system for 0. Raises OSError when it cannot."""

        async def handle(raw: web.BaseRequest) -> web.StreamResponse:
            return await self._handle(raw, guard)

        server = _Server(handle, request_factory=_request, access_log=None, keepalive_timeout=IDLE_S)
        runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await runner.setup()
        self._runners.append(runner)
        context = certificate.context if certificate is not None else None
        site = web.TCPSite(
            runner,
            host or None,
            port,
            ssl_context=context,
            backlog=128,
            reuse_address=share_address,
            reuse_port=share_port,
        )
        await site.start()
        if certificate is not None:
            self._tasks.append(asyncio.create_task(self._refresh(certificate), name="certificate-refresh"))
        bound: int = runner.addresses[0][1]
        return bound

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        runners, self._runners = self._runners, []
        for runner in runners:
            await runner.cleanup()

    async def _refresh(self, certificate: ServingCertificate) -> None:
        while True:
            await self._clock.sleep(REFRESH_S)
            try:
                if certificate.refresh():
                    _LOG.info("serving a renewed certificate")
            except BadCertificate as bad:
                _LOG.warning("still serving the old certificate: %s", bad)

    async def _handle(self, raw: web.BaseRequest, guard: Guard | None) -> web.StreamResponse:
        response = web.Response()
        try:
            async with asyncio.timeout(ANSWER_S):
                reply = await self._answer(raw, guard)
                headers = {**_HEADERS, **reply.headers, "Content-Type": reply.content_type}
                response = web.Response(status=reply.status, body=reply.body, headers=headers)
                await response.prepare(raw)
                await response.write_eof()
        except TimeoutError:
            if raw.transport is not None:  # it will not take the answer, or it never sent its body
                raw.transport.abort()
        return response

    async def _answer(self, raw: web.BaseRequest, guard: Guard | None) -> Reply:
        try:
            body = await raw.read() if raw.body_exists else b""
        except web.HTTPRequestEntityTooLarge:
            return routing.text(f"the body is larger than {MAX_BODY_BYTES} bytes\n", 413)
        transport = raw.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        call = Call(
            method=raw.method,
            path=raw.path,
            query={name: tuple(raw.query.getall(name)) for name in raw.query},
            headers=raw.headers,
            body=body,
            certificate=certificate or None,
        )
        try:
            if guard is not None and (refusal := await guard(call)) is not None:
                return refusal
            return await self.answer(call)
        except Exception:  # noqa: BLE001 - the port serves on, whatever one handler did
            _LOG.exception("%s %s failed", call.method, call.path)
            return routing.text("internal server error\n", 500)

    async def answer(self, call: Call) -> Reply:
        """Return a call's reply, as a port would give it without a guard."""
        method = "GET" if call.method == "HEAD" else call.method
        found = self.routes.find(method, call.path)
        if found is None:
            return NOT_FOUND
        handler, parameters = found
        answer = handler(msgspec.structs.replace(call, parameters=parameters))
        if inspect.isawaitable(answer):
            answer = await answer
        return answer if isinstance(answer, Reply) else routing.json(answer)


class Services:
    """A program's own JSON routes below one base path, and a list of them at <base>/__services__."""

    def __init__(self, endpoint: Endpoint, base: str = "/apis/v1", unavailable: Callable[[], str | None] | None = None):
        """Register the list. `unavailable` returns why nothing can be answered now (503), for example on a standby
        replica.
        """
        self._routes = endpoint.routes
        self._base = base
        self._unavailable = unavailable
        self.add("GET", "/__services__", lambda _: self._routes.listing(base))

    def add(self, method: str, path: str, handler: Handler) -> None:
        def guarded(call: Call) -> Any:
            why = self._unavailable() if self._unavailable is not None else None
            return handler(call) if why is None else routing.trouble(503, why)

        self._routes.add(method, self._base + path, guarded)

    def plugin(self, plugin: str, routes: Sequence[tuple[str, Handler]]) -> None:
        for path, handler in routes:
            self.add("GET", f"/plugins/{plugin}{path}", handler)


class _Server(web.Server):
    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()


def _request(message: Any, payload: Any, protocol: RequestHandler, writer: Any, task: Any) -> web.BaseRequest:
    return web.BaseRequest(message, payload, protocol, writer, task, protocol._loop, client_max_size=MAX_BODY_BYTES)


def _health(name: str, result: Report) -> Reply:
    if result.ok:
        return routing.text(result.text)
    _LOG.info("%s check failed: %s", name, "; ".join(result.failures))
    return routing.text(result.text, 500)
