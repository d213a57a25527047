"""What decisions need of a Node, from its annotations."""

from __future__ import annotations

import pytest

from koord.api.koordinator.protocol import A_CPU_NORMALIZATION_RATIO, A_SYSTEM_QOS_RESOURCE
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


def test_a_ratio_of_one_is_told_from_none() -> None:
    assert node_properties(node("1.00")).has_normalization_ratio
    assert not node_properties(node(None)).has_normalization_ratio
    assert not node_properties(node("fast")).has_normalization_ratio
    assert node_properties(node("fast"), node_properties(node("1.00"))).has_normalization_ratio


@pytest.mark.parametrize(
    ("text", "cpus", "exclusive"),
    [
        pytest.param('{"cpuset":"7"}', "7", "7", id="exclusive"),
        pytest.param('{"cpuset":"7","cpusetExclusive":false}', "7", "", id="shared"),
        pytest.param('{"cpuset":"a"}', "3", "", id="no-cpu-list-leaves-the-last-good-one"),
        pytest.param("{", "3", "", id="no-json-leaves-the-last-good-one"),
        pytest.param("{}", "", "", id="none"),
    ],
)
def test_cpus_of_system_pods(text: str, cpus: str, exclusive: str) -> None:
    def on(text: str) -> Node:
        return Node(metadata=ObjectMeta(name="n", annotations={A_SYSTEM_QOS_RESOURCE: text}))

    before = node_properties(on('{"cpuset":"3"}'))
    found = node_properties(on(text), before)
    assert (str(found.system_cpus), str(found.exclusive_cpus)) == (cpus, exclusive)
    assert str(node_properties(node(None), before).system_cpus) == "", "an annotation that is gone is no bad one"
