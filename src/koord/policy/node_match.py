"""Match pods with nodes: node selectors, required and preferred node affinity, taints and tolerations.

Terms are compiled once; `koord.scheduler.plugins.node_affinity` evaluates the same compiled terms on many nodes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Protocol

from koord.api.kubernetes.affinity import (
    Affinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PreferredSchedulingTerm,
    Taint,
    Toleration,
)
from koord.api.kubernetes.node import Node
from koord.values.go_format import join_errors, quoted
from koord.values.selector import EVERYTHING, Selector, SelectorError

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
# Effects that keep a pod off a node.
HARD_EFFECTS = frozenset((NO_SCHEDULE, NO_EXECUTE))
UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect=NO_SCHEDULE)

NAME_FIELD = "metadata.name"


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Return whether the toleration matches the taint.

    An empty key stands for every key, with either operator. Comparison operators (Gt, Lt) belong to a feature gate that
    is off in Kubernetes 1.35, so they tolerate nothing.
    """
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def is_tolerated(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)


def find_untolerated_taint(
    tolerations: tuple[Toleration, ...], taints: Iterable[Taint], effects: Container[str] = HARD_EFFECTS
) -> Taint | None:
    """Return the first taint with one of the effects that no toleration matches."""
    for taint in taints:
        if taint.effect in effects and not is_tolerated(tolerations, taint):
            return taint
    return None


class NodeTerm:
    """All label and field requirements of one term. An invalid term matches nothing and has an `error`."""

    __slots__ = ("error", "fields", "labels", "weight")

    def __init__(self, term: NodeSelectorTerm, weight: int = 0, path: str = "") -> None:
        """Parse the term; `path` is where it is written, for the error."""
        self.weight = weight
        self.error = ""
        self.labels = EVERYTHING
        self.fields: tuple[tuple[str, str, bool], ...] = ()  # field, value, whether it must be equal
        try:
            if term.match_expressions:
                self.labels = Selector.from_node_expressions(
                    (r.key, r.operator, r.values) for r in term.match_expressions
                )
            self.fields = tuple(_field(requirement) for requirement in term.match_fields)
        except SelectorError:
            self.error = join_errors(_errors(term, path))

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        if self.error or not self.labels.matches(labels):
            return False
        return all(((name if field == NAME_FIELD else "") == value) is equal for field, value, equal in self.fields)


class NodeTerms:
    """A node selector: one matching term is enough. A term without requirements matches nothing."""

    __slots__ = ("terms",)

    def __init__(self, selector: NodeSelector) -> None:
        self.terms = tuple(
            NodeTerm(term, path=f"nodeSelectorTerms[{i}]")
            for i, term in enumerate(selector.node_selector_terms)
            if not _is_empty(term)
        )

    @property
    def error(self) -> str:
        return join_errors(term.error for term in self.terms if term.error)

    def matches(self, node: Node) -> bool:
        return self.matches_object(node.metadata.name, node.metadata.labels)

    def matches_object(self, name: str, labels: Mapping[str, str]) -> bool:
        """Match what has a name and labels; reservations are selected in the same way as nodes."""
        return any(term.matches(name, labels) for term in self.terms)


class PlacementSpec(Protocol):
    """The fields of a pod's spec that name nodes; each program decodes its own model of a pod."""

    @property
    def node_selector(self) -> Mapping[str, str]: ...
    @property
    def affinity(self) -> Affinity | None: ...


def required_node_selector(spec: PlacementSpec) -> NodeSelector | None:
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    return affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None


class RequiredNodeAffinity:
    """The nodes that a pod may run on at all: its node selector and its required node affinity."""

    __slots__ = ("affinity", "labels")

    def __init__(self, node_selector: Mapping[str, str], affinity: NodeSelector | None) -> None:
        self.labels = Selector.from_labels(node_selector) if node_selector else None
        self.affinity = NodeTerms(affinity) if affinity is not None else None

    @staticmethod
    def from_spec(spec: PlacementSpec) -> RequiredNodeAffinity:
        return RequiredNodeAffinity(spec.node_selector, required_node_selector(spec))

    def matches(self, node: Node) -> bool:
        if self.labels is not None and not self.labels.matches(node.metadata.labels):
            return False
        return self.affinity is None or self.affinity.matches(node)


def matches_node_affinity(spec: PlacementSpec, node: Node) -> bool:
    """Return whether the pod's node selector and required node affinity match the node."""
    return RequiredNodeAffinity.from_spec(spec).matches(node)


class PreferredNodeAffinity:
    """The preferred node affinity of a pod: the weights of matching terms add up."""

    __slots__ = ("terms",)

    def __init__(self, terms: Sequence[PreferredSchedulingTerm]) -> None:
        self.terms = tuple(
            NodeTerm(term.preference, term.weight, f"[{i}]")
            for i, term in enumerate(terms)
            if term.weight and not _is_empty(term.preference)
        )

    @property
    def error(self) -> str:
        return join_errors(term.error for term in self.terms if term.error)

    def score(self, node: Node) -> int:
        name, labels = node.metadata.name, node.metadata.labels
        return sum(term.weight for term in self.terms if term.matches(name, labels))


def _field(requirement: NodeSelectorRequirement) -> tuple[str, str, bool]:
    if requirement.operator not in ("In", "NotIn"):
        raise SelectorError(
            f'operator: Unsupported value: {quoted(requirement.operator)}: supported values: "In", "NotIn"'
        )
    if len(requirement.values) != 1:
        raise SelectorError(f"values: Invalid value: {list(requirement.values)}: must have one element")
    return requirement.key, requirement.values[0], requirement.operator == "In"


def _errors(term: NodeSelectorTerm, path: str) -> list[str]:
    found = []
    for i, each in enumerate(term.match_expressions):
        try:
            Selector.from_node_expressions([(each.key, each.operator, each.values)])
        except SelectorError as error:
            found.append(f"{path}.matchExpressions[{i}].{error}")
    for i, each in enumerate(term.match_fields):
        try:
            _field(each)
        except SelectorError as error:
            found.append(f"{path}.matchFields[{i}].{error}")
    return found


def _is_empty(term: NodeSelectorTerm) -> bool:
    return not term.match_expressions and not term.match_fields
