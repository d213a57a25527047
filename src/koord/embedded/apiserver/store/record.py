"""One stored object at one revision, and the event that led to it. The bytes are authoritative."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from koord.api.model import convert, decode

T = TypeVar("T")

EventType = Literal["ADDED", "MODIFIED", "DELETED"]

NO_STRINGS: Mapping[str, str] = {}


class StoreRecord:
    """An object at a revision, encoded once; its decoded forms are kept while the record is recently used."""

    __slots__ = ("_plain", "_typed", "fields", "labels", "name", "namespace", "raw", "revision")

    def __init__(
        self,
        namespace: str,
        name: str,
        revision: int,
        raw: bytes,
        labels: Mapping[str, str] = NO_STRINGS,
        fields: Mapping[str, str] = NO_STRINGS,
    ) -> None:
        self.namespace = namespace
        self.name = name
        self.revision = revision
        self.raw = raw
        self.labels = labels
        self.fields = fields  # values of the kind's selectable fields beyond name and namespace
        self._plain: dict[str, Any] | None = None
        self._typed: Any = None

    def plain(self) -> dict[str, Any]:
        """Return the object as dicts and lists, which are shared by all readers: never change them."""
        if self._plain is not None:
            return self._plain
        decoded: dict[str, Any] = msgspec.json.decode(self.raw)
        return decoded

    def typed(self, model: type[T]) -> T:
        """Return a typed view, made once for all in-process readers that want the same type."""
        kept = self._typed
        if kept is not None and type(kept) is model:
            return kept
        made = convert(self._plain, model) if self._plain is not None else decode(self.raw, model)
        self._typed = made
        return made

    def keep_decoded(self, plain: dict[str, Any]) -> None:
        self._plain = plain

    def drop_decoded(self) -> None:
        self._plain = None
        self._typed = None


class StoreEvent:
    """One change at one revision. `previous` is the record that it replaced, for selectors and past lists."""

    __slots__ = ("_line", "previous", "record", "type")

    def __init__(self, type: EventType, record: StoreRecord, previous: StoreRecord | None) -> None:
        self.type: EventType = type
        self.record = record
        self.previous = previous
        self._line: bytes | None = None

    @property
    def revision(self) -> int:
        return self.record.revision

    def line(self) -> bytes:
        """Return the watch line, encoded once and shared by every watcher."""
        if self._line is None:
            self._line = watch_line(self.type, self.record.raw)
        return self._line


def watch_line(type: str, raw: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (type.encode(), raw)
