"""Every eviction that was tried: who, by which rule, on which numbers, why this pod, and what came of it. Bounded."""

from __future__ import annotations

from collections import deque

import msgspec

from koord.koordlet.plan import EvictionRecord

MOST = 500
EVICTED, REFUSED, FAILED = "evicted", "refused", "failed"


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`outcome`: evicted, refused (the API server said no), or failed (no answer came)."""

    at: str
    node: str
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    outcome: str
    detail: str = ""
    record: EvictionRecord


class Ledger:
    """The latest entries. What is older is in the audit log and in events."""

    def __init__(self, most: int = MOST) -> None:
        self._entries: deque[Entry] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)

    def entries(self, namespace: str = "", name: str = "") -> list[Entry]:
        """Newest first; empty names are any."""
        return [
            entry
            for entry in reversed(self._entries)
            if (not namespace or entry.namespace == namespace) and (not name or entry.name == name)
        ]


def account(record: EvictionRecord) -> str:
    """The numbers behind an eviction in one line, as events and logs tell them."""
    return f"{record.measured}; threshold {record.threshold}; {record.why_this_pod}"
