"""This module matches node selector terms of pods, volumes and configuration, on one node and on columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from koord.api.kubernetes.affinity import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PreferredSchedulingTerm,
)
from koord.api.kubernetes.node import Node
from koord.scheduler.cache.node_table import Bools, NodeTable, Rows
from koord.scheduler.cache.pod_model import SchedulerPodSpec
from koord.values.go_format import quoted
from koord.values.selector import EVERYTHING, Operator, Requirement, Selector, SelectorError

NAME_FIELD = "metadata.name"


class NodeTerm:
    """All label and field requirements of one term. An invalid term matches nothing and has an `error`."""

    __slots__ = ("_fields", "_labels", "error", "weight")

    def __init__(self, term: NodeSelectorTerm, weight: int = 0, path: str = "") -> None:
        """Parse the term; `path` is where it is written, for the error."""
        self.weight = weight
        self.error = ""
        self._labels = EVERYTHING
        self._fields: tuple[tuple[str, str, bool], ...] = ()  # field, value, whether it must be equal
        try:
            if term.match_expressions:
                self._labels = Selector.from_node_expressions(
                    (r.key, r.operator, r.values) for r in term.match_expressions
                )
            self._fields = tuple(_field(requirement) for requirement in term.match_fields)
        except SelectorError:
            self.error = join_errors(_errors(term, path))

    def matches(self, node: Node) -> bool:
        if self.error or not self._labels.matches(node.metadata.labels):
            return False
        return all((_field_value(node, field) == value) is equal for field, value, equal in self._fields)

    def mask(self, table: NodeTable, rows: Rows) -> Bools:
        if self.error:
            return np.zeros(len(table.alive[rows]), np.bool_)
        mask = selector_mask(self._labels, table, rows)
        for field, value, equal in self._fields:
            mask &= _field_mask(table, rows, field, value) == equal
        return mask


class NodeTerms:
    """A node selector: one matching term is enough."""

    __slots__ = ("terms",)

    def __init__(self, selector: NodeSelector) -> None:
        self.terms = tuple(
            NodeTerm(term, path=f"nodeSelectorTerms[{i}]")
            for i, term in enumerate(selector.node_selector_terms)
            if not _is_empty(term)
        )

    @property
    def error(self) -> str:
        return join_errors([term.error for term in self.terms if term.error])

    def matches(self, node: Node) -> bool:
        return any(term.matches(node) for term in self.terms)

    def mask(self, table: NodeTable, rows: Rows) -> Bools:
        mask = np.zeros(len(table.alive[rows]), np.bool_)
        for term in self.terms:
            mask |= term.mask(table, rows)
        return mask


class RequiredNodeAffinity:
    """The nodes that a pod may run on at all: its node selector and its required node affinity."""

    __slots__ = ("affinity", "labels")

    def __init__(self, node_selector: Mapping[str, str], affinity: NodeSelector | None) -> None:
        self.labels = Selector.from_labels(node_selector) if node_selector else None
        self.affinity = NodeTerms(affinity) if affinity is not None else None

    @staticmethod
    def from_spec(spec: SchedulerPodSpec) -> RequiredNodeAffinity:
        return RequiredNodeAffinity(spec.node_selector, required_node_selector(spec))

    def matches(self, node: Node) -> bool:
        if self.labels is not None and not self.labels.matches(node.metadata.labels):
            return False
        return self.affinity is None or self.affinity.matches(node)

    def mask(self, table: NodeTable, rows: Rows) -> Bools:
        if self.labels is None and self.affinity is None:
            return np.ones(len(table.alive[rows]), np.bool_)
        if self.labels is None:
            assert self.affinity is not None
            return self.affinity.mask(table, rows)
        mask = selector_mask(self.labels, table, rows)
        return mask if self.affinity is None else mask & self.affinity.mask(table, rows)


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
        return join_errors([term.error for term in self.terms if term.error])

    def score(self, node: Node) -> int:
        return sum(term.weight for term in self.terms if term.matches(node))


def required_node_selector(spec: SchedulerPodSpec) -> NodeSelector | None:
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    return affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None


def selector_mask(selector: Selector, table: NodeTable, rows: Rows) -> Bools:
    """Compute `selector.matches` on the labels of many nodes."""
    if selector.matches_nothing:
        return np.zeros(len(table.alive[rows]), np.bool_)
    mask = np.ones(len(table.alive[rows]), np.bool_)
    for requirement in selector.requirements:
        mask &= _requirement_mask(requirement, table, rows)
    return mask


def _requirement_mask(requirement: Requirement, table: NodeTable, rows: Rows) -> Bools:
    values = table.label_column(requirement.key)
    codes = values.codes[rows]
    operator = requirement.operator
    mask: Bools
    if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST):
        mask = (codes != 0) == (operator is Operator.EXISTS)
    elif operator in (Operator.GREATER_THAN, Operator.LESS_THAN):
        mask = values.map_values(rows, lambda value: requirement.matches({requirement.key: value})) != 0
    else:
        wanted = [code for value in requirement.values if (code := values.code_of(value)) is not None]
        mask = np.isin(codes, wanted) if len(wanted) > 1 else codes == (wanted[0] if wanted else -1)
        if operator in (Operator.NOT_IN, Operator.NOT_EQUALS):
            mask = ~mask
    return mask


def _field(requirement: NodeSelectorRequirement) -> tuple[str, str, bool]:
    if requirement.operator not in ("In", "NotIn"):
        raise SelectorError(
            f'operator: Unsupported value: {quoted(requirement.operator)}: supported values: "In", "NotIn"'
        )
    if len(requirement.values) != 1:
        raise SelectorError(f"values: Invalid value: {list(requirement.values)}: must have one element")
    return requirement.key, requirement.values[0], requirement.operator == "In"


def _field_value(node: Node, field: str) -> str:
    return node.metadata.name if field == NAME_FIELD else ""


def _field_mask(table: NodeTable, rows: Rows, field: str, value: str) -> Bools:
    mask = np.full(table.size, field != NAME_FIELD and value == "", np.bool_)
    named = table.index.get(value) if field == NAME_FIELD else None
    if named is not None:
        mask[named.row] = True
    return mask[rows]


def join_errors(errors: Sequence[str]) -> str:
    """Join several errors the way Kubernetes does."""
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]" if errors else ""


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
