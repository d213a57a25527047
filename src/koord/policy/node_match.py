"""Match pods with nodes: node selectors, required node affinity, taints and tolerations."""

from __future__ import annotations

from collections.abc import Iterable

from koord.api.kubernetes.affinity import NodeSelector, NodeSelectorTerm, Taint, Toleration
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import PodSpec
from koord.values.selector import Selector, SelectorError

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"


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
    tolerations: tuple[Toleration, ...], taints: Iterable[Taint], effects: tuple[str, ...]
) -> Taint | None:
    for taint in taints:
        if taint.effect in effects and not is_tolerated(tolerations, taint):
            return taint
    return None


def matches_node_affinity(spec: PodSpec, node: Node) -> bool:
    """Return whether the pod's node selector and required node affinity match the node."""
    labels = node.metadata.labels
    if not Selector.from_labels(spec.node_selector).matches(labels):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return required is None or matches_node_selector(required, node)


def matches_node_selector(selector: NodeSelector, node: Node) -> bool:
    return any(_term_matches(term, node) for term in selector.node_selector_terms)


def _term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    for field in term.match_fields:
        # As kube-scheduler: In and NotIn with one value, and a field other than the name is empty.
        if field.operator not in ("In", "NotIn") or len(field.values) != 1:
            return False
        found = node.metadata.name if field.key == "metadata.name" else ""
        if (found == field.values[0]) != (field.operator == "In"):
            return False
    if not term.match_expressions:
        return True
    try:
        selector = Selector.from_node_expressions([(e.key, e.operator, e.values) for e in term.match_expressions])
    except SelectorError:
        return False  # a term that nobody can read matches nothing
    return selector.matches(node.metadata.labels)
