"""This module reports objects that the server has and a program cannot decode: each once, until it is well
again or gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container

import msgspec

from koord.api.kubernetes.meta import Object

_LOG = logging.getLogger(__name__)


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
