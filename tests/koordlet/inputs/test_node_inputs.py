"""What decisions need of a Node, from its annotations."""

from __future__ import annotations

import pytest

from koord.api.koordinator.protocol import A_CPU_NORMALIZATION_RATIO
from koord.api.kubernetes.meta import ObjectMeta
from koord.api.kubernetes.node import Node
from koord.koordlet.inputs.node_inputs import node_properties


def node(ratio: str | None) -> Node:
    return Node(metadata=ObjectMeta(name="n", annotations={} if ratio is None else {A_CPU_NORMALIZATION_RATIO: ratio}))


@pytest.mark.parametrize("bad", ["", "fast", "0", "-1.2", "nan", "inf"])
def test_a_ratio_that_cannot_be_used_leaves_the_last_good_one(bad: str) -> None:
    good = node_properties(node("1.25"))
    assert good.normalization_ratio == 1.25
    assert node_properties(node(bad), good).normalization_ratio == 1.25
    assert node_properties(node(bad)).normalization_ratio == 1.0
    assert node_properties(node(None), good).normalization_ratio == 1.0, "one that is gone is no bad one"
    assert node_properties(node("0.8"), good).normalization_ratio == 1.0
