"""The same webhooks, called by a real kube-apiserver and by the embedded one, with equal outcomes."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from koord.embedded.apiserver.http_server import ServerAddress
from tests.embedded.apiserver.admission.webhook_cases import CASES, Send, play
from tests.embedded.apiserver.admission.webhook_server import WebhookServer, webhook_server
from tests.embedded.apiserver.https_harness import serve_https
from tests.real.conformance.compare import difference
from tools.controlplane import ControlPlane

# The real server reads configurations through a cache that follows its store with this delay at most.
CACHE_S = 0.3


def _sender(session: aiohttp.ClientSession, url: str) -> Send:
    async def send(method: str, path: str, body: Any, form: str) -> tuple[int, Any, list[str]]:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": form or "application/json"} if data is not None else {}
        async with session.request(method, url + path, data=data, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None), list(answer.headers.getall("Warning", ()))

    return send


@pytest.fixture
async def ours() -> AsyncIterator[ServerAddress]:
    async with serve_https() as address:
        yield address


@pytest.fixture
async def webhooks() -> AsyncIterator[WebhookServer]:
    async with webhook_server() as server:
        yield server


async def _played(case: str, url: str, token: str, context: ssl.SSLContext, hooks: WebhookServer, wait: float) -> Any:
    headers = {"Authorization": f"Bearer {token}", "User-Agent": "webhooks/1"}
    ns = f"hooks-{secrets.token_hex(4)}"
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context)) as session:
        send = _sender(session, url)
        status, body, _ = await send("POST", "/api/v1/namespaces", {"metadata": {"name": ns}}, "")
        assert status == 201, body
        return await play(case, send, hooks, ns, lambda: asyncio.sleep(wait))


@pytest.mark.parametrize("case", CASES)
async def test_equal_outcomes(case: str, plane: ControlPlane, ours: ServerAddress, webhooks: WebhookServer) -> None:
    context = ssl.create_default_context(cadata=ours.ca.decode())
    own = await _played(case, ours.url, ours.token, context, webhooks, 0)
    real = await _played(case, plane.url, plane.token, plane.ssl(), webhooks, CACHE_S)
    if difference(real, own):
        # A real server that deletes an object which its cache has an older version of asks webhooks about both.
        real = await _played(case, plane.url, plane.token, plane.ssl(), webhooks, CACHE_S)
    assert difference(real, own) == []
