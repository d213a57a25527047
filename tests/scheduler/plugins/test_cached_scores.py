"""Short histories in which cached verdicts and scores could become stale."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from koord.api.kubernetes.node import Node
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.plugin import Plugin
from tests.scheduler.builders import make_node, make_pod, node_term, preferred_nodes, required_nodes
from tests.scheduler.plugin_equivalence import ClusterHistory, ClusterStep, check_cached_matches_fresh
from tests.scheduler.plugins.kube_scheduler_cases import WEIGHTS
from tests.scheduler.plugins.one_node_plugins import default_plugins

PREFERS_BLUE = make_pod(
    "judged",
    cpu="1",
    affinity=preferred_nodes((100, node_term(("blue", "Exists", []))), (50, node_term(("green", "Exists", [])))),
)
NAMED = make_pod("judged", affinity=required_nodes(node_term(fields=[("metadata.name", "In", ["n0"])])))
BLUE, GREEN = make_node("n0", cpu="4", labels={"blue": ""}), make_node("n1", labels={"green": ""})


def nodes(*given: Node) -> tuple[ClusterStep, ...]:
    return tuple(ClusterStep("set-node", node=node) for node in given)


def bound(name: str, node: str, cpu: str = "1") -> ClusterStep:
    return ClusterStep("set-pod", pod=make_pod(name, node=node, cpu=cpu))


@pytest.mark.parametrize(
    ("pod", "steps"),
    [
        pytest.param(
            PREFERS_BLUE, (*nodes(BLUE, GREEN), bound("big", "n0", "4")), id="the-best-node-fills-up-and-the-rest-rises"
        ),
        pytest.param(
            PREFERS_BLUE,
            (*nodes(BLUE, GREEN), bound("big", "n0", "4"), ClusterStep("drop-pod", name="uid-default-big")),
            id="the-best-node-is-free-again-and-the-rest-sinks",
        ),
        pytest.param(
            make_pod("judged", images=["app:v1"]),
            (
                *nodes(make_node("n0", images={"app:v1": 2**29}), make_node("n1"), make_node("n2")),
                bound("left", "n2"),
                ClusterStep("drop-node", name="n2"),
            ),
            id="a-node-goes-while-its-pods-stay-and-images-are-on-a-larger-part-of-nodes",
        ),
        pytest.param(
            NAMED,
            (
                *nodes(make_node("n0", unschedulable=True), make_node("n1")),
                bound("left", "n1"),
                ClusterStep("drop-node", name="n1"),
                *nodes(make_node("n1")),
            ),
            id="a-node-outside-of-the-search-goes-and-comes-back",
        ),
        pytest.param(
            NAMED,
            (*nodes(make_node("n1"), make_node("n0", unschedulable=True), make_node("n0")), ClusterStep("decide")),
            id="the-only-node-opens",
        ),
        pytest.param(
            NAMED, (*nodes(make_node("n1")), *nodes(make_node("n0"))), id="the-only-node-comes-after-the-question"
        ),
    ],
)
def test_kept_equals_new(pod: Pod, steps: Sequence[ClusterStep]) -> None:
    check_cached_matches_fresh(default_plugins, ClusterHistory(tuple(steps), (pod,)), WEIGHTS)


def test_histories_notice_a_plugin_that_keeps_too_long() -> None:
    """The harness itself: a plugin that calls its verdicts per node while they count pods everywhere is found out."""

    class Stale(Plugin):
        name = "Stale"
        scope = default_plugins(ClusterState())[0].scope

        def __init__(self, state: ClusterState) -> None:
            self._state = state

        def score(self, cycle: object, pod: object, node: object) -> int:
            return len(list(self._state.pods()))

    history = ClusterHistory((*nodes(make_node("n0"), make_node("n1")), bound("one", "n0")), (make_pod("judged"),))
    with pytest.raises(AssertionError, match="after step 2: set-pod"):
        check_cached_matches_fresh(lambda state: [Stale(state)], history)
