"""Webhooks called by this server lead to what a real server made of them: `freeze_webhook_answers` made the file."""

from __future__ import annotations

import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koord.embedded.apiserver.server import ApiServer
from koord.kube.transport.interface import JSON, ApiRequest
from tests.embedded.apiserver.admission.webhook_cases import CASES, play
from tests.embedded.apiserver.admission.webhook_server import WebhookServer, webhook_server

REAL = msgspec.json.decode(gzip.decompress(Path(__file__).with_name("webhook_answers.json.gz").read_bytes()))
NS = "hooks-0123"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    made = ApiServer()
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def webhooks() -> AsyncIterator[WebhookServer]:
    async with webhook_server() as found:
        yield found


@pytest.mark.parametrize("case", CASES)
async def test_case(case: str, server: ApiServer, webhooks: WebhookServer) -> None:
    async def send(method: str, path: str, body: Any, form: str) -> tuple[int, Any, list[str]]:
        path, _, tail = path.partition("?")
        query = dict([tail.split("=")]) if tail else {}
        request = ApiRequest(
            method=method, path=path, query=query, body=body, content_type=form or JSON, user_agent="webhooks/1"
        )
        answer = await server.handle(request)
        warnings = re.split(r', (?=299 - ")', answer.headers.get("Warning", ""))
        return answer.status, answer.body.plain(), [text for text in warnings if text]

    async def nothing() -> None:
        pass

    await send("POST", "/api/v1/namespaces", {"metadata": {"name": NS}}, "")
    assert await play(case, send, webhooks, NS, nothing) == REAL[case]
