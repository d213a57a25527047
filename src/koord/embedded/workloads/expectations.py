"""Expectations: what a controller did that its cache does not show yet, so that it is not done twice or undone."""

from __future__ import annotations

import msgspec

from koord.api.kubernetes.meta import Object
from koord.telemetry.clock import Clock

# An event that has not come by then was lost; looking again with what is known is better than waiting for it.
EXPECTATION_TIMEOUT_S = 300.0


class _Pending(msgspec.Struct, kw_only=True):
    since: float
    made: set[str]
    gone: set[str]
    in_flight: int = 0
    early: set[str]  # seen while a create was under way, perhaps before its answer


class ControllerExpectations:
    """Tracks by owner UID which new objects must still appear in the cache, and which deleted ones must leave."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._awaited: dict[str, _Pending] = {}

    def fulfilled(self, owner: str) -> bool:
        awaited = self._awaited.get(owner)
        if awaited is None:
            return True
        if awaited.in_flight == 0 and self._clock.monotonic() - awaited.since >= EXPECTATION_TIMEOUT_S:
            del self._awaited[owner]
            return True
        return False

    def pending_deletions(self, owner: str) -> frozenset[str]:
        """Return the UIDs that were deleted and may still look alive in the cache."""
        awaited = self._awaited.get(owner)
        return frozenset(awaited.gone) if awaited is not None else frozenset()

    def expect_creation(self, owner: str) -> None:
        """Note that a create is about to be sent; `created` or `creation_failed` must follow."""
        self._entry(owner).in_flight += 1

    def created(self, owner: str, uid: str) -> None:
        awaited = self._entry(owner)
        if uid not in awaited.early:
            awaited.made.add(uid)
        self._request_done(owner, awaited)

    def creation_failed(self, owner: str) -> None:
        self._request_done(owner, self._entry(owner))

    def expect_deletion(self, owner: str, uid: str) -> None:
        self._entry(owner).gone.add(uid)

    def deletion_failed(self, owner: str, uid: str) -> None:
        self.observed_deletion(owner, uid)

    def observed(self, owner: str, uid: str) -> None:
        """Note that the cache shows the object, or showed it."""
        awaited = self._awaited.get(owner)
        if awaited is None:
            return
        if awaited.in_flight:
            awaited.early.add(uid)
        awaited.made.discard(uid)
        self._drop_if_met(owner, awaited)

    def observed_deletion(self, owner: str, uid: str) -> None:
        """Note that the cache shows the object as gone or terminating."""
        awaited = self._awaited.get(owner)
        if awaited is not None:
            awaited.gone.discard(uid)
            self.observed(owner, uid)

    def forget(self, owner: str) -> None:
        """Drop the expectations of an owner that is gone."""
        self._awaited.pop(owner, None)

    def __len__(self) -> int:
        return len(self._awaited)

    def _entry(self, owner: str) -> _Pending:
        awaited = self._awaited.get(owner)
        if awaited is None:
            awaited = _Pending(since=0.0, made=set(), gone=set(), early=set())
            self._awaited[owner] = awaited
        awaited.since = self._clock.monotonic()
        return awaited

    def _request_done(self, owner: str, awaited: _Pending) -> None:
        awaited.in_flight = max(0, awaited.in_flight - 1)
        if awaited.in_flight == 0:
            awaited.early.clear()
        self._drop_if_met(owner, awaited)

    def _drop_if_met(self, owner: str, awaited: _Pending) -> None:
        if not awaited.made and not awaited.gone and not awaited.in_flight:
            del self._awaited[owner]


class WrittenVersions:
    """Remembers by UID the resourceVersion of the last write. Versions of one server are numbers that grow."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}

    def record(self, obj: Object) -> None:
        version = _version_number(obj.metadata.resource_version)
        if version > self._versions.get(obj.metadata.uid, 0):
            self._versions[obj.metadata.uid] = version

    def is_stale(self, obj: Object) -> bool:
        """Return whether the cached object is older than our last write, whose event will trigger a new sync."""
        version = self._versions.get(obj.metadata.uid)
        if version is None:
            return False
        if _version_number(obj.metadata.resource_version) >= version:
            del self._versions[obj.metadata.uid]
            return False
        return True

    def forget(self, uid: str) -> None:
        self._versions.pop(uid, None)


def _version_number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
