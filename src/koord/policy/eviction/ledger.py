"""Keep the newest eviction records of one program, bounded in number and in bytes; older ones are in Events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from koord.policy.eviction.record import EvictionRecord, bounded_record

MAX_RECORDS = 500
MAX_BYTES = 512 * 1024  # of the records as JSON

_Attempt = tuple[str, str, str, str]


class EvictionLedger:
    """Keep the latest records, the oldest out first.

    Attempts that repeat (one rule, one pod, one outcome) are one record with a count and the latest numbers, so that a
    pod that a disruption budget protects, or a dry run, does not push out everything else.
    """

    def __init__(self, most: int = MAX_RECORDS, most_bytes: int = MAX_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._records: OrderedDict[_Attempt, tuple[EvictionRecord, int]] = OrderedDict()  # and their sizes
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[EvictionRecord]:
        """Iterate over the records, newest first."""
        return (record for record, _ in reversed(self._records.values()))

    def add(self, record: EvictionRecord) -> None:
        attempt = (record.actor, record.rule, record.uid, record.outcome)
        known = self._records.pop(attempt, None)
        if known is not None:
            self.bytes -= known[1]
            record = msgspec.structs.replace(record, count=known[0].count + record.count)
        record = bounded_record(record)
        size = len(msgspec.json.encode(record))
        self._records[attempt] = (record, size)
        self.bytes += size
        while len(self._records) > self._most or self.bytes > self._most_bytes:
            self.bytes -= self._records.popitem(last=False)[1][1]

    def records(self, namespace: str = "", name: str = "") -> list[EvictionRecord]:
        """Return the records, newest first; an empty namespace or name matches any."""
        return [
            record
            for record in self
            if (not namespace or record.namespace == namespace) and (not name or record.name == name)
        ]
