"""A cursor over the events of one collection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from koord.embedded.apiserver.store.record import Event

if TYPE_CHECKING:
    from koord.embedded.apiserver.store.collection import Collection


class Watcher:
    __slots__ = ("_collection", "_timer", "_waiting", "closed", "position")

    def __init__(self, collection: Collection, position: int) -> None:
        self._collection = collection
        self.position = position
        self._waiting: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False

    def wake(self) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def pending(self) -> list[Event] | None:
        """Return the events since the last call without waiting; None when the reader was too slow and must list
        again.
        """
        events = self._collection.events_from(self.position)
        if events:
            self.position += len(events)
        return events

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for an event and return True; return False when the cursor is closed or `timeout` seconds have
        passed.
        """
        loop = asyncio.get_running_loop()
        due = None if timeout is None else loop.time() + timeout
        while True:
            if self.closed:
                return False
            if self.position != self._collection.end:
                return True
            if due is not None:
                if loop.time() >= due:
                    return False
                self._arm(loop, due)
            self._waiting = loop.create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    def _arm(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        """Set the timer, unless one is set for an earlier moment: events come often, the ends of waits seldom."""
        timer = self._timer
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timer = loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.wake()

    def close(self) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._collection.unsubscribe(self)
        self.wake()
