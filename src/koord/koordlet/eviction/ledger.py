"""The bounded ledger of all attempted evictions: which pod, by which rule, on which numbers, and with which outcome."""

from __future__ import annotations

from collections import deque

import msgspec

from koord.koordlet.plan import EvictionRecord

MOST = 500
EVICTED, REFUSED, FAILED = "evicted", "refused", "failed"


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One attempted eviction. `outcome` is evicted, refused (by the API server) or failed (no answer)."""

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
    """The latest entries; older ones are in the audit log and in events."""

    def __init__(self, most: int = MOST) -> None:
        self._entries: deque[Entry] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)

    def entries(self, namespace: str = "", name: str = "") -> list[Entry]:
        """Return the entries, newest first; an empty namespace or name matches any."""
        return [
            entry
            for entry in reversed(self._entries)
            if (not namespace or entry.namespace == namespace) and (not name or entry.name == name)
        ]


def account(record: EvictionRecord) -> str:
    """Describe the numbers behind an eviction in one line, for events and logs."""
    return f"{record.measured}; threshold {record.threshold}; {record.why_this_pod}"
