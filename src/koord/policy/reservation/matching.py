"""Match pods with reservations, say what keeps them apart, and diagnose it for users. Capacity is checked elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from koord.api.affinity import NodeSelectorTerm, Taint, Toleration
from koord.api.annotations.reservation_affinity import ReservationAffinity
from koord.policy.reservation.holding import Holding
from koord.policy.reservation.seeker import Counts, Seeker
from koord.values.requirement import SelectorError
from koord.values.selector import EVERYTHING, Selector

UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_REPELLING = ("NoSchedule", "NoExecute")
_NAME_FIELD = "metadata.name"


class Mismatch(Enum):
    """Why a pod may not use a reservation, in the order of the checks. Without a matching owner nothing else is
    checked.
    """

    OWNER = "owner"
    NAME = "name"
    UNSCHEDULABLE = "unschedulable"
    TAINT = "taint"
    AFFINITY = "affinity"
    NOT_EXACT = "exact"


class Answer(msgspec.Struct, frozen=True):
    """The result of matching. `mismatch` None: the pod may use the reservation. `taint` is the one that is not
    tolerated.
    """

    mismatch: Mismatch | None = None
    taint: Taint | None = None
    by_name: bool = False

    @property
    def matches(self) -> bool:
        return self.mismatch is None


class Wish:
    """A pod's demands on reservations, compiled once for all of them. A term that cannot be parsed matches nothing."""

    __slots__ = ("_affinity", "_selector", "_terms", "pod")

    def __init__(self, pod: Seeker) -> None:
        self.pod = pod
        self._affinity = pod.affinity
        self._selector = (
            Selector.of_labels(pod.affinity.reservation_selector) if pod.affinity is not None else EVERYTHING
        )
        self._terms = _terms(pod.affinity)

    def match(self, holding: Holding, node_labels: Mapping[str, str] | None = None) -> Answer:
        """Match a reservation on a node with these labels; None omits them (gate OmitNodeLabelsForReservation).

        A pod that names a reservation gets it whatever its taints and labels are. Taints do not concern pods
        without an affinity: they never asked for a reservation.
        """
        if not holding.is_for(self.pod):
            return Answer(Mismatch.OWNER)
        affinity = self._affinity
        if affinity is not None and affinity.name:
            if affinity.name != holding.name:
                return Answer(Mismatch.NAME)
            exact = matches_exactly(self.pod.exact, self.pod.requests, holding.reserved)
            return Answer(None if exact else Mismatch.NOT_EXACT, by_name=True)
        tolerations = affinity.tolerations if affinity is not None else ()
        if holding.unschedulable and not tolerated(UNSCHEDULABLE, tolerations):
            return Answer(Mismatch.UNSCHEDULABLE)
        if affinity is not None:
            taint = next((t for t in holding.taints if t.effect in _REPELLING and not tolerated(t, tolerations)), None)
            if taint is not None:
                return Answer(Mismatch.TAINT, taint=taint)
            labels = {**node_labels, **holding.labels} if node_labels else holding.labels
            if not self._selector.matches(labels) or not self._admits(labels, holding.name):
                return Answer(Mismatch.AFFINITY)
        exact = matches_exactly(self.pod.exact, self.pod.requests, holding.reserved)
        return Answer(None if exact else Mismatch.NOT_EXACT)

    def _admits(self, labels: Mapping[str, str], name: str) -> bool:
        return self._terms is None or any(term.matches(labels, name) for term in self._terms)


class _Term:
    __slots__ = ("_fields", "_labels", "_readable")

    def __init__(self, term: NodeSelectorTerm) -> None:
        self._labels = self._fields = EVERYTHING
        self._readable = True
        try:
            if term.match_expressions:
                self._labels = Selector.of_node_expressions(
                    (e.key, e.operator, e.values) for e in term.match_expressions
                )
            if term.match_fields:
                self._fields = Selector.of_node_expressions((e.key, e.operator, e.values) for e in term.match_fields)
        except SelectorError:
            self._readable = False

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        return self._readable and self._labels.matches(labels) and self._fields.matches({_NAME_FIELD: name})


def _terms(affinity: ReservationAffinity | None) -> tuple[_Term, ...] | None:
    """Compile the required terms; None when there are none. A term without conditions matches nothing."""
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is None:
        return None
    return tuple(_Term(t) for t in required.reservation_selector_terms if t.match_expressions or t.match_fields)


def matches_exactly(names: Iterable[str], requested: Counts, reserved: Counts) -> bool:
    """Return whether both sides state the same amount of each name, or neither states it.

    Upstream is content at the first name that neither side has, and never looks at the rest.
    """
    return all(requested.get(name) == reserved.get(name) for name in names)


def tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(
        (not t.effect or t.effect == taint.effect)
        and (not t.key or t.key == taint.key)
        and (t.operator == "Exists" or (t.operator in ("", "Equal") and t.value == taint.value))
        for t in tolerations
    )
