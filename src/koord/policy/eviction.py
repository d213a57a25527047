"""Describe one eviction (which program evicted which pod, by which rule, on which numbers, with which outcome), and
keep the newest records of one program, bounded in number and in bytes; older ones are in Events.

A program builds the record when it decides, with the outcome `requested`, and concludes it when the API server has
answered. The record travels as JSON in an annotation: on the Event about the pod, which outlives the pod, and on a
PodMigrationJob between the decision and the eviction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from koord.api.annotations.codec import MalformedAnnotation, dump_json, parse_json
from koord.api.koordinator.protocol import A_EVICTION_RECORD
from koord.values import timestamp

# The programs that evict pods; `koord migrate` stands for the person who ran it.
KOORD_SCHEDULER = "koord-scheduler"
KOORD_DESCHEDULER = "koord-descheduler"
KOORDLET = "koordlet"
KOORD_MIGRATE = "koord-migrate"
ACTORS = (KOORD_SCHEDULER, KOORD_DESCHEDULER, KOORDLET, KOORD_MIGRATE)

EvictionOutcome = Literal["requested", "evicted", "refused", "dry-run", "failed"]
REQUESTED: EvictionOutcome = "requested"
EVICTED: EvictionOutcome = "evicted"  # the API server accepted, the pod was gone, or the runtime stopped it
REFUSED: EvictionOutcome = "refused"  # a disruption budget does not allow it
DRY_RUN: EvictionOutcome = "dry-run"
FAILED: EvictionOutcome = "failed"  # any other error, or no answer

MAX_TEXT_BYTES = 1024  # of each text in an annotation or a ledger
MAX_AMOUNTS = 32  # of each map
_CUT = " ..."


class EvictionRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, rename="camel"):
    """Record who evicted a pod, why, and what came of it."""

    actor: str  # the program
    plugin: str = ""  # its plugin or strategy
    rule: str
    reason: str = ""  # in the words of the rule
    measured: str = ""
    threshold: str = ""
    rank: str = ""  # the victim's place among the candidates
    why_this_pod: str = ""
    release: Mapping[str, int] = {}  # what the rule wanted freed in all
    credited: Mapping[str, int] = {}  # of that, what pods that are on their way out will free
    frees: Mapping[str, int] = {}  # what this pod brings
    request: str = ""  # what the pod has to leave for, such as "Pod default/a" or "PodMigrationJob b"
    request_uid: str = ""
    namespace: str
    name: str
    uid: str
    third_party: str = ""  # the orchestrator, such as hadoop-yarn, of a container that is in no pod of Kubernetes
    node: str = ""
    time: str = ""  # of the latest attempt, RFC 3339
    outcome: EvictionOutcome = REQUESTED
    detail: str = ""  # of the outcome: what the API server or the runtime answered
    count: int = 1  # attempts that ended like this one

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def concluded(self, at_s: float, outcome: EvictionOutcome, detail: str = "") -> EvictionRecord:
        """Return the record with its outcome at that time, in seconds since the epoch."""
        at = timestamp.unix_text(at_s)
        return msgspec.structs.replace(self, time=at, outcome=outcome, detail=detail)

    def numbers(self) -> str:
        """Return the numbers behind the eviction in one line, for events and logs."""
        return f"{self.measured}; threshold {self.threshold}; {self.why_this_pod}"


def bounded_record(record: EvictionRecord) -> EvictionRecord:
    """Return the record with every text and map cut to its limit."""
    changes: dict[str, object] = {}
    for field in record.__struct_fields__:
        value = getattr(record, field)
        if isinstance(value, str) and len(value.encode()) > MAX_TEXT_BYTES:
            changes[field] = value.encode()[: MAX_TEXT_BYTES - len(_CUT)].decode(errors="ignore") + _CUT
        elif isinstance(value, Mapping) and len(value) > MAX_AMOUNTS:
            changes[field] = {name: value[name] for name in sorted(value)[:MAX_AMOUNTS]}
    return msgspec.structs.replace(record, **changes) if changes else record


def record_annotations(record: EvictionRecord) -> dict[str, str]:
    """Return the annotation that carries the record."""
    return {A_EVICTION_RECORD: dump_json(bounded_record(record))}


def parse_record(annotations: Mapping[str, str]) -> EvictionRecord | MalformedAnnotation | None:
    """Parse the record that an Event or a PodMigrationJob carries."""
    return parse_json(annotations, A_EVICTION_RECORD, EvictionRecord)


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
