"""This module is an HTTP server on a real socket that responds as each test says, faults included, and records
requests.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from koord.kube.config.connection import Connection, SettingOrigin

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ORIGIN = SettingOrigin("test", "server")


class FaultyHttpServer:
    def __init__(self, url: str, requests: list[web.Request]) -> None:
        self.url = url
        self.requests = requests

    def connection(self, **more: Any) -> Connection:
        return Connection(**{"server": self.url, "origin": ORIGIN, **more})


@contextlib.asynccontextmanager
async def serve_http(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[FaultyHttpServer]:
    requests: list[web.Request] = []

    async def remember(request: web.Request) -> web.StreamResponse:
        requests.append(request)
        await request.read()
        return await handler(request)

    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", remember)
    runner = web.AppRunner(app, shutdown_timeout=0, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield FaultyHttpServer(f"{'https' if context else 'http'}://127.0.0.1:{port}", requests)
    finally:
        await runner.cleanup()


def status_response(code: int, reason: str, message: str = "", **headers: str) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }
    return web.json_response(body, status=code, headers={k.replace("_", "-"): v for k, v in headers.items()})


async def stream_response(request: web.Request, *chunks: bytes, cut: bool = False) -> web.StreamResponse:
    """Send chunks as they are given; `cut` breaks the connection where the final chunk should be."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
    if cut:
        assert request.transport is not None
        request.transport.close()
    else:
        await response.write_eof()
    return response
