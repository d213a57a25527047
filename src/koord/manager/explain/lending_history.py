"""The last changes of what each node lends, with the terms before and after.

Records are kept encoded: a thousand nodes with their history take a few megabytes. Time comes from the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koord.api.model import QuantityText
from koord.manager.colocation.decision import ColocationDecision
from koord.manager.colocation.models import ColocationNode
from koord.manager.explain.lending_report import explain_withheld, listed_amount, node_sums
from koord.values.quantity import Quantity

CHANGES_KEPT = 10  # changes per node
_LENT_RESOURCES = (BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY)

Amounts = dict[str, int | None]


class LendingRecord(msgspec.Struct, frozen=True, array_like=True):
    """LendingRecord holds what was written at a moment, and from which terms."""

    at: datetime
    reasons: tuple[str, ...]
    before: Amounts
    after: Amounts
    terms: dict[str, dict[str, int]]  # resource -> term -> amount
    withheld: str = ""


class TermChange(msgspec.Struct, frozen=True, kw_only=True):
    resource: str
    term: str
    before: int
    after: int


class LendingChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change. `moved` is empty for the first known change, which has nothing to compare with."""

    at: datetime
    reasons: tuple[str, ...]
    before: Amounts
    after: Amounts
    moved: tuple[TermChange, ...] = ()
    withheld: str = ""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(LendingRecord)


class NodeLendingHistory:
    """The last changes of each node: `record` on a write, `changes_of` to read, newest first."""

    def __init__(self, kept: int = CHANGES_KEPT) -> None:
        self._kept = kept + 1  # one more, so that the oldest that is shown can be compared
        self._entries: dict[str, deque[bytes]] = {}

    def record(
        self,
        at: datetime,
        node: ColocationNode,
        decision: ColocationDecision,
        written: Mapping[str, QuantityText | None],
        reasons: Sequence[str],
    ) -> None:
        """Record a write. `node` is as before it; `written` are the changed resources, None for removed ones."""
        before = {name: listed_amount(node.status.allocatable, name) for name in _LENT_RESOURCES}
        entry = LendingRecord(
            at,
            tuple(reasons),
            before,
            before
            | {
                name: None if text is None else Quantity.parse(text).value()
                for name, text in written.items()
                if name in before
            },
            {
                name: {term.name: term.amount for term in total.terms}
                for name, total in node_sums(node, decision).items()
            },
            explain_withheld(decision) if not decision.enabled or decision.degraded is not None else "",
        )
        self._entries.setdefault(node.metadata.name, deque(maxlen=self._kept)).append(_ENCODER.encode(entry))

    def forget(self, node: str) -> None:
        self._entries.pop(node, None)

    def changes_of(self, node: str) -> list[LendingChange]:
        entries = [_DECODER.decode(raw) for raw in self._entries.get(node, ())]
        told = [_change(entry, earlier) for earlier, entry in zip([None, *entries], entries)]
        return told[::-1][: self._kept - 1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)


def _change(entry: LendingRecord, earlier: LendingRecord | None) -> LendingChange:
    moved = () if earlier is None else term_changes(earlier.terms, entry.terms)
    return LendingChange(
        at=entry.at, reasons=entry.reasons, before=entry.before, after=entry.after, moved=moved, withheld=entry.withheld
    )


def term_changes(before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]) -> tuple[TermChange, ...]:
    """Return the changed terms of each resource, the largest change first."""
    found = []
    for resource, terms in after.items():
        old = before.get(resource, {})
        names = dict.fromkeys((*old, *terms)) if old else {}
        changed = [
            TermChange(resource=resource, term=name, before=old.get(name, 0), after=terms.get(name, 0))
            for name in names
            if old.get(name, 0) != terms.get(name, 0)
        ]
        found += sorted(changed, key=lambda one: -abs(one.after - one.before))
    return tuple(found)
