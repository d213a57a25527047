"""The bounded ledger of all attempted evictions: which pod, by which rule, on which numbers, and with which outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import msgspec

MAX_ENTRIES = 500
EVICTED, REFUSED, FAILED = "evicted", "refused", "failed"


class EvictionEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
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


class EvictionLedger:
    """The latest entries; older ones are in the audit log and in events."""

    def __init__(self, most: int = MAX_ENTRIES) -> None:
        self._entries: deque[EvictionEntry] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: EvictionEntry) -> None:
        self._entries.append(entry)

    def entries(self, namespace: str = "", name: str = "") -> list[EvictionEntry]:
        """Return the entries, newest first; an empty namespace or name matches any."""
        return [
            entry
            for entry in reversed(self._entries)
            if (not namespace or entry.namespace == namespace) and (not name or entry.name == name)
        ]


def describe_record(record: EvictionRecord) -> str:
    """Describe the numbers behind an eviction in one line, for events and logs."""
    return f"{record.measured}; threshold {record.threshold}; {record.why_this_pod}"


class EvictionRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """EvictionRecord states why a pod was evicted: the actor, the rule, the measured values, the threshold, and the
    rank of the victim.
    """

    actor: str
    rule: str  # the feature, such as BEMemoryEvict
    measured: str
    threshold: str
    release: Mapping[str, int]  # what the rule wanted freed in all
    credited: Mapping[str, int]  # of that, what pods that are on their way out will free
    frees: Mapping[str, int]  # what this pod brings
    why_this_pod: str


class EvictionRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Evict one pod through the API server; `record` explains the choice."""

    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    record: EvictionRecord
