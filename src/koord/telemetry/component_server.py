"""The component server: the ports of a program for health, metrics, configuration, log level, and its own
services.

Plain HTTP and HTTPS serve the same routes; a guard may check each call first. A client that is slow, dead
or one of too many costs its own connection only: every answer has a deadline, which covers writing it,
and connections are capped.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from koord.telemetry import http_routing, metrics
from koord.telemetry.clock import Clock
from koord.telemetry.http_routing import NOT_FOUND, HttpCall, HttpGuard, HttpHandler, HttpReply, RouteTable
from koord.telemetry.metrics import MetricFamily, MetricRegistry
from koord.telemetry.serving_certificate import ServingCertificate, ServingCertificateError

# None when all is well, else what is wrong, as text for the log and for `?verbose` of trusted callers.
HealthCheck = Callable[[], str | None]


class HealthReport(msgspec.Struct, frozen=True):
    ok: bool
    text: str  # for the client
    failures: tuple[str, ...] = ()  # for the log: "name: reason"


def ping() -> str | None:
    return None


def run_checks(
    name: str, checks: Mapping[str, HealthCheck], *, verbose: bool = False, exclude: Sequence[str] = ()
) -> HealthReport:
    """Run all checks of `name` ("healthz", "livez", "readyz"). Reasons are withheld: the port may be open to anyone."""
    lines: list[str] = []
    failures: list[str] = []
    unused = set(exclude)
    for check, ask in checks.items():
        if check in unused:
            unused.discard(check)
            lines.append(f"[+]{check} excluded: ok")
            continue
        why = ask()
        if why is None:
            lines.append(f"[+]{check} ok")
        else:
            lines.append(f"[-]{check} failed: reason withheld")
            failures.append(f"{check}: {why}")
    if unused:
        quoted = ",".join(f'"{one}"' for one in sorted(unused))
        lines.append(f"warn: some health checks cannot be excluded: no matches for {quoted}")
    if failures:
        return HealthReport(False, "\n".join([*lines, f"{name} check failed", ""]), tuple(failures))
    return HealthReport(True, "\n".join([*lines, f"{name} check passed", ""]) if verbose else "ok")


def run_single_check(check: HealthCheck) -> HealthReport:
    why = check()
    return HealthReport(True, "ok") if why is None else HealthReport(False, f"internal server error: {why}\n", (why,))


_FRAMES = 6


def dump_tasks() -> str:
    """Dump the stacks of all asyncio tasks. Tasks with the same stack are listed once, with their number."""
    stacks: Counter[str] = Counter()
    names: dict[str, list[str]] = {}
    for task in asyncio.all_tasks():
        text = io.StringIO()
        task.print_stack(limit=_FRAMES, file=text)
        stack = "\n".join(text.getvalue().splitlines()[1:])  # the first line names the task
        stacks[stack] += 1
        names.setdefault(stack, []).append(task.get_name())
    parts = []
    for stack, count in stacks.most_common():
        shown = ", ".join(sorted(names[stack])[:5])
        parts.append(f"{count} at this place: {shown}{', ...' if count > 5 else ''}\n{stack}\n")
    return "\n".join(parts)


_LOG = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 30.0  # to read a request's body, answer it and have the answer taken
IDLE_TIMEOUT_S = 60.0
MAX_CONNECTIONS = 512
MAX_BODY_BYTES = 1 << 20
CERTIFICATE_REFRESH_S = 60.0  # how often certificate files are looked at
_HEADERS = {"Cache-Control": "no-cache, private", "X-Content-Type-Options": "nosniff"}


def health_check_metrics(registry: MetricRegistry) -> tuple[MetricFamily[metrics.Gauge], MetricFamily[metrics.Counter]]:
    """Register the metrics of health checks, with the names that Kubernetes' components give them."""
    return (
        registry.gauge(
            "kubernetes_healthcheck", "Whether a health check passed when it was last asked, 1 or 0.", ("name", "type")
        ),
        registry.counter("kubernetes_healthchecks_total", "Results of health checks.", ("name", "status", "type")),
    )


class ComponentServer:
    """Serves a program's own routes: register them, then `listen` once per port, then `close`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._runners: list[web.ServerRunner] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.routes = RouteTable()
        self._slis = MetricRegistry()
        self._last_result, self._results = health_check_metrics(self._slis)

    # What is served --------------------------------------------------------------------------------------------------

    def health(self, name: str, checks: Mapping[str, HealthCheck]) -> None:
        """Serve /<name> with all checks and /<name>/<check> with one; `checks` may grow later."""

        def all_of(call: HttpCall) -> HttpReply:
            exclude = call.query.get("exclude", ())
            verbose = "verbose" in call.query
            observed = {check: partial(self._observe_check, name, check, ask) for check, ask in checks.items()}
            return _health_reply(name, run_checks(name, observed, verbose=verbose, exclude=exclude))

        def one_of(call: HttpCall) -> HttpReply:
            check = checks.get(call.parameters["check"])
            return NOT_FOUND if check is None else _health_reply(name, run_single_check(check))

        self.routes.add("*", f"/{name}", all_of)
        self.routes.add("*", f"/{name}/:check", one_of)

    def _observe_check(self, kind: str, name: str, ask: HealthCheck) -> str | None:
        why = ask()
        self._last_result.labels(name, kind).set(float(why is None))
        self._results.labels(name, "success" if why is None else "error", kind).inc()
        return why

    def slis(self) -> None:
        """Serve /metrics/slis: the results of health checks, as Kubernetes' components do."""
        self.metrics((self._slis,), "/metrics/slis")

    def metrics(self, registries: Iterable[MetricRegistry], path: str = "/metrics") -> None:
        shown = tuple(registries)

        def serve(call: HttpCall) -> HttpReply:
            open_metrics = metrics.prefers_openmetrics(call.headers.get("Accept", ""))
            kind = metrics.OPENMETRICS_CONTENT_TYPE if open_metrics else metrics.TEXT_CONTENT_TYPE
            return HttpReply(body=metrics.render(shown, open_metrics=open_metrics), content_type=kind)

        self.routes.add("GET", path, serve)

    def config(self, read: Callable[[], Any], name: str = "componentconfig") -> None:
        self.routes.add("GET", "/configz", lambda _: {name: read()})

    def debug(self) -> None:
        """Serve /debug/tasks: what every task of the process is waiting for."""
        self.routes.add("GET", "/debug/tasks", lambda _: http_routing.text_reply(dump_tasks()))

    def flag(self, name: str, put: Callable[[str], str]) -> None:
        """Serve PUT /debug/flags/<name>: `put` takes the body and returns what it did, or raises ValueError."""

        def change(call: HttpCall) -> HttpReply:
            if call.method != "PUT":
                return http_routing.text_reply("unsupported http method\n", 406)
            try:
                return http_routing.text_reply(put(call.body.decode()) + "\n")
            except ValueError as wrong:
                return http_routing.text_reply(f"{wrong}\n", 400)

        self.routes.add("*", f"/debug/flags/{name}", change)

    # Serving ---------------------------------------------------------------------------------------------------------

    async def listen(
        self,
        host: str,
        port: int,
        *,
        certificate: ServingCertificate | None = None,
        guard: HttpGuard | None = None,
        share_address: bool | None = None,
        share_port: bool | None = None,
    ) -> int:
        """Listen and return the port, chosen by the system for 0. Raises OSError when it cannot."""

        async def handle(raw: web.BaseRequest) -> web.StreamResponse:
            return await self._handle(raw, guard)

        server = _Server(handle, request_factory=_request, access_log=None, keepalive_timeout=IDLE_TIMEOUT_S)
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
            await self._clock.sleep(CERTIFICATE_REFRESH_S)
            try:
                if certificate.refresh():
                    _LOG.info("serving a renewed certificate")
            except ServingCertificateError as bad:
                _LOG.warning("still serving the old certificate: %s", bad)

    async def _handle(self, raw: web.BaseRequest, guard: HttpGuard | None) -> web.StreamResponse:
        response = web.Response()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                reply = await self._answer(raw, guard)
                headers = {**_HEADERS, **reply.headers, "Content-Type": reply.content_type}
                response = web.Response(status=reply.status, body=reply.body, headers=headers)
                await response.prepare(raw)
                await response.write_eof()
        except TimeoutError:
            if raw.transport is not None:  # it will not take the answer, or it never sent its body
                raw.transport.abort()
        except ConnectionResetError:
            # The caller hung up, as a prober does after its timeout: nobody is left to be answered.
            _LOG.debug("%s: the caller did not wait for the answer", raw.path)
        return response

    async def _answer(self, raw: web.BaseRequest, guard: HttpGuard | None) -> HttpReply:
        try:
            body = await raw.read() if raw.body_exists else b""
        except web.HTTPRequestEntityTooLarge:
            return http_routing.text_reply(f"the body is larger than {MAX_BODY_BYTES} bytes\n", 413)
        transport = raw.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        call = HttpCall(
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
            return http_routing.text_reply("internal server error\n", 500)

    async def answer(self, call: HttpCall) -> HttpReply:
        """Return a call's reply, as a port would give it without a guard."""
        method = "GET" if call.method == "HEAD" else call.method
        found = self.routes.find(method, call.path)
        if found is None:
            return NOT_FOUND
        handler, parameters = found
        answer = handler(msgspec.structs.replace(call, parameters=parameters))
        if inspect.isawaitable(answer):
            answer = await answer
        return answer if isinstance(answer, HttpReply) else http_routing.json_reply(answer)


class ServiceRoutes:
    """A program's own JSON routes below one base path, and a list of them at <base>/__services__."""

    def __init__(
        self, endpoint: ComponentServer, base: str = "/apis/v1", unavailable: Callable[[], str | None] | None = None
    ):
        """Register the list. `unavailable` returns why nothing can be answered now (503), as on a standby replica."""
        self._routes = endpoint.routes
        self._base = base
        self._unavailable = unavailable
        self.add("GET", "/__services__", lambda _: self._routes.listing(base))

    def add(self, method: str, path: str, handler: HttpHandler) -> None:
        def guarded(call: HttpCall) -> Any:
            why = self._unavailable() if self._unavailable is not None else None
            return handler(call) if why is None else http_routing.error_reply(503, why)

        self._routes.add(method, self._base + path, guarded)

    def plugin(self, plugin: str, routes: Sequence[tuple[str, HttpHandler]]) -> None:
        for path, handler in routes:
            self.add("GET", f"/plugins/{plugin}{path}", handler)


class _Server(web.Server):
    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()


def _request(message: Any, payload: Any, protocol: RequestHandler, writer: Any, task: Any) -> web.BaseRequest:
    return web.BaseRequest(message, payload, protocol, writer, task, protocol._loop, client_max_size=MAX_BODY_BYTES)


def _health_reply(name: str, result: HealthReport) -> HttpReply:
    if result.ok:
        return http_routing.text_reply(result.text)
    _LOG.info("%s check failed: %s", name, "; ".join(result.failures))
    return http_routing.text_reply(result.text, 500)
