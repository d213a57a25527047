"""A cursor over one collection's events. It never holds events of its own, so a slow reader costs nothing to others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from koord.embedded.apiserver.store.record import Event

if TYPE_CHECKING:
    from koord.embedded.apiserver.store.collection import Collection


class Watcher:
    __slots__ = ("_collection", "_waiting", "closed", "position")

    def __init__(self, collection: Collection, position: int) -> None:
        self._collection = collection
        self.position = position
        self._waiting: asyncio.Future[None] | None = None
        self.closed = False

    def wake(self) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def pending(self) -> list[Event] | None:
        """What has happened since the last call, at once; None when the reader was too slow and must list again."""
        events = self._collection.events_from(self.position)
        if events:
            self.position += len(events)
        return events

    async def wait(self, timeout: float | None = None) -> bool:
        """Until something happened (True), the watcher was closed, or `timeout` seconds passed (False)."""
        if self.closed:
            return False
        if self.position != self._collection.end:
            return True
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._waiting
        except TimeoutError:
            return False
        finally:
            self._waiting = None
        return not self.closed

    def close(self) -> None:
        self.closed = True
        self._collection.unsubscribe(self)
        self.wake()
