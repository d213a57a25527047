"""Run a whole API server behind HTTPS for as long as a block lasts."""

from __future__ import annotations

import base64
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from koord.embedded.apiserver import tls
from koord.embedded.apiserver.http import HttpDoor
from koord.embedded.apiserver.server import Server

ADMIN = "admin"


class Address(NamedTuple):
    url: str
    token: str
    ca: bytes  # PEM of the authority that signed the serving certificate


@contextlib.asynccontextmanager
async def running_server(
    server: Server | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    identity: tls.Identity | None = None,
    allow_remote: bool = False,
) -> AsyncIterator[Address]:
    """Start `server` behind HTTPS and close both at the end of the block. Without `server` a new one with one
    token is made.
    """
    if server is None:
        server = Server(tokens={secrets.token_hex(16): ADMIN})
    token = next(iter(server.tokens), "")
    hosts = (*tls.HOSTS, host) if host not in tls.HOSTS else tls.HOSTS
    identity = identity or tls.create(hosts)
    door = HttpDoor(server)
    await server.start()
    try:
        url = await door.open(host, port, identity.context(), allow_remote=allow_remote)
        yield Address(url, token, identity.authority.certificate)
    finally:
        await door.close()
        await server.close()


def kubeconfig(address: Address, name: str = "koord") -> dict[str, Any]:
    """Return the kubeconfig document that leads kubectl to the server, to be written as JSON or YAML."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": name,
                "cluster": {
                    "server": address.url,
                    "certificate-authority-data": base64.b64encode(address.ca).decode(),
                },
            }
        ],
        "users": [{"name": name, "user": {"token": address.token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
