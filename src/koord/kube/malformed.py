"""This module reports objects that the server has and a program cannot decode: each once, until it is well
again or gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container

import msgspec

from koord.api.meta import Object

_LOG = logging.getLogger(__name__)


class Malformed(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    namespace: str
    name: str
    uid: str
    error: str


def _log(what: Malformed) -> None:
    _LOG.warning("%s %s/%s (uid %s) is skipped: %s", what.kind, what.namespace, what.name, what.uid, what.error)


class MalformedLog:
    def __init__(self, kind: str, report: Callable[[Malformed], None] | None) -> None:
        self.reports = 0
        self._kind = kind
        self._report = report or _log
        self._known: dict[tuple[str, str], str] = {}  # who -> UID that was reported
        self._unplaced: dict[tuple[str, str, str], str] = {}  # index and who -> UID that was reported

    def report(self, namespace: str, name: str, uid: str, error: str) -> None:
        if self._known.get((namespace, name)) == uid:
            return
        self._known[namespace, name] = uid
        self._say(Malformed(kind=self._kind, namespace=namespace, name=name, uid=uid, error=error))

    def index(self, index: str, obj: Object, error: Exception) -> None:
        """Report that an index could not place the object; the object itself is kept."""
        meta = obj.metadata
        key = (index, meta.namespace, meta.name)
        if self._unplaced.get(key) == meta.uid:
            return
        self._unplaced[key] = meta.uid
        why = f"index {index}: {error!r}"
        self._say(Malformed(kind=self._kind, namespace=meta.namespace, name=meta.name, uid=meta.uid, error=why))

    def forget(self, namespace: str, name: str) -> None:
        if self._known:
            self._known.pop((namespace, name), None)

    def keep_only(self, unread: Container[tuple[str, str]]) -> None:
        """Forget, after a full list, every object that is not undecodable now."""
        self._known = {key: uid for key, uid in self._known.items() if key in unread}
        self._unplaced.clear()

    def _say(self, what: Malformed) -> None:
        self.reports += 1
        try:
            self._report(what)
        except Exception:  # noqa: BLE001  the callback is other people's code
            _LOG.exception("could not report a malformed %s %s/%s", what.kind, what.namespace, what.name)
            _log(what)
