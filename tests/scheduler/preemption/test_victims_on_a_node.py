"""Which pods must go from one node: the fewest and least important, budgets respected where that is possible."""

from __future__ import annotations

from typing import Any

import pytest

from koord.scheduler.cache.pod_model import Pod
from tests.scheduler.builders import make_node, make_pod, make_state
from tests.scheduler.preemption.cluster_fixture import PreemptionCluster, budget, running

WEB = {"app": "web"}
HOST = "kubernetes.io/hostname"


def anti(**labels: str) -> Any:
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": labels}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def victims(scene: PreemptionCluster, pod: Pod) -> list[str]:
    return scene.victims(pod)[1]


@pytest.mark.parametrize(
    ("pods", "cpu", "gone"),
    [
        pytest.param([("a", "4", 0, 0), ("b", "4", 1, 0)], "4", ["a"], id="the-lower-priority-goes"),
        pytest.param([("a", "4", 0, 5), ("b", "4", 0, 9)], "4", ["b"], id="the-later-started-goes"),
        pytest.param([("a", "4", 0, 5), ("b", "4", 0, None)], "4", ["b"], id="one-that-has-not-started-goes"),
        pytest.param([("a", "4", 0, 0), ("b", "4", 10, 0)], "4", ["a"], id="never-one-of-equal-priority"),
        pytest.param(
            [("a", "1", 3, 0), ("b", "6", 2, 0), ("c", "1", 1, 0)], "2", ["b"], id="small-ones-are-spared-in-passing"
        ),
        pytest.param([("a", "2", 2, 0), ("b", "3", 1, 0), ("c", "3", 1, 1)], "6", ["b", "c"], id="in-order"),
        pytest.param([("a", "4", 5, 0), ("b", "4", 5, 1)], "8", ["a", "b"], id="all-of-them"),
    ],
)
def test_sparing(pods: list[tuple[str, str, int, int | None]], cpu: str, gone: list[str]) -> None:
    placed = [running(name, "n0", cpu=c, priority=p, started=at) for name, c, p, at in pods]
    scene = PreemptionCluster(make_state([make_node("n0", cpu="8")], placed))
    assert victims(scene, make_pod("new", cpu=cpu, priority=10)) == gone


@pytest.mark.parametrize(
    ("allowed", "gone", "violations"),
    [
        pytest.param(0, ["plain"], 0, id="the-protected-is-spared-though-less-important"),
        pytest.param(1, ["web"], 0, id="an-allowed-disruption-is-none"),
    ],
)
def test_budgets_come_before_importance(allowed: int, gone: list[str], violations: int) -> None:
    placed = [
        running("web", "n0", cpu="4", priority=0, labels=WEB),
        running("plain", "n0", cpu="4", priority=5),
    ]
    scene = PreemptionCluster(make_state([make_node("n0", cpu="8")], placed), [budget("b", WEB, allowed)])
    preempt = scene.unschedulable(make_pod("new", cpu="4", priority=10)).preempt
    assert preempt is not None
    assert [victim.name for victim in preempt.victims] == gone
    assert preempt.violations == violations


def test_a_budget_is_broken_when_nothing_else_helps() -> None:
    placed = [running(f"w{i}", "n0", cpu="4", priority=i, labels=WEB) for i in range(2)]
    scene = PreemptionCluster(make_state([make_node("n0", cpu="8")], placed), [budget("b", WEB, 1)])
    preempt = scene.unschedulable(make_pod("new", cpu="8", priority=10)).preempt
    assert preempt is not None
    assert [victim.name for victim in preempt.victims] == ["w1", "w0"]
    assert preempt.violations == 1


def test_budgets_are_read_again_when_they_change() -> None:
    placed = [running("web", "n0", cpu="4", labels=WEB, priority=0), running("plain", "n0", cpu="4", priority=5)]
    scene = PreemptionCluster(make_state([make_node("n0", cpu="8")], placed), [budget("b", WEB, 1)])
    pod = make_pod("new", cpu="4", priority=10)
    assert victims(scene, pod) == ["web"]
    scene.handle.put(budget("b", WEB, 0))
    assert victims(scene, pod) == ["plain"]


def test_victims_are_found_for_what_is_not_a_sum() -> None:
    placed = [
        running("port", "n0", priority=5, ports=[("TCP", "", 80)]),
        running("near", "n0", priority=5, labels=WEB),
        running("other", "n0", priority=0),
    ]
    scene = PreemptionCluster(make_state([make_node("n0", labels={HOST: "n0"})], placed))
    assert victims(scene, make_pod("a", priority=9, ports=[("TCP", "", 80)])) == ["port"]
    assert victims(scene, make_pod("b", priority=9, affinity=anti(app="web"))) == ["near"]


def test_a_pod_that_others_will_not_have_near_pushes_them_out() -> None:
    """The refusal is theirs: their anti-affinity must be counted down as they go."""
    placed = [running("shy", "n0", priority=1, affinity=anti(app="web")), running("calm", "n0", priority=0)]
    scene = PreemptionCluster(make_state([make_node("n0", labels={HOST: "n0"})], placed))
    assert victims(scene, make_pod("new", priority=9, labels=WEB)) == ["shy"]


def test_a_what_if_leaves_the_original_as_it_was() -> None:
    """The victim's anti-affinity still holds after victims were looked for, when every node is looked at anew."""
    nodes = [make_node("n0", labels={HOST: "n0"}), make_node("n1", labels={HOST: "n1"})]
    placed = [running(f"shy{i}", f"n{i}", priority=1, affinity=anti(app="web")) for i in range(2)]
    scene = PreemptionCluster(make_state(nodes, placed))
    pod = make_pod("new", priority=9, labels=WEB)
    for _ in range(2):
        told = scene.unschedulable(pod)
        assert told.message() == (
            "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules."
        )
        assert told.preempt is not None
        for node in nodes:
            scene.state.set_node(node)


def test_company_that_is_only_promised_is_none() -> None:
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": WEB}}
    fond = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    scene = PreemptionCluster(
        make_state([make_node("n0", cpu="4", labels={HOST: "n0"})], [running("a", "n0", cpu="4")])
    )
    scene.nominate(make_pod("soon", labels=WEB, priority=10), "n0")
    told = scene.unschedulable(make_pod("new", cpu="2", priority=9, affinity=fond))
    assert told.preempt is None
    assert told.post_filter == "preemption: 0/1 nodes are available: 1 node(s) didn't match pod affinity rules."


def test_who_speaks_first_is_told() -> None:
    """Ports come before sums: a port that stays taken is the reason, though cpu would be short as well."""
    placed = [
        running("kept", "n0", cpu="3", priority=20, ports=[("TCP", "", 80)]),
        running("low", "n0", cpu="1", priority=0),
    ]
    scene = PreemptionCluster(make_state([make_node("n0", cpu="4")], placed))
    told = scene.unschedulable(make_pod("new", cpu="2", priority=9, ports=[("TCP", "", 80)]))
    assert told.post_filter == (
        "preemption: 0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
    )


def test_spread_is_met_by_taking_from_the_fuller_node() -> None:
    """None of its like is in zone b, so none may stay beside it in zone a."""
    zones = [make_node("n0", labels={"zone": "a"}), make_node("n1", labels={"zone": "b"}, cpu="0")]
    placed = [running(f"w{i}", "n0", priority=i, labels=WEB) for i in range(2)]
    spread = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": WEB},
    }
    scene = PreemptionCluster(make_state(zones, placed))
    pod = make_pod("new", cpu="1", priority=9, labels=WEB, topologySpreadConstraints=[spread])
    assert scene.victims(pod) == ("n0", ["w1", "w0"])


def test_one_that_is_leaving_is_no_relief_of_a_spread() -> None:
    """It does not count while it leaves, so w1 alone is one too many: taking only w0 away would help nobody."""
    zones = [make_node("n0", labels={"zone": "a"}), make_node("n1", labels={"zone": "b"}, cpu="0")]
    placed = [
        running("w0", "n0", cpu="8", priority=0, labels=WEB, leaving=True),
        running("w1", "n0", priority=1, labels=WEB),
    ]
    spread = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": WEB},
    }
    scene = PreemptionCluster(make_state(zones, placed))
    pod = make_pod("new", cpu="1", priority=9, labels=WEB, topologySpreadConstraints=[spread])
    assert scene.victims(pod) == ("n0", ["w1", "w0"])


def test_those_on_their_way_out_are_victims_too() -> None:
    placed = [running("a", "n0", cpu="8", priority=0, leaving=True)]
    scene = PreemptionCluster(make_state([make_node("n0", cpu="8")], placed))
    assert victims(scene, make_pod("new", cpu="8", priority=9)) == ["a"]


def test_what_may_not_be_evicted_is_not() -> None:
    placed = [running("a", "n0", cpu="4", priority=0, labels={"keep": "me"}), running("b", "n0", cpu="4", priority=5)]
    scene = PreemptionCluster(
        make_state([make_node("n0", cpu="8")], placed), may_evict=lambda pod: "keep" not in pod.labels
    )
    assert victims(scene, make_pod("new", cpu="4", priority=9)) == ["b"]
    refused = scene.unschedulable(make_pod("big", cpu="8", priority=9))
    assert refused.post_filter == "preemption: 0/1 nodes are available: 1 Insufficient cpu."
