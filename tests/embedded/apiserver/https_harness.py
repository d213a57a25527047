"""Run a whole API server behind HTTPS for as long as a block lasts."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator

from koord.embedded.apiserver import data_directory
from koord.embedded.apiserver.data_directory import DEFAULT_HOSTS
from koord.embedded.apiserver.http_server import HttpServer, ServerAddress
from koord.embedded.apiserver.server import ApiServer

TOKEN_USER = "admin"


@contextlib.asynccontextmanager
async def serve_https(
    server: ApiServer | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    identity: data_directory.ApiServerCertificates | None = None,
    allow_remote: bool = False,
) -> AsyncIterator[ServerAddress]:
    """Start `server` (by default a new one with one token) behind HTTPS and close both at the end of the block."""
    if server is None:
        server = ApiServer(tokens={secrets.token_hex(16): TOKEN_USER})
    token = next(iter(server.tokens), "")
    hosts = (*DEFAULT_HOSTS, host) if host not in DEFAULT_HOSTS else DEFAULT_HOSTS
    identity = identity or data_directory.create_certificates(hosts)
    http_server = HttpServer(server)
    await server.start()
    try:
        url = await http_server.start(host, port, identity.ssl_context(), allow_remote=allow_remote)
        yield ServerAddress(url, token, identity.authority.certificate)
    finally:
        await http_server.close()
        await server.close()
