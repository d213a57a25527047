"""This module keeps a store in step with an API server: list, watch, resume where a stream was cut, and list
again when the server asks for it. Objects that cannot be decoded are reported once each, until they are well again or
gone.

What is done with the objects is the store's business (see koord.kube.informer).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from random import Random
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.kube.client.list_watch import BOOKMARK, ERROR, Listing, Watch, WatchEvent
from koord.kube.client.request_builder import VersionMatch
from koord.kube.client.typed_client import Client
from koord.kube.rate_limit import JitteredBackoff, RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.telemetry.clock import Clock

O = TypeVar("O", bound=Object)  # noqa: E741  an object

_LOG = logging.getLogger(__name__)

LIST_PAGE_SIZE = 500
# Servers end a watch after this long; a random value spreads the reconnections of many clients.
WATCH_TIMEOUT_RANGE_S = (300, 600)
# Past the agreed end, a stream that still says nothing is a dead connection.
WATCH_TIMEOUT_GRACE_S = 30
# A stream that repeatedly ends at once and empty is a failure that looks like success.
EMPTY_WATCH_S = 1.0
# A watch that the server fails this often in a row may have a version that the server cannot serve: list.
MAX_WATCH_FAILURES = 5


class ReflectorStore(Protocol[O]):
    """ReflectorStore receives what a reflector reads."""

    async def replace(self, listing: Listing[O]) -> None:
        """Replace the whole content."""

    def receive(self, event: WatchEvent[O]) -> None:
        """Apply one change: ADDED, MODIFIED or DELETED."""


class WatchScope(msgspec.Struct, frozen=True, kw_only=True):
    """WatchScope selects the objects of a kind."""

    namespace: str | None = None
    labels: str = ""
    fields: str = ""


class ReflectorCounts(msgspec.Struct, kw_only=True):
    lists: int = 0
    watches: int = 0
    events: int = 0
    bookmarks: int = 0
    expired: int = 0  # the server no longer knew our version
    failures: int = 0
    last_failure: str = ""


_WATCH_ERRORS: tuple[type[Exception], ...] = (TimeoutError, *TRANSIENT_ERRORS)

# What to do after a stream: open the next one now, or after a pause, or list first.
_AfterWatch = Literal["again", "pause", "list"]


class Reflector(Generic[O]):
    def __init__(
        self,
        client: Client,
        resource: Resource[O],
        scope: WatchScope,
        store: ReflectorStore[O],
        clock: Clock,
        rng: Random,
    ) -> None:
        self.counts = ReflectorCounts()
        self.resource_version = ""  # where the next watch begins
        self._client = client
        self._resource = resource
        self._scope = scope
        self._store = store
        self._clock = clock
        self._rng = rng
        self._backoff = JitteredBackoff(clock, rng)
        self._limited_log = RateLimitedLog(_LOG, clock)
        # The first list may be served from any server's memory. Later ones must not be older than what was seen, and
        # after an expiry only the newest state will do.
        self._list_resource_version: str | None = "0"
        self._retry_after_s = 0.0
        self._consecutive_failures = 0

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            while not await self._list():
                await self._pause()
            while (then := await self._watch()) != "list":
                if then == "pause":
                    await self._pause()
            await self._pause()  # a server that lists but never watches must not be listed without end

    async def _list(self) -> bool:
        at = self._list_resource_version
        # With a limit and no match the server takes a version for that exact one, which may be compacted.
        match: VersionMatch | None = "NotOlderThan" if at and at != "0" else None
        try:
            found = await self._client.list(
                self._resource,
                self._scope.namespace,
                labels=self._scope.labels,
                fields=self._scope.fields,
                limit=LIST_PAGE_SIZE,
                resource_version=at,
                resource_version_match=match,
            )
        except TRANSIENT_ERRORS as error:
            self._record_failure("list", error)
            return False
        if isinstance(found, ApiError):
            # A version that the server does not have (compacted, or of a life before a restore) never gets better.
            self._list_resource_version = None if match else at
            self._record_api_error("list", found)
            return False
        self.counts.lists += 1
        await self._store.replace(found)
        self._set_resource_version(found.resource_version)
        self._consecutive_failures = 0
        return True

    async def _watch(self) -> _AfterWatch:
        timeout_s = self._rng.randint(*WATCH_TIMEOUT_RANGE_S)
        started = self._clock.monotonic()
        before = self.counts.events + self.counts.bookmarks
        try:
            async with asyncio.timeout(timeout_s + WATCH_TIMEOUT_GRACE_S):
                opened = await self._client.watch(
                    self._resource,
                    self._scope.namespace,
                    labels=self._scope.labels,
                    fields=self._scope.fields,
                    resource_version=self.resource_version,
                    bookmarks=True,
                    timeout_s=timeout_s,
                )
                if isinstance(opened, ApiError):
                    return self._after_watch_error(opened)
                self.counts.watches += 1
                failure = await self._read_watch(opened)
        except _WATCH_ERRORS as error:
            self._record_failure("watch", error)
            return "pause"
        if failure is not None:
            return self._after_watch_error(failure)
        heard = self.counts.events + self.counts.bookmarks > before
        if not heard and self._clock.monotonic() - started < EMPTY_WATCH_S:
            self._record_failure("watch", "the stream ended at once with nothing in it")
            return "pause"
        self._backoff.reset()
        return "again"

    async def _read_watch(self, watch: Watch[O]) -> ApiError | None:
        """Read a stream to its end; return the error when the server ended it with one."""
        events = aiter(watch)
        try:
            async for event in events:
                if event.type == ERROR:
                    return event.status
                if event.type == BOOKMARK:
                    self.counts.bookmarks += 1
                else:
                    self.counts.events += 1
                    self._store.receive(event)
                self._set_resource_version(event.resource_version)
                self._consecutive_failures = 0
                self._backoff.reset()
        finally:
            # A generator left suspended would be closed by a task of the loop's own, after we are gone.
            if (close := getattr(events, "aclose", None)) is not None:
                await close()
            await watch.close()
        return None

    def _set_resource_version(self, version: str) -> None:
        if version:
            self.resource_version = self._list_resource_version = version

    def _after_watch_error(self, refused: ApiError) -> _AfterWatch:
        if refused.expired:
            self.counts.expired += 1
            self._list_resource_version = None
            _LOG.info("%s: version %s has expired, listing again", self._resource.plural, self.resource_version)
            return "list"
        self._record_api_error("watch", refused)
        self._consecutive_failures += 1
        if refused.too_many or (refused.code >= 500 and self._consecutive_failures < MAX_WATCH_FAILURES):
            return "pause"
        return "list"

    def _record_api_error(self, what: str, refused: ApiError) -> None:
        self._retry_after_s = refused.retry_after_s or 0.0
        self._record_failure(what, str(refused))

    def _record_failure(self, what: str, why: object) -> None:
        self.counts.failures += 1
        self.counts.last_failure = f"{what}: {why}"
        self._limited_log.warning("%s of %s failed: %s", what, self._resource.plural, why)

    async def _pause(self) -> None:
        asked, self._retry_after_s = self._retry_after_s, 0.0
        await self._clock.sleep(max(asked, self._backoff.next()))


class MalformedObject(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    namespace: str
    name: str
    uid: str
    error: str


def _log(what: MalformedObject) -> None:
    _LOG.warning("%s %s/%s (uid %s) is skipped: %s", what.kind, what.namespace, what.name, what.uid, what.error)


class MalformedObjectLog:
    def __init__(self, kind: str, report: Callable[[MalformedObject], None] | None) -> None:
        self.reports = 0
        self._kind = kind
        self._report = report or _log
        self._reported: dict[tuple[str, str], str] = {}  # who -> UID that was reported
        self._reported_index_errors: dict[tuple[str, str, str], str] = {}  # index and who -> UID that was reported

    def report(self, namespace: str, name: str, uid: str, error: str) -> None:
        if self._reported.get((namespace, name)) == uid:
            return
        self._reported[namespace, name] = uid
        self._emit(MalformedObject(kind=self._kind, namespace=namespace, name=name, uid=uid, error=error))

    def report_index_error(self, index: str, obj: Object, error: Exception) -> None:
        """Report that an index could not place the object; the object itself is kept."""
        meta = obj.metadata
        key = (index, meta.namespace, meta.name)
        if self._reported_index_errors.get(key) == meta.uid:
            return
        self._reported_index_errors[key] = meta.uid
        why = f"index {index}: {error!r}"
        self._emit(MalformedObject(kind=self._kind, namespace=meta.namespace, name=meta.name, uid=meta.uid, error=why))

    def forget(self, namespace: str, name: str) -> None:
        if self._reported:
            self._reported.pop((namespace, name), None)

    def forget_all_but(self, unread: Container[tuple[str, str]]) -> None:
        """Forget, after a full list, every object that is not undecodable now."""
        self._reported = {key: uid for key, uid in self._reported.items() if key in unread}
        self._reported_index_errors.clear()

    def _emit(self, what: MalformedObject) -> None:
        self.reports += 1
        try:
            self._report(what)
        except Exception:  # noqa: BLE001  the callback is other people's code
            _LOG.exception("could not report a malformed %s %s/%s", what.kind, what.namespace, what.name)
            _log(what)
