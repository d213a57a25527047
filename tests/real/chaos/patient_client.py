"""A client of an API server that comes and goes: it waits for the server, and notes what no outage explains."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from koord.api.kubernetes.resource import Resource
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS

Json = dict[str, Any]
PATIENCE_S = 120


class PatientClient:
    def __init__(self, client: Client) -> None:
        self.plain = client.dynamic
        self.webhook_failures: list[str] = []  # what a failure policy of Ignore must not let through to a caller

    async def patiently(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer, however long the server is away. What exists already was made by a lost answer."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    found = await call()
                except TRANSIENT_ERRORS:
                    found = None
                if isinstance(found, ApiError) and "failed calling webhook" in found.message:
                    self.webhook_failures.append(found.message)
                if found is not None and not (isinstance(found, ApiError) and found.status.code >= 429):
                    if isinstance(found, ApiError) and not (found.already_exists or found.not_found):
                        raise AssertionError(found.message)
                    return found
                await asyncio.sleep(0.3)

    async def create(self, resource: Resource[Any], body: Json, space: str = "") -> None:
        await self.patiently(lambda: self.plain.create(resource, body, space))

    async def listed(self, resource: Resource[Any], space: str | None = None) -> list[Json]:
        return list((await self.patiently(lambda: self.plain.list(resource, space))).items)

    async def merge(
        self, resource: Resource[Any], name: str, patch: Json, space: str | None = None, subresource: str | None = None
    ) -> Any:
        return await self.patiently(
            lambda: self.plain.patch(resource, name, patch, space, kind="merge", subresource=subresource)
        )

    async def served(self, kind: Resource[Any]) -> None:
        """Wait until a kind is served, which is a moment after its definition was made."""

        async def found() -> Any:
            listed = await self.plain.list(kind)
            return None if isinstance(listed, ApiError) else listed

        await self.patiently(found)
