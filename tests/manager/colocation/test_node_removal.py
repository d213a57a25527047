"""What koord wrote into a Node is removed from it, and nothing else."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.node import Node
from koord.api.model import convert
from koord.manager.colocation.device_resources import ANNOTATIONS, GPU_LABELS, RESOURCES, decide_node_removal

OTHERS = ("cpu", "memory", "pods", "example.com/fpga", "hugepages-2Mi")
_OTHER_NAMES = ("kubernetes.io/hostname", "volumes.kubernetes.io/controller-managed-attach-detach", "mine")


def resources() -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from((*OTHERS, *RESOURCES)), st.sampled_from(("0", "1", "100")))


def nodes() -> st.SearchStrategy[dict[str, Any]]:
    texts = st.sampled_from(("", "a"))
    return st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries(
                {
                    "labels": st.dictionaries(st.sampled_from((*_OTHER_NAMES, *GPU_LABELS)), texts),
                    "annotations": st.dictionaries(st.sampled_from((*_OTHER_NAMES, *ANNOTATIONS)), texts),
                }
            ),
            "status": st.fixed_dictionaries({"capacity": resources(), "allocatable": resources()}),
        }
    )


def merged(node: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Return the node with the merge patch applied."""
    made = dict(node)
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key, {}), value) if isinstance(value, dict) else value
    return made


@given(nodes())
def test_what_is_left_is_what_others_wrote(plain: dict[str, Any]) -> None:
    left = merged(plain, decide_node_removal(convert(plain, Node)))
    ours = {*RESOURCES, *ANNOTATIONS, *GPU_LABELS}
    for part, field in (("metadata", "labels"), ("metadata", "annotations"), ("status", "capacity")):
        kept = {key: value for key, value in plain[part][field].items() if key not in ours}
        assert left[part][field] == kept
    assert not ours & set(left["status"]["allocatable"])
    assert decide_node_removal(convert(left, Node)) == {}


def test_a_node_without_any_of_it_is_not_written() -> None:
    node = {"metadata": {"labels": {"mine": "1"}}, "status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}}
    assert decide_node_removal(convert(node, Node)) == {}
