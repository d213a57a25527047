"""One matcher of taints and of node selector terms for all programs, with kube-scheduler's answers."""

from __future__ import annotations

import pytest

from koord.api.kubernetes.affinity import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
    Toleration,
)
from koord.api.kubernetes.meta import ObjectMeta
from koord.api.kubernetes.node import Node
from koord.policy.node_match import NodeTerms, find_untolerated_taint, tolerates

TAINT = Taint(key="dedicated", value="web", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (Toleration(key="dedicated", value="web"), True),
        (Toleration(key="dedicated", operator="Equal", value="db"), False),
        (Toleration(key="dedicated", operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(operator="Exists", effect="NoExecute"), False),
        # Validation refuses an empty key with Equal; ToleratesTaint compares the values all the same.
        (Toleration(operator="Equal", value="web"), True),
        (Toleration(value="db"), False),
        (Toleration(key="dedicated", operator="Gt", value="1"), False),
    ],
)
def test_a_toleration_matches_as_kubernetes_compares_it(toleration: Toleration, expected: bool) -> None:
    assert tolerates(toleration, TAINT) is expected


def test_only_taints_of_the_given_effects_count() -> None:
    assert find_untolerated_taint((), (TAINT,), ("NoExecute",)) is None
    assert find_untolerated_taint((), (TAINT,), ("NoSchedule",)) == TAINT


@pytest.mark.parametrize(
    ("key", "operator", "values", "expected"),
    [
        ("metadata.name", "In", ("n1",), True),
        ("metadata.name", "NotIn", ("n1",), False),
        ("metadata.name", "NotIn", ("n2",), True),
        ("metadata.name", "In", ("n1", "n2"), False),  # a field takes one value
        ("metadata.name", "Exists", (), False),
        ("metadata.uid", "NotIn", ("u",), True),  # other fields are empty
    ],
)
def test_a_field_requirement_takes_one_value(key: str, operator: str, values: tuple[str, ...], expected: bool) -> None:
    field = NodeSelectorRequirement(key=key, operator=operator, values=values)
    selector = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(field,)),))
    assert NodeTerms(selector).matches(Node(metadata=ObjectMeta(name="n1"))) is expected
