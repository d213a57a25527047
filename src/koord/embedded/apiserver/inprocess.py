"""The transport for programs in the same process: objects go in and out as they are, without JSON in
between.
"""

from __future__ import annotations

import asyncio

import msgspec

from koord.embedded.apiserver.server import Server
from koord.kube.transport import Answer, Request, Unreachable, WatchStream

# A program that writes in a loop must not keep the others from running: every so many calls it lets them.
CALLS_PER_TURN = 8


class InProcessTransport:
    """Sends requests to a server in this process and lets other tasks run every few calls.

    `track_managed_fields` keeps managedFields for objects that this program creates; it is off because
    nobody reads them.
    """

    def __init__(self, server: Server, user: str = "system:admin", *, tracked: bool = False) -> None:
        self._server = server
        self._user = user
        self._tracked = tracked
        self._calls = 0
        self._closed = False

    async def send(self, request: Request) -> Answer:
        await self._turn()
        return await self._server.handle(self._signed(request), tracked=self._tracked)

    async def watch(self, request: Request) -> WatchStream | Answer:
        await self._turn()
        return await self._server.watch(self._signed(request))

    async def close(self) -> None:
        self._closed = True

    def _signed(self, request: Request) -> Request:
        return request if request.user == self._user else msgspec.structs.replace(request, user=self._user)

    async def _turn(self) -> None:
        if self._closed or self._server.closed:
            raise Unreachable("the API server in this process is closed")
        self._calls += 1
        if self._calls % CALLS_PER_TURN == 0:
            await asyncio.sleep(0)
