"""The transport for programs in the same process: objects go in and out as they are, without JSON in between."""

from __future__ import annotations

import asyncio

import msgspec

from koord.embedded.apiserver.server import ApiServer
from koord.kube.transport.interface import ApiRequest, ApiResponse, Unreachable, WatchStream

# A program that writes in a loop must not keep the others from running: every so many calls it lets them.
CALLS_PER_YIELD = 8


class InProcessTransport:
    """Sends requests to a server in this process and lets other tasks run every few calls.

    `track_managed_fields` keeps managedFields for objects that this program creates; it is off because
    nobody reads them.
    """

    def __init__(self, server: ApiServer, user: str = "system:admin", *, track_managed_fields: bool = False) -> None:
        self._server = server
        self._user = user
        self._track_managed_fields = track_managed_fields
        self._calls = 0
        self._closed = False

    async def send(self, request: ApiRequest) -> ApiResponse:
        await self._yield_now_and_then()
        return await self._server.handle(self._with_user(request), track_managed_fields=self._track_managed_fields)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        await self._yield_now_and_then()
        return await self._server.watch(self._with_user(request))

    async def close(self) -> None:
        self._closed = True

    def _with_user(self, request: ApiRequest) -> ApiRequest:
        return request if request.user == self._user else msgspec.structs.replace(request, user=self._user)

    async def _yield_now_and_then(self) -> None:
        if self._closed or self._server.closed:
            raise Unreachable("the API server in this process is closed")
        self._calls += 1
        if self._calls % CALLS_PER_YIELD == 0:
            await asyncio.sleep(0)
