"""This module is the informer: a live, indexed copy of one kind, and handlers that are notified of every
change after the copy shows it.

Staying in step with the server is the reflector's work, holding objects the cache's. Everything here
belongs to one event loop: reads are plain calls, handlers are plain functions that must return quickly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from koord.api.meta import Object
from koord.kube.cache import Change
from koord.kube.noise import QuietLog
from koord.telemetry.clock import Clock

O = TypeVar("O", bound=Object)  # noqa: E741  an object

_LOG = logging.getLogger(__name__)


class Subscription(Generic[O]):
    __slots__ = ("_filter", "_handler", "_live", "_quiet", "errors", "name")

    def __init__(
        self, handler: Callable[[Change[O]], object], filter: Callable[[O], bool] | None, clock: Clock
    ) -> None:
        self.name: str = getattr(handler, "__qualname__", None) or repr(handler)
        self.errors = 0
        self._handler = handler
        self._filter = filter
        self._live = True
        self._quiet = QuietLog(_LOG, clock)  # a handler that fails on everything fails 50,000 times in one list

    def tell(self, change: Change[O]) -> None:
        """Notify the handler. A handler that raises is logged by name and counted; it misses this change, others do
        not.
        """
        if not self._live:
            return
        try:
            seen = change if self._filter is None else filtered(change, self._filter)
            if seen is not None:
                self._handler(seen)
        except Exception as error:  # noqa: BLE001  other people's code: what it raises is theirs, and is said
            self.errors += 1
            meta = change.object.metadata
            self._quiet.error(
                "handler %s failed on %s %s %s/%s",
                self.name,
                change.kind,
                type(change.object).__name__,
                meta.namespace,
                meta.name,
                exc_info=error,
            )

    def close(self) -> None:
        self._live = False


def filtered(change: Change[O], wanted: Callable[[O], bool]) -> Change[O] | None:
    """Convert a change to what a handler sees that knows only the objects that match."""
    if change.kind == "added":
        return change if wanted(change.object) else None
    assert change.old is not None, f"{change.kind} without what was there before"
    before = wanted(change.old)
    if change.kind == "deleted":
        return change if before else None
    after = wanted(change.object)
    if before and after:
        return change
    if after:
        return Change(kind="added", object=change.object, initial=change.initial)
    if before:
        return msgspec.structs.replace(change, kind="deleted")
    return None
