"""Match pods with reservations, say what keeps them apart, and diagnose it for users. Capacity is checked elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from koord.api.annotations.reservation_codecs import ReservationAffinity
from koord.api.koordinator.protocol import RESERVATION_ERROR_PREFIX
from koord.api.kubernetes.affinity import NodeSelector, Taint
from koord.policy.node_match import UNSCHEDULABLE_TAINT, NodeTerms, find_untolerated_taint, is_tolerated
from koord.scheduler.plugins.reservation.owner_matching import ReservationRequest
from koord.scheduler.plugins.reservation.reservation_info import ReservationInfo
from koord.values.resources import Counts
from koord.values.selector import EVERYTHING, Selector


class Mismatch(Enum):
    """Mismatch is why a pod may not use a reservation, in the order of the checks, which end without an owner."""

    OWNER = "owner"
    NAME = "name"
    UNSCHEDULABLE = "unschedulable"
    TAINT = "taint"
    AFFINITY = "affinity"
    NOT_EXACT = "exact"


class ReservationMatch(msgspec.Struct, frozen=True):
    """The result of matching. `mismatch` None: the pod may use the reservation. `taint` is the untolerated one."""

    mismatch: Mismatch | None = None
    taint: Taint | None = None
    matched_by_name: bool = False

    @property
    def matches(self) -> bool:
        return self.mismatch is None


class ReservationMatcher:
    """A pod's demands on reservations, compiled once for all of them. A term that cannot be parsed matches nothing."""

    __slots__ = ("_affinity", "_selector", "_terms", "pod")

    def __init__(self, pod: ReservationRequest) -> None:
        self.pod = pod
        self._affinity = pod.affinity
        self._selector = (
            Selector.from_labels(pod.affinity.reservation_selector) if pod.affinity is not None else EVERYTHING
        )
        self._terms = _required_terms(pod.affinity)

    def match(self, info: ReservationInfo, node_labels: Mapping[str, str] | None = None) -> ReservationMatch:
        """Match a reservation on a node with these labels; None omits them (gate OmitNodeLabelsForReservation).

        A pod that names a reservation gets it whatever its taints and labels are. Taints do not concern pods
        without an affinity: they never asked for a reservation.
        """
        if not info.matches_owner(self.pod):
            return ReservationMatch(Mismatch.OWNER)
        affinity = self._affinity
        if affinity is not None and affinity.name:
            if affinity.name != info.name:
                return ReservationMatch(Mismatch.NAME)
            exact = matches_exactly(self.pod.exact_resources, self.pod.requests, info.reserved)
            return ReservationMatch(None if exact else Mismatch.NOT_EXACT, matched_by_name=True)
        tolerations = affinity.tolerations if affinity is not None else ()
        if info.unschedulable and not is_tolerated(tolerations, UNSCHEDULABLE_TAINT):
            return ReservationMatch(Mismatch.UNSCHEDULABLE)
        if affinity is not None:
            taint = find_untolerated_taint(tolerations, info.taints)
            if taint is not None:
                return ReservationMatch(Mismatch.TAINT, taint=taint)
            labels = {**node_labels, **info.labels} if node_labels else info.labels
            if not self._selector.matches(labels):
                return ReservationMatch(Mismatch.AFFINITY)
            if self._terms is not None and not self._terms.matches_object(info.name, labels):
                return ReservationMatch(Mismatch.AFFINITY)
        exact = matches_exactly(self.pod.exact_resources, self.pod.requests, info.reserved)
        return ReservationMatch(None if exact else Mismatch.NOT_EXACT)


def _required_terms(affinity: ReservationAffinity | None) -> NodeTerms | None:
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return (
        None if required is None else NodeTerms(NodeSelector(node_selector_terms=required.reservation_selector_terms))
    )


def matches_exactly(names: Iterable[str], requested: Counts, reserved: Counts) -> bool:
    """Return whether both sides state the same amount of each name, or neither states it.

    Upstream is content at the first name that neither side has, and never looks at the rest.
    """
    return all(requested.get(name) == reserved.get(name) for name in names)


_MISMATCH_TEXTS = {
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


class MismatchCounts(msgspec.Struct):
    """Counts over one node's reservations whose owners match."""

    owner_matched: int = 0
    by_name: int = 0
    mismatches: Counter[Mismatch] = msgspec.field(default_factory=Counter)
    taints: Counter[str] = msgspec.field(default_factory=Counter)

    @staticmethod
    def from_matches(answers: Iterable[ReservationMatch]) -> MismatchCounts:
        tally = MismatchCounts()
        for answer in answers:
            if answer.mismatch is Mismatch.OWNER:
                continue
            tally.owner_matched += 1
            tally.by_name += answer.matched_by_name
            if answer.taint is not None:
                tally.taints[f"{{{answer.taint.key}: {answer.taint.value}}}"] += 1
            elif answer.mismatch is not None:
                tally.mismatches[answer.mismatch] += 1
        return tally

    @property
    def unmatched(self) -> int:
        return sum(self.mismatches.values()) + sum(self.taints.values())


def diagnosis_reasons(
    tallies: Mapping[str, MismatchCounts], node_reasons: Mapping[str, Sequence[str]], *, has_affinity: bool
) -> list[str]:
    """Summarize over all nodes. `node_reasons` are those for which each node was refused, by whatever plugin."""
    by_name = sum(tally.by_name for tally in tallies.values())
    mismatches: Counter[Mismatch] = Counter()
    taints: Counter[str] = Counter()
    for tally in tallies.values():
        mismatches.update(tally.mismatches)
        taints.update(tally.taints)
    found = [(by_name, _BY_NAME)]
    found += [(mismatches[kind], words) for kind, words in _MISMATCH_TEXTS.items()]
    found += [(taints[taint], f"had untolerated taint {taint}") for taint in sorted(taints)]
    by_node = _count_node_reasons(tallies, node_reasons)
    found += [(by_node[reason], f"{_NODE_REASON} {reason}") for reason in sorted(by_node)]
    said = [f"{count} {RESERVATION_ERROR_PREFIX}{words}" for count, words in found if count > 0]
    owned = sum(tally.owner_matched for tally in tallies.values())
    if owned or has_affinity:
        said.append(f"{owned} {RESERVATION_ERROR_PREFIX}{_TOTAL}")
    return said


def _count_node_reasons(
    tallies: Mapping[str, MismatchCounts], node_reasons: Mapping[str, Sequence[str]]
) -> Counter[str]:
    """Count node reasons: a reservation that matched and had no objection itself shares the fate of its node."""
    found: Counter[str] = Counter()
    for node, tally in tallies.items():
        said = node_reasons.get(node, ())
        own = sum(reason.startswith(RESERVATION_ERROR_PREFIX) for reason in said)
        left = tally.owner_matched - tally.unmatched - own
        if left > 0:
            for reason, times in Counter(r for r in said if not r.startswith(RESERVATION_ERROR_PREFIX)).items():
                found[reason] += left * times
    return found


def event_message(message: str) -> str | None:
    """Return the message of the FailedScheduling-Reservation event; None if the pod's message names no reservation."""
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
