"""Expectations: what a controller did that its cache does not show yet. Deciding before it does would do
it twice, or undo it.
"""

from __future__ import annotations

import msgspec

from koord.telemetry.clock import Clock

# An event that has not come by then was lost; looking again with what is known is better than waiting for it.
TIMEOUT_S = 300.0


class _Awaited(msgspec.Struct, kw_only=True):
    since: float
    made: set[str]
    gone: set[str]
    in_flight: int = 0
    early: set[str]  # seen while a create was under way, perhaps before its answer


class Expectations:
    """Tracks by owner UID which new objects must still appear in the cache, and which deleted ones must still
    leave it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._awaited: dict[str, _Awaited] = {}

    def fulfilled(self, owner: str) -> bool:
        awaited = self._awaited.get(owner)
        if awaited is None:
            return True
        if awaited.in_flight == 0 and self._clock.monotonic() - awaited.since >= TIMEOUT_S:
            del self._awaited[owner]
            return True
        return False

    def leaving(self, owner: str) -> frozenset[str]:
        """Return the UIDs that were deleted and may still look alive in the cache."""
        awaited = self._awaited.get(owner)
        return frozenset(awaited.gone) if awaited is not None else frozenset()

    def creating(self, owner: str) -> None:
        """Note that a create is about to be sent; `created` or `creation_failed` must follow."""
        self._of(owner).in_flight += 1

    def created(self, owner: str, uid: str) -> None:
        awaited = self._of(owner)
        if uid not in awaited.early:
            awaited.made.add(uid)
        self._landed(owner, awaited)

    def not_created(self, owner: str) -> None:
        self._landed(owner, self._of(owner))

    def deleting(self, owner: str, uid: str) -> None:
        self._of(owner).gone.add(uid)

    def not_deleted(self, owner: str, uid: str) -> None:
        self.saw_gone(owner, uid)

    def saw(self, owner: str, uid: str) -> None:
        """Note that the cache shows the object."""
        awaited = self._awaited.get(owner)
        if awaited is None:
            return
        if awaited.in_flight:
            awaited.early.add(uid)
        awaited.made.discard(uid)
        self._settle(owner, awaited)

    def saw_gone(self, owner: str, uid: str) -> None:
        """Note that the cache shows the object as gone or terminating."""
        awaited = self._awaited.get(owner)
        if awaited is None:
            return
        if awaited.in_flight:
            awaited.early.add(uid)
        awaited.made.discard(uid)
        awaited.gone.discard(uid)
        self._settle(owner, awaited)

    def forget(self, owner: str) -> None:
        """Drop the expectations of an owner that is gone."""
        self._awaited.pop(owner, None)

    def __len__(self) -> int:
        return len(self._awaited)

    def _of(self, owner: str) -> _Awaited:
        awaited = self._awaited.get(owner)
        if awaited is None:
            awaited = _Awaited(since=0.0, made=set(), gone=set(), early=set())
            self._awaited[owner] = awaited
        awaited.since = self._clock.monotonic()
        return awaited

    def _landed(self, owner: str, awaited: _Awaited) -> None:
        awaited.in_flight = max(0, awaited.in_flight - 1)
        if awaited.in_flight == 0:
            awaited.early.clear()
        self._settle(owner, awaited)

    def _settle(self, owner: str, awaited: _Awaited) -> None:
        if not awaited.made and not awaited.gone and not awaited.in_flight:
            del self._awaited[owner]
