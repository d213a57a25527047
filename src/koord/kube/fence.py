"""This module fences writes: a transport lets them pass only while its owner may write.

A process that was suspended when its lease expired wakes up in the middle of its work, with requests that
waited for their turn. Nothing else checks leadership again before they leave.
"""

from __future__ import annotations

from collections.abc import Callable

from koord.kube.transport import Answer, Request, Transport, Unreachable, WatchStream

_READS = ("GET", "HEAD")
_EVENTS = "/apis/events.k8s.io/"


class FencedTransport:
    """FencedTransport calls `open` before each write. Events pass at any time: they report what was done and
    change nothing.
    """

    def __init__(self, inner: Transport, open: Callable[[], bool]) -> None:
        self._inner = inner
        self._open = open

    async def send(self, request: Request) -> Answer:
        if request.method not in _READS and not self._open() and not request.path.startswith(_EVENTS):
            raise Unreachable(f"{request.method} {request.path} is held back: this process may not write", sent=False)
        return await self._inner.send(request)

    async def watch(self, request: Request) -> WatchStream | Answer:
        return await self._inner.watch(request)

    async def close(self) -> None:
        await self._inner.close()
