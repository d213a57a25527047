"""Short histories in which cached verdicts and scores could become stale."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from koord.api.node import Node
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.wire import Pod
from tests.scheduler.clusters import make_node, make_pod, node_term, preferred_nodes, required_nodes
from tests.scheduler.equality import History, Step, check_kept
from tests.scheduler.plugins.one_node_plugins import WEIGHTS, default_plugins

PREFERS_BLUE = make_pod(
    "judged",
    cpu="1",
    affinity=preferred_nodes((100, node_term(("blue", "Exists", []))), (50, node_term(("green", "Exists", [])))),
)
NAMED = make_pod("judged", affinity=required_nodes(node_term(fields=[("metadata.name", "In", ["n0"])])))
BLUE, GREEN = make_node("n0", cpu="4", labels={"blue": ""}), make_node("n1", labels={"green": ""})


def nodes(*given: Node) -> tuple[Step, ...]:
    return tuple(Step("set-node", node=node) for node in given)


def bound(name: str, node: str, cpu: str = "1") -> Step:
    return Step("set-pod", pod=make_pod(name, node=node, cpu=cpu))


@pytest.mark.parametrize(
    ("pod", "steps"),
    [
        pytest.param(
            PREFERS_BLUE, (*nodes(BLUE, GREEN), bound("big", "n0", "4")), id="the-best-node-fills-up-and-the-rest-rises"
        ),
        pytest.param(
            PREFERS_BLUE,
            (*nodes(BLUE, GREEN), bound("big", "n0", "4"), Step("drop-pod", name="uid-default-big")),
            id="the-best-node-is-free-again-and-the-rest-sinks",
        ),
        pytest.param(
            make_pod("judged", images=["app:v1"]),
            (
                *nodes(make_node("n0", images={"app:v1": 2**29}), make_node("n1"), make_node("n2")),
                bound("left", "n2"),
                Step("drop-node", name="n2"),
            ),
            id="a-node-goes-while-its-pods-stay-and-images-are-on-a-larger-part-of-nodes",
        ),
        pytest.param(
            NAMED,
            (
                *nodes(make_node("n0", unschedulable=True), make_node("n1")),
                bound("left", "n1"),
                Step("drop-node", name="n1"),
                *nodes(make_node("n1")),
            ),
            id="a-node-outside-of-the-search-goes-and-comes-back",
        ),
        pytest.param(
            NAMED,
            (*nodes(make_node("n1"), make_node("n0", unschedulable=True), make_node("n0")), Step("decide")),
            id="the-only-node-opens",
        ),
        pytest.param(
            NAMED, (*nodes(make_node("n1")), *nodes(make_node("n0"))), id="the-only-node-comes-after-the-question"
        ),
    ],
)
def test_kept_equals_new(pod: Pod, steps: Sequence[Step]) -> None:
    check_kept(default_plugins, History(tuple(steps), (pod,)), WEIGHTS)


def test_histories_notice_a_plugin_that_keeps_too_long() -> None:
    """The harness itself: a plugin that calls its verdicts per node while they count pods everywhere is found out."""

    class Stale(Plugin):
        name = "Stale"
        scope = default_plugins(ClusterState())[0].scope

        def __init__(self, state: ClusterState) -> None:
            self._state = state

        def score(self, cycle: object, pod: object, node: object) -> int:
            return len(list(self._state.pods()))

    history = History((*nodes(make_node("n0"), make_node("n1")), bound("one", "n0")), (make_pod("judged"),))
    with pytest.raises(AssertionError, match="after step 2: set-pod"):
        check_kept(lambda state: [Stale(state)], history)
