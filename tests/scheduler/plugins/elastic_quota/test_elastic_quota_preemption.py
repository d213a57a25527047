"""ElasticQuota: whom a pod of a quota may push out, and what is said when that does not help."""

from __future__ import annotations

from typing import Any

import pytest

from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.decision import Unschedulable
from tests.scheduler.builders import make_pod
from tests.scheduler.plugins.elastic_quota.quota_cluster import LABEL, QuotaCluster, make_quota, of_quota
from tests.scheduler.preemption.cluster_fixture import budget, running


def on(name: str, node: str, quota: str = "", *, fixed: bool = False, **words: Any) -> Pod:
    labels = {f"{LABEL}name": quota} if quota else {}
    if fixed:
        labels[f"{LABEL}preemptible"] = "false"
    return running(name, node, labels=labels | words.pop("labels", {}), **words)


def planned(scene: QuotaCluster, pod: Pod) -> tuple[str, str, list[str]] | None:
    told = scene.decide(pod)
    assert isinstance(told, Unschedulable), told
    if told.preempt is None:
        return None
    return told.preempt.plugin, told.preempt.node, [victim.name for victim in told.preempt.victims]


def full(quota_max: str = "8", **args: Any) -> QuotaCluster:
    """A node of 8 with 4 of q1 and 4 of q2 on it."""
    scene = QuotaCluster({"a": "8"}, **args)
    scene.quotas(make_quota("q1", {"cpu": "4"}, {"cpu": quota_max}), make_quota("q2", {"cpu": "4"}, {"cpu": "8"}))
    scene.seen(on("low1", "a", "q1", cpu="4", priority=1))
    scene.seen(on("low2", "a", "q2", cpu="4", priority=0))
    return scene


def test_on_a_full_node_the_own_quotas_pod_goes_and_no_other_quotas() -> None:
    assert planned(full(), of_quota("high", "q1", cpu="4", priority=10)) == ("ElasticQuota", "a", ["low1"])


def test_a_full_quota_makes_room_within_itself_where_nodes_have_plenty() -> None:
    scene = QuotaCluster({"a": "32"})
    scene.quotas(make_quota("q1", {"cpu": "4"}, {"cpu": "4"}))
    scene.seen(on("older", "a", "q1", cpu="2", priority=1, started=0))
    scene.seen(on("newer", "a", "q1", cpu="2", priority=1, started=5))
    scene.seen(on("stranger", "a", cpu="2", priority=0))
    # The more important stays though the node would have room for both.
    assert planned(scene, of_quota("high", "q1", cpu="2", priority=10)) == ("ElasticQuota", "a", ["newer"])


@pytest.mark.parametrize(
    ("victim", "args"),
    [
        pytest.param({"quota": "q", "fixed": True, "priority": 1}, {}, id="one-that-can-never-be-sent-away"),
        pytest.param({"quota": "q", "priority": 10}, {}, id="one-of-equal-priority"),
        pytest.param({"quota": "q", "priority": 11}, {}, id="one-of-higher-priority"),
        pytest.param({"quota": "other", "priority": 1}, {}, id="one-of-another-quota"),
        pytest.param({"quota": "no-such", "priority": 1}, {}, id="one-of-a-quota-nobody-knows"),
        pytest.param({"quota": "", "priority": 1}, {}, id="one-of-the-default-group"),
    ],
)
def test_nobody_else_is_pushed_out(victim: dict[str, Any], args: dict[str, Any]) -> None:
    scene = QuotaCluster({"a": "4"}, **args)
    scene.quotas(make_quota("q", {"cpu": "4"}, {"cpu": "4"}), make_quota("other", {"cpu": "4"}, {"cpu": "4"}))
    scene.seen(on("stays", "a", cpu="4", **victim))
    told = scene.decide(of_quota("high", "q", cpu="1", priority=10))
    assert isinstance(told, Unschedulable)
    assert told.preempt is None or told.preempt.plugin != "ElasticQuota"
    assert "No victims found on node a for preemptor pod high" in told.post_filter or told.preempt is not None


def test_the_default_group_may_be_opened_to_it() -> None:
    scene = QuotaCluster({"a": "4"}, disable_default_quota_preemption=False)
    scene.seen(on("low", "a", cpu="4", priority=1))
    assert planned(scene, make_pod("high", cpu="4", priority=10)) == ("ElasticQuota", "a", ["low"])


def test_nobody_is_evicted_when_the_quota_would_still_have_no_room() -> None:
    """R21: victims leave only as part of a placement that works out."""
    scene = QuotaCluster({"a": "8", "b": "8"})
    scene.quotas(make_quota("q", {"cpu": "4"}, {"cpu": "4"}))
    scene.seen(on("small", "a", "q", cpu="1", priority=1))
    scene.seen(on("important", "b", "q", cpu="3", priority=50))
    told = scene.decide(of_quota("high", "q", cpu="2", priority=10))
    assert isinstance(told, Unschedulable)
    assert told.preempt is None
    assert "used: cpu:3, pod's request: cpu:2" in told.post_filter


def test_nobodys_place_is_taken_while_the_quota_has_no_room() -> None:
    """The node is full too, and pods of lower priority stand there: their going would not help."""
    scene = QuotaCluster({"a": "4"})
    scene.quotas(make_quota("q", {"cpu": "1"}, {"cpu": "1"}))
    scene.seen(on("mine", "a", "q", cpu="1", priority=50))
    scene.seen(on("stranger", "a", cpu="3", priority=0))
    told = scene.decide(of_quota("high", "q", cpu="1", priority=10))
    assert isinstance(told, Unschedulable)
    assert told.preempt is None
    assert told.post_filter.endswith("0/1 nodes are available: 1 No preemption victims found for incoming pod.")


def test_the_words_name_the_node_and_the_pod() -> None:
    scene = QuotaCluster({"a": "32"})
    scene.quotas(make_quota("q", {"cpu": "2"}, {"cpu": "2"}))
    scene.place(of_quota("p-0", "q", cpu="2"))
    assert scene.why(of_quota("p-1", "q", cpu="2")) == (
        "0/1 nodes are available: Insufficient quotas, quotaName: q, runtime: cpu:2, used: cpu:2, pod's request: cpu:2,"
        " exceedDimensions: [cpu]. preemption: 0/1 nodes are available: 1 No victims found on node a for preemptor pod"
        " p-1., preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )


def test_the_words_stay_short_on_many_nodes() -> None:
    scene = QuotaCluster({f"n{i}": "4" for i in range(40)})
    scene.quotas(make_quota("q", {"cpu": "2"}, {"cpu": "2"}))
    scene.place(of_quota("p-0", "q", cpu="2"))
    words = scene.why(of_quota("p-1", "q", cpu="2"))
    assert "0/40 nodes are available: 40 No victims found for preemptor pod p-1." in words


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        pytest.param({"preemptionPolicy": "Never"}, "not eligible due to preemptionPolicy=Never.", id="never"),
        pytest.param(
            {"nominated": "a"}, "not eligible due to a terminating pod on the nominated node.", id="room-is-being-made"
        ),
    ],
)
def test_who_may_not_preempt_is_told_so(pod: dict[str, Any], said: str) -> None:
    scene = QuotaCluster({"a": "4"})
    scene.quotas(make_quota("q", {"cpu": "4"}, {"cpu": "4"}))
    scene.seen(on("leaving", "a", "q", cpu="4", priority=1, preempted=True))
    told = scene.decide(of_quota("high", "q", cpu="4", priority=10, **pod))
    assert isinstance(told, Unschedulable)
    assert told.post_filter.startswith(f"preemption: {said}")
    assert told.preempt is None


def test_budgets_are_kept_where_there_is_a_choice() -> None:
    scene = QuotaCluster({"a": "4", "b": "4"})
    scene.quotas(make_quota("q", {"cpu": "8"}, {"cpu": "8"}))
    scene.handle.held["poddisruptionbudgets"].put(budget("guards", {"app": "guarded"}, 0))
    scene.seen(on("guarded", "a", "q", cpu="4", priority=1, labels={"app": "guarded"}))
    scene.seen(on("free", "b", "q", cpu="4", priority=2))
    assert planned(scene, of_quota("high", "q", cpu="4", priority=10)) == ("ElasticQuota", "b", ["free"])


def test_only_nodes_with_pods_of_the_quota_are_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = QuotaCluster({f"n{i}": "4" for i in range(20)})
    scene.quotas(make_quota("q", {"cpu": "4"}, {"cpu": "4"}))
    for i in range(20):
        scene.seen(on(f"plain-{i}", f"n{i}", cpu="1", priority=0))
    scene.seen(on("mine", "n7", "q", cpu="3", priority=1))
    told = scene.decide(of_quota("high", "q", cpu="2", priority=10))
    assert isinstance(told, Unschedulable)
    assert told.preempt is not None
    assert told.preempt.search is not None
    assert (told.preempt.node, told.preempt.search.nodes) == ("n7", 1)


def test_a_what_if_leaves_no_trace() -> None:
    scene = full()
    scene.decide(of_quota("high", "q1", cpu="4", priority=10))
    scene.agrees_with_a_new_ledger()
