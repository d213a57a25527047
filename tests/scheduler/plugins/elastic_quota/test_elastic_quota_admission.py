"""ElasticQuota: who may start, and in which words others are told that they may not."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.scheduler.koordinator_args import QuotaHookPlugin
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.plugins.elastic_quota.cache import ElasticQuotaCaches
from koord.scheduler.plugins.elastic_quota.plugin import ElasticQuotaPlugin
from tests.scheduler.builders import make_node, make_pod
from tests.scheduler.plugins.elastic_quota.quota_cluster import QuotaCluster, make_quota, of_quota


def both(cpu: int, memory: str) -> dict[str, str]:
    return {"cpu": str(cpu), "memory": memory}


def two(scene: QuotaCluster) -> None:
    """A parent with two children that can borrow each other's 10."""
    scene.quotas(
        make_quota("root", both(20, "80Gi"), both(20, "80Gi"), is_parent="true"),
        make_quota("q1", both(10, "40Gi"), both(16, "80Gi"), parent="root"),
        make_quota("q2", both(10, "40Gi"), both(20, "80Gi"), parent="root"),
    )


# The worked examples: nodes, quotas, who runs, who asks, and what is said. ------------------------------------------

SINGLE = (
    "Insufficient quotas, quotaName: q, runtime: cpu:3,memory:2Gi, used: cpu:2,memory:1Gi, "
    "pod's request: cpu:2,memory:1Gi, exceedDimensions: [cpu]"
)
MEMORY = (
    "Insufficient quotas, quotaName: q, runtime: cpu:2,memory:4Gi, used: cpu:1,memory:3Gi, "
    "pod's request: cpu:1,memory:3Gi, exceedDimensions: [memory]"
)
BOTH = (
    "Insufficient quotas, quotaName: q, runtime: cpu:1,memory:2Gi, used: <empty>, "
    "pod's request: cpu:2,memory:3Gi, exceedDimensions: [cpu memory]"
)


@pytest.mark.parametrize(
    ("least", "most", "runs", "asks", "said"),
    [
        pytest.param(both(2, "8Gi"), both(3, "32Gi"), [(2, "1Gi")], (2, "1Gi"), SINGLE, id="above-max-of-cpu"),
        pytest.param(both(4, "4Gi"), both(16, "4Gi"), [(1, "3Gi")], (1, "3Gi"), MEMORY, id="above-max-of-memory"),
        pytest.param(both(1, "1Gi"), both(1, "2Gi"), [], (2, "3Gi"), BOTH, id="above-max-of-both"),
        pytest.param(both(2, "8Gi"), both(4, "32Gi"), [(2, "1Gi")], (2, "1Gi"), "", id="exactly-what-is-left"),
        pytest.param({}, {"memory": "4Gi"}, [(9, "1Gi")], (9, "1Gi"), "", id="a-resource-that-max-is-silent-on"),
    ],
)
def test_a_pod_starts_within_its_quota(
    least: dict[str, str], most: dict[str, str], runs: list[tuple[int, str]], asks: tuple[int, str], said: str
) -> None:
    scene = QuotaCluster({"a": "32"})
    scene.quotas(make_quota("q", least, most))
    for number, (cpu, memory) in enumerate(runs):
        scene.place(of_quota(f"p{number}", "q", cpu=str(cpu), memory=memory))
    new = of_quota("new", "q", cpu=str(asks[0]), memory=asks[1])
    if said:
        assert scene.refusal(new) == said
    else:
        assert scene.place(new) == "a"
    scene.agrees_with_a_new_ledger()


def test_a_quota_borrows_what_its_sibling_leaves_and_no_more() -> None:
    scene = QuotaCluster({"a": "20"})
    two(scene)
    for number in range(4):
        scene.place(of_quota(f"p{number}", "q1", cpu="4", memory="4Gi"))
    assert scene.refusal(of_quota("extra", "q1", cpu="4", memory="4Gi")) == (
        "Insufficient quotas, quotaName: q1, runtime: cpu:16,memory:20Gi, used: cpu:16,memory:16Gi, "
        "pod's request: cpu:4,memory:4Gi, exceedDimensions: [cpu]"
    )


def test_what_was_lent_shrinks_the_borrower_when_the_lender_asks_for_it() -> None:
    scene = QuotaCluster({"a": "20"})
    two(scene)
    for number in range(3):
        scene.place(of_quota(f"p{number}", "q1", cpu="4", memory="4Gi"))
    for number in range(3):
        scene.seen(of_quota(f"w{number}", "q2", cpu="4", memory="4Gi"))
    assert scene.refusal(of_quota("more", "q1", cpu="4", memory="4Gi")).startswith(
        "Insufficient quotas, quotaName: q1, runtime: cpu:10,memory:16Gi, used: cpu:12,memory:12Gi"
    )
    assert scene.place(of_quota("w0", "q2", cpu="4", memory="4Gi")) == "a"


def test_no_ancestor_goes_over_its_max_by_what_is_borrowed() -> None:
    """R26: whatever the children may borrow, the parent's max holds, without any setting."""
    scene = QuotaCluster({"a": "32"})
    scene.quotas(
        make_quota("root", {"cpu": "4"}, {"cpu": "6"}, is_parent="true"),
        make_quota("q1", {"cpu": "2"}, {"cpu": "6"}, parent="root"),
        make_quota("q2", {"cpu": "2"}, {"cpu": "6"}, parent="root"),
    )
    for number in range(3):
        scene.place(of_quota(f"p{number}", "q1", cpu="2"))
    assert "Insufficient quotas" in scene.refusal(of_quota("more", "q2", cpu="3"))


def test_the_nearest_full_ancestor_is_named_when_parents_are_checked() -> None:
    scene = QuotaCluster({"a": "32"}, enable_check_parent_quota=True, enable_runtime_quota=False)
    scene.quotas(
        make_quota("top", {"cpu": "4"}, {"cpu": "5"}, is_parent="true"),
        make_quota("mid", {"cpu": "4"}, {"cpu": "8"}, parent="top", is_parent="true"),
        make_quota("leaf", {"cpu": "2"}, {"cpu": "8"}, parent="mid"),
        make_quota("other", {"cpu": "2"}, {"cpu": "8"}, parent="mid"),
    )
    scene.place(of_quota("runs", "other", cpu="4"))
    assert scene.refusal(of_quota("new", "leaf", cpu="2")) == (
        "Insufficient quotas, quotaNameTopo: [top mid leaf], runtime: cpu:5, used: cpu:4, "
        "pod's request: cpu:2, exceedDimensions: [cpu]"
    )


def test_a_pod_that_can_never_be_sent_away_starts_within_min() -> None:
    scene = QuotaCluster({"a": "32"})
    scene.quotas(make_quota("q", {"cpu": "5"}, {"cpu": "20"}))
    scene.place(of_quota("fixed", "q", fixed=True, cpu="4"))
    assert scene.refusal(of_quota("new", "q", fixed=True, cpu="2")) == (
        "Insufficient non-preemptible quotas, quotaName: q, min: cpu:5, nonPreemptibleUsed: cpu:4, "
        "pod's request: cpu:2, exceedDimensions: [cpu]"
    )
    assert scene.place(of_quota("loose", "q", cpu="2")) == "a"


# Which quota --------------------------------------------------------------------------------------------------------


def test_an_unknown_quota_is_refused_and_gives_no_right_to_anybodys_place() -> None:
    """R27, and what was evicted without being owned: a name that is nobody's never means the default group."""
    scene = QuotaCluster({"a": "2"})
    scene.seen(make_pod("stranger", node="a", cpu="2", priority=1))
    told = scene.decide(of_quota("new", "no-such", cpu="1", priority=100))
    assert isinstance(told, Unschedulable)
    assert told.message().startswith(
        "0/1 nodes are available: Could not find the specified ElasticQuota, quotaName: no-such."
    )
    assert told.preempt is None


def test_a_quota_that_appears_lets_its_pods_in() -> None:
    scene = QuotaCluster({"a": "4"})
    waiting = of_quota("waiting", "late", cpu="1")
    assert "Could not find" in scene.refusal(waiting)
    scene.quotas(make_quota("late", {"cpu": "1"}, {"cpu": "1"}))
    assert scene.place(waiting) == "a"
    scene.agrees_with_a_new_ledger()


@pytest.mark.parametrize(
    "quota",
    [
        pytest.param(make_quota("team", {}, {"cpu": "1"}, namespace="team"), id="named-like-the-namespace"),
        pytest.param(make_quota("other", {}, {"cpu": "1"}, annotations={"namespaces": '["team"]'}), id="listed"),
    ],
)
def test_a_namespace_can_have_a_quota(quota: Any) -> None:
    scene = QuotaCluster({"a": "8"})
    scene.quotas(quota)
    scene.place(make_pod("p0", namespace="team", cpu="1"))
    assert f"quotaName: {quota.metadata.name}," in scene.refusal(make_pod("p1", namespace="team", cpu="1"))
    assert scene.place(make_pod("p1", namespace="elsewhere", cpu="1")) == "a"


def test_the_default_group_can_be_limited() -> None:
    scene = QuotaCluster({"a": "8"}, default_quota_group_max={"cpu": "2"})
    scene.place(make_pod("p0", cpu="2"))
    assert scene.refusal(make_pod("p1", cpu="1")).startswith(
        "Insufficient quotas, quotaName: koordinator-default-quota"
    )


def test_a_quota_that_appears_for_a_namespace_counts_the_pods_that_were_not_limited_before() -> None:
    scene = QuotaCluster({"a": "8"})
    scene.place(make_pod("p0", namespace="team", cpu="1"))
    scene.place(make_pod("p1", namespace="team", cpu="1"))
    scene.quotas(make_quota("team", {}, {"cpu": "3"}, namespace="team"))
    assert scene.place(make_pod("p2", namespace="team", cpu="1")) == "a"
    assert "used: cpu:3," in scene.refusal(make_pod("p3", namespace="team", cpu="1"))
    scene.drop_quota("team", "team")
    assert scene.place(make_pod("p3", namespace="team", cpu="1")) == "a"


def test_without_a_default_group_pods_without_a_label_are_not_limited() -> None:
    scene = QuotaCluster({"a": "8"}, gates={"disable_default_quota": True}, default_quota_group_max={"cpu": "1"})
    scene.quotas(make_quota("team", {}, {"cpu": "0"}, namespace="default"))
    assert scene.place(make_pod("p0", cpu="4")) == "a"


def test_a_pod_of_a_reservation_is_checked_and_holds_nothing() -> None:
    scene = QuotaCluster({"a": "8"})
    scene.quotas(make_quota("q", {}, {"cpu": "2"}))
    mark = {"scheduling.koordinator.sh/reserve-pod": "true"}
    assert "Insufficient quotas" in scene.refusal(of_quota("big", "q", cpu="3", annotations=mark))
    scene.place(of_quota("fits", "q", cpu="2", annotations=mark))
    assert scene.place(of_quota("real", "q", cpu="2")) == "a"
    scene.agrees_with_a_new_ledger()


def test_a_trees_total_is_its_roots_and_the_default_tree_has_the_rest() -> None:
    scene = QuotaCluster({"a": "30"}, gates={"multi_quota_tree": True})
    total = {"total-resource": '{"cpu":"20","memory":"200Gi"}'}
    most = {"cpu": "100", "memory": "900Gi"}
    scene.quotas(
        make_quota("tree", {"cpu": "20"}, most, annotations=total, tree_id="t", is_root="true", is_parent="true"),
        make_quota("inside", {}, most, parent="tree", tree_id="t"),
        make_quota("outside", {}, most),
    )
    assert "runtime: cpu:20," in scene.refusal(of_quota("in", "inside", cpu="21", memory="1Gi"))
    assert "runtime: cpu:10," in scene.refusal(of_quota("out", "outside", cpu="11", memory="1Gi"))
    assert scene.place(of_quota("out-fits", "outside", cpu="10", memory="1Gi")) == "a"


# Nodes and the group apart --------------------------------------------------------------------------------------


def test_nodes_are_what_is_shared_out() -> None:
    scene = QuotaCluster({"a": "4", "b": "4"})
    scene.quotas(make_quota("q", {}, {"cpu": "100"}))
    assert "runtime: cpu:8," in scene.refusal(of_quota("big", "q", cpu="9"))
    scene.state.set_node(make_node("b", cpu="6"))
    assert "2 Insufficient cpu" in scene.why(of_quota("big", "q", cpu="9"))  # within 10: now the nodes are too small
    scene.state.drop_node("b")
    assert "runtime: cpu:4," in scene.refusal(of_quota("big", "q", cpu="9"))
    scene.agrees_with_a_new_ledger()


def test_what_pods_without_a_quota_use_is_not_shared_out() -> None:
    scene = QuotaCluster({"a": "8"})
    scene.quotas(make_quota("q", {}, {"cpu": "100"}))
    scene.place(make_pod("plain", cpu="5"))
    assert "runtime: cpu:3," in scene.refusal(of_quota("new", "q", cpu="4"))


# What is kept ---------------------------------------------------------------------------------------------------


def test_equal_pods_share_a_class_and_are_each_asked_about() -> None:
    scene = QuotaCluster({"a": "32"})
    scene.quotas(make_quota("q", {}, {"cpu": "3"}))
    said = [type(scene.decide(of_quota(f"p{n}", "q", cpu="1"))).__name__ for n in range(3)]
    assert said == ["ChosenNode"] * 3  # decided, not promised
    placed = [scene.decide(of_quota(f"r{n}", "q", cpu="1")) for n in range(1)]
    assert all(isinstance(one, ChosenNode) for one in placed)
    for n in range(3):
        scene.place(of_quota(f"s{n}", "q", cpu="1"))
    assert "exceedDimensions: [cpu]" in scene.refusal(of_quota("t", "q", cpu="1"))
    assert len(scene.engine._classes) == 1


def test_pods_of_two_quotas_share_what_nodes_say() -> None:
    scene = QuotaCluster({"a": "32"})
    scene.quotas(make_quota("q1", {}, {"cpu": "8"}), make_quota("q2", {}, {"cpu": "0"}))
    scene.place(of_quota("one", "q1", cpu="1"))
    assert "quotaName: q2" in scene.refusal(of_quota("two", "q2", cpu="1"))
    scene.place(make_pod("three", cpu="1"))
    assert len(scene.engine._classes) == 1


def test_profiles_with_the_same_rules_share_a_ledger() -> None:
    scene = QuotaCluster({"a": "1"})
    again = ElasticQuotaPlugin(scene.quota.args, scene.handle)
    other = ElasticQuotaPlugin(scene.quota.args, scene.handle, multi_quota_tree=True)
    assert again.quota_cache is scene.ledger
    assert other.quota_cache is not scene.ledger
    assert len(scene.state.derived(ElasticQuotaCaches)._known) == 2


def test_hooks_of_others_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="failed to initialize index-0 hook plugin: factory mine not found"):
        QuotaCluster({}, hook_plugins=(QuotaHookPlugin(key="k", factory_key="mine"),))


def test_an_unreadable_quota_counts_as_absent_and_is_noted() -> None:
    scene = QuotaCluster({"a": "4"})
    scene.quotas(make_quota("q", {}, {"cpu": "many"}))
    assert "Could not find" in scene.refusal(of_quota("p", "q", cpu="1"))
    assert list(scene.ledger.invalid_quotas) == [("quotas", "q")]
    scene.quotas(make_quota("q", {}, {"cpu": "4"}))
    assert not scene.ledger.invalid_quotas
    assert scene.place(of_quota("p", "q", cpu="1")) == "a"
