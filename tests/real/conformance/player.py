"""Play a story on two servers, each in a fresh namespace, and say where they differ."""

from __future__ import annotations

import secrets
import ssl
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.real.conformance.compare import compare
from tests.real.conformance.story import Answered, Story, play


@dataclass(frozen=True)
class Server:
    url: str
    token: str
    ssl: ssl.SSLContext

    def session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self.token}", "User-Agent": "conformance/1"},
            connector=aiohttp.TCPConnector(ssl=self.ssl),
        )


async def _played(story: Story, server: Server, ns: str) -> dict[str, Answered]:
    async with server.session() as session:
        made: Any = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ns}}
        async with session.post(f"{server.url}/api/v1/namespaces", json=made) as answer:
            if answer.status != 201:
                raise RuntimeError(f"{server.url}: namespace {ns}: {answer.status} {await answer.text()}")
        return await play(story, session, server.url, ns)


async def differences(story: Story, real: Server, ours: Server) -> dict[str, list[str]]:
    """Step id -> lines that say what differs; agreeing steps are left out."""
    real_ns, our_ns = f"t{secrets.token_hex(4)}", f"t{secrets.token_hex(4)}"
    theirs = await _played(story, real, real_ns)
    mine = await _played(story, ours, our_ns)
    found = {step.id: compare(step, theirs[step.id], mine[step.id], real_ns, our_ns) for step in story.steps}
    return {id: lines for id, lines in found.items() if lines}
