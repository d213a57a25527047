"""Diagnose reservations that did not help a pod: counts by reason, and the text of the event."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koord.api.protocol import RESERVATION_ERROR_PREFIX
from koord.policy.reservation.matching import Answer, Mismatch

_WORDS = {
    Mismatch.NAME: "didn't match the requested reservation name",
    Mismatch.AFFINITY: "didn't match affinity rules",
    Mismatch.UNSCHEDULABLE: "is unschedulable",
    Mismatch.NOT_EXACT: "is not exact matched",
}
_BY_NAME = "exactly matches the requested reservation name"
_TOTAL = "matched owner total"
_NODE_REASON = "for node reason that"
_ITEM = re.compile(rf"^\d+ {re.escape(RESERVATION_ERROR_PREFIX)}(.+)$")
_SUMMARY = re.compile(r"^0/\d+ nodes are available: ")


class Tally(msgspec.Struct):
    """Counts over one node's reservations whose owners match."""

    owned: int = 0
    by_name: int = 0
    mismatches: Counter[Mismatch] = msgspec.field(default_factory=Counter)
    taints: Counter[str] = msgspec.field(default_factory=Counter)

    @staticmethod
    def of(answers: Iterable[Answer]) -> Tally:
        tally = Tally()
        for answer in answers:
            if answer.mismatch is Mismatch.OWNER:
                continue
            tally.owned += 1
            tally.by_name += answer.by_name
            if answer.taint is not None:
                tally.taints[f"{{{answer.taint.key}: {answer.taint.value}}}"] += 1
            elif answer.mismatch is not None:
                tally.mismatches[answer.mismatch] += 1
        return tally

    @property
    def unmatched(self) -> int:
        return sum(self.mismatches.values()) + sum(self.taints.values())


def reasons(
    tallies: Mapping[str, Tally], node_reasons: Mapping[str, Sequence[str]], *, has_affinity: bool
) -> list[str]:
    """Summarize over all nodes. `node_reasons` are those for which each node was refused, by whatever plugin."""
    by_name = sum(tally.by_name for tally in tallies.values())
    mismatches: Counter[Mismatch] = Counter()
    taints: Counter[str] = Counter()
    for tally in tallies.values():
        mismatches.update(tally.mismatches)
        taints.update(tally.taints)
    found = [(by_name, _BY_NAME)]
    found += [(mismatches[kind], words) for kind, words in _WORDS.items()]
    found += [(taints[taint], f"had untolerated taint {taint}") for taint in sorted(taints)]
    by_node = _for_node_reasons(tallies, node_reasons)
    found += [(by_node[reason], f"{_NODE_REASON} {reason}") for reason in sorted(by_node)]
    said = [f"{count} {RESERVATION_ERROR_PREFIX}{words}" for count, words in found if count > 0]
    owned = sum(tally.owned for tally in tallies.values())
    if owned or has_affinity:
        said.append(f"{owned} {RESERVATION_ERROR_PREFIX}{_TOTAL}")
    return said


def _for_node_reasons(tallies: Mapping[str, Tally], node_reasons: Mapping[str, Sequence[str]]) -> Counter[str]:
    """Count node reasons: a reservation that matched and had no objection itself shares the fate of its node."""
    found: Counter[str] = Counter()
    for node, tally in tallies.items():
        said = node_reasons.get(node, ())
        own = sum(reason.startswith(RESERVATION_ERROR_PREFIX) for reason in said)
        left = tally.owned - tally.unmatched - own
        if left > 0:
            for reason, times in Counter(r for r in said if not r.startswith(RESERVATION_ERROR_PREFIX)).items():
                found[reason] += left * times
    return found


def event_text(message: str) -> str | None:
    """Return the message of the FailedScheduling-Reservation event for the pod's message; None when it names no
    reservation.
    """
    summary = _SUMMARY.match(message)
    if summary is None:
        return None
    named: list[str] = []
    details: list[str] = []
    by_node: list[str] = []
    total: str | None = None
    for item in re.split(r",|\. ", message[summary.end() :]):
        item = item.strip().rstrip(".")
        found = _ITEM.match(item)
        if found is None:
            continue
        words = found[1]
        if words == _TOTAL:
            total = item.partition(" ")[0]
        elif words == _BY_NAME:
            named.append(item)
        elif words.startswith(_NODE_REASON):
            by_node.append(item)
        else:
            details.append(item)
    if total is None:
        return None
    return f"0/{total} reservations are available: {', '.join((*named, *details, *by_node))}."
