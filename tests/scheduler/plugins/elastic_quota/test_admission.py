"""Pods are admitted or refused by their quota, with the right text and numbers."""

from __future__ import annotations

import pytest

from koord.api.koordinator.protocol import DEFAULT_QUOTA
from koord.scheduler.plugins.elastic_quota.admission import (
    QuotaPodAssumed,
    QuotaPodForgotten,
    QuotaPodRefused,
    QuotaPodRemoved,
    QuotaPodUpdated,
    QuotaRefusal,
    QuotaUpdated,
)
from koord.values.resources import Amounts
from tests.scheduler.plugins.elastic_quota.quota_builders import pod, quota, quota_manager, two

Q = quota
GI = 2**30


def text(refusal: QuotaRefusal | None) -> str:
    return "" if refusal is None else refusal.message


def amounts(cpu: int, gi: int) -> Amounts:
    return {"cpu": cpu * 1000, "memory": gi * GI}


def test_borrowing_ends_at_max() -> None:
    quotas = [
        Q("root", amounts(20, 80), amounts(20, 80), is_parent=True),
        Q("q1", amounts(10, 40), amounts(16, 80), parent="root"),
        Q("q2", amounts(10, 40), amounts(20, 80), parent="root"),
    ]
    extra = pod("extra", "q1", amounts(4, 4))
    running = [pod(f"p{i}", "q1", amounts(4, 4), has_node=True) for i in range(4)]
    made = quota_manager(amounts(20, 80), quotas, [*running, extra])
    refusal = made.check_pod(extra)
    assert text(refusal) == (
        "Insufficient quotas, quotaName: q1, runtime: cpu:16,memory:20Gi, used: cpu:16,memory:16Gi, "
        "pod's request: cpu:4,memory:4Gi, exceedDimensions: [cpu]"
    )
    assert refusal is not None
    assert (refusal.limit["cpu"], refusal.used["cpu"], refusal.requested["cpu"]) == (16_000, 16_000, 4000)


def test_a_lender_gets_its_min_back() -> None:
    quotas = [
        Q("root", amounts(20, 80), amounts(20, 80), is_parent=True),
        Q("q1", amounts(8, 40), amounts(20, 80), parent="root"),
        Q("q2", amounts(12, 40), amounts(20, 80), parent="root"),
    ]
    p1x, p2x = pod("p1x", "q1", amounts(4, 4)), pod("p2x", "q2", amounts(4, 4))
    running = [pod(f"p{i}", "q1" if i < 3 else "q2", amounts(4, 4), has_node=True) for i in range(5)]
    made = quota_manager(amounts(20, 80), quotas, [*running, p2x, p1x])
    assert made.check_pod(p2x) is None  # whether a node has room is for others to say
    assert text(made.check_pod(p1x)) == (
        "Insufficient quotas, quotaName: q1, runtime: cpu:8,memory:16Gi, used: cpu:12,memory:12Gi, "
        "pod's request: cpu:4,memory:4Gi, exceedDimensions: [cpu]"
    )


def test_children_share_what_the_parent_may_have() -> None:
    quotas = [
        Q("root", amounts(4, 16), amounts(6, 16), is_parent=True),
        *(Q(name, amounts(2, 4), amounts(6, 16), parent="root") for name in ("q1", "q2")),
    ]
    last = pod("p2-1", "q2", amounts(2, 1))
    running = [pod(name, q, amounts(2, 1), has_node=True) for name, q in (("a", "q1"), ("b", "q1"), ("c", "q2"))]
    made = quota_manager(amounts(32, 64), quotas, [*running, last])
    assert text(made.check_pod(last)) == (
        "Insufficient quotas, quotaName: q2, runtime: cpu:3,memory:2Gi, used: cpu:2,memory:1Gi, "
        "pod's request: cpu:2,memory:1Gi, exceedDimensions: [cpu]"
    )


def test_nothing_used_yet_and_resources_outside_max() -> None:
    big = pod("big", "q", {"cpu": 1000, "memory": 3, "gpu": 8})
    made = quota_manager({"cpu": 1000, "memory": 2}, [Q("q", {}, {"cpu": 1000, "memory": 2})], [big])
    assert text(made.check_pod(big)) == (
        "Insufficient quotas, quotaName: q, runtime: cpu:1,memory:2, used: <empty>, "
        "pod's request: cpu:1,memory:3, exceedDimensions: [memory]"
    )


def test_who_is_over_in_one_resource_gets_no_other() -> None:
    running = pod("a", "q", {"memory": 5}, has_node=True)
    made = quota_manager({"cpu": 9000, "memory": 4}, [Q("q", {}, {"cpu": 9000, "memory": 9})], [running])
    refusal = made.check_pod(pod("b", "q", {"cpu": 1000}))
    assert refusal is not None
    assert refusal.exceeded == ("memory",)


def test_pods_that_cannot_be_moved_stay_within_min() -> None:
    running = pod("a", "q", 4, preemptible=False, has_node=True)
    made = quota_manager(100, [Q("q", 5, 50)], [running])
    assert text(made.check_pod(pod("b", "q", 2, preemptible=False))) == (
        "Insufficient non-preemptible quotas, quotaName: q, min: cpu:5, nonPreemptibleUsed: cpu:4, "
        "pod's request: cpu:2, exceedDimensions: [cpu]"
    )
    assert made.check_pod(pod("b", "q", 1, preemptible=False)) is None
    assert made.check_pod(pod("c", "q", 2)) is None


@pytest.mark.parametrize(
    ("check_parents", "said"),
    [
        pytest.param(
            True,
            "Insufficient quotas, quotaNameTopo: [mid q2], runtime: cpu:6, used: cpu:6, pod's request: cpu:1, "
            "exceedDimensions: [cpu]",
            id="by-runtime",
        ),
        pytest.param(
            False,
            "Insufficient quotas, quotaNameTopo: [top mid q2], max: cpu:6, used: cpu:6, pod's request: cpu:1, "
            "exceedDimensions: [cpu]",
            id="never-above-max",
        ),
    ],
)
def test_no_ancestor_goes_over_its_cap(check_parents: bool, said: str) -> None:
    """q1 took more than its share before q2 asked, so q2's own share no longer fits in what is above."""
    quotas = [
        Q("top", 4, 6, is_parent=True),
        Q("mid", 4, 60, is_parent=True, parent="top"),
        *(Q(name, 2, 60, parent="mid") for name in ("q1", "q2")),
    ]
    running = [pod("a", "q1", 4, has_node=True), pod("b", "q2", 2, has_node=True)]
    last = pod("last", "q2", 1)
    made = quota_manager(32, quotas, [*running, last], check_parents=check_parents)
    assert made.runtime("q2") == two(3)
    assert text(made.check_pod(last)) == said


def test_what_is_within_min_is_given_though_a_sibling_took_too_much() -> None:
    quotas = [Q("top", 6, 6, is_parent=True), *(Q(name, 3, 6, parent="top") for name in ("q1", "q2"))]
    asks = pod("asks", "q2", 3)
    made = quota_manager(32, quotas, [pod("a", "q1", 4, has_node=True), asks])
    assert made.check_pod(asks) is None
    assert (
        quota_manager(32, quotas, [pod("a", "q1", 4, has_node=True), asks], check_parents=True).check_pod(asks)
        is not None
    )


@pytest.mark.parametrize("default_group", [True, False])
def test_an_unknown_quota_is_refused_by_name(default_group: bool) -> None:
    lost = pod("lost", "no-such", 1)
    made = quota_manager(100, [Q("q", 5, 50)], [lost], has_default_group=default_group)
    refusal = made.check_pod(lost)
    assert refusal is not None
    assert (refusal.kind, refusal.message) == (
        "unknown",
        "Could not find the specified ElasticQuota, quotaName: no-such",
    )
    assert set(made.handle(QuotaUpdated(Q("no-such", 5, 50)))) == {""}
    assert made.check_pod(lost) is None


def test_pods_of_no_quota_are_free() -> None:
    assert quota_manager(1, [], has_default_group=False).check_pod(pod("any", "", 50)) is None
    assert quota_manager(1, []).check_pod(pod("any", "", 50)) is None


@pytest.mark.parametrize("runtime", [True, False])
def test_a_stated_max_of_the_default_group_holds(runtime: bool) -> None:
    made = quota_manager(100, [], [pod("a", "", 3, has_node=True)], default_max=two(4), limits_by_runtime=runtime)
    assert made.check_pod(pod("b", "", 1)) is None
    refusal = made.check_pod(pod("b", "", 2))
    assert refusal is not None
    assert refusal.quota == DEFAULT_QUOTA
    made.handle(QuotaUpdated(Q(DEFAULT_QUOTA, 0, 10)))
    assert made.check_pod(pod("b", "", 2)) is None


def test_without_runtime_quotas_max_is_the_limit() -> None:
    made = quota_manager(1, [Q("q", 0, 50)], limits_by_runtime=False)
    assert made.check_pod(pod("p", "q", 50)) is None
    assert made.check_pod(pod("p", "q", 51)) is not None


def test_a_pod_counts_before_the_watch_brings_it() -> None:
    """Otherwise a quota that nobody asked of yet is entitled to nothing and the first pod is refused for no reason."""
    first = pod("first", "q", 4)
    made = quota_manager(10, [Q("q", 2, 8)])
    assert made.check_pod(first) is None
    assert made.runtime("q") == {"cpu": 0}  # the question left no trace
    made.handle(QuotaPodUpdated(first))
    assert made.check_pod(first) is None


def test_a_grown_pod_is_judged_by_what_it_asks_now() -> None:
    made = quota_manager(10, [Q("q", 2, 8)], [pod("p", "q", 4)])
    assert made.check_pod(pod("p", "q", 8)) is None
    assert made.check_pod(pod("p", "q", 9)) is not None
    assert made.runtime("q") == two(4)
    shared = quota_manager(10, [Q("q", 2, 9), Q("r", 2, 9)], [pod("p", "q", 9), pod("r", "r", 9)])
    assert shared.runtime("r") == two(5)
    assert shared.check_pod(pod("p", "r", 1)) is None  # it would no longer ask in its former quota
    refusal = shared.check_pod(pod("p", "q", 1))
    assert refusal is None
    assert shared.runtime("r") == two(5)


def test_a_pod_that_has_its_place_is_not_counted_twice() -> None:
    p = pod("p", "q", 4)
    made = quota_manager(10, [Q("q", 2, 4)], [p])
    made.handle(QuotaPodAssumed(p.uid))
    assert made.check_pod(p) is None
    assert made.check_pod(pod("other", "q", 1)) is not None
    assert made.handle(QuotaPodForgotten(p.uid)) != ()
    assert made.check_pod(pod("other", "q", 1)) is None


def test_victims_are_imagined_away() -> None:
    victim, stranger = pod("victim", "q", 3, has_node=True), pod("stranger", "r", 3, has_node=True)
    made = quota_manager(10, [Q("q", 2, 4), Q("r", 2, 4)], [victim, stranger])
    asks = pod("asks", "q", 2)
    assert made.check_pod(asks) is not None
    assert made.check_pod(asks, without=[stranger]) is not None
    assert made.check_pod(asks, without=[victim]) is None
    assert made.check_pod(asks) is not None


def test_a_promise_becomes_a_place_and_counts_once() -> None:
    p = pod("p", "q", 4)
    made = quota_manager(10, [Q("q", 2, 8)], [p])
    made.handle(QuotaPodAssumed(p.uid))
    assert made.handle(QuotaPodUpdated(pod("p", "q", 4, has_node=True))) == ()
    account = made.trees.node("q")
    assert account is not None
    assert account.used == two(4)
    made.handle(QuotaPodForgotten(p.uid))
    assert account.used == two(4)
    assert made.handle(QuotaPodRemoved(p.uid)) != ()
    assert account.used == {}


def test_the_last_refusal_is_remembered_with_its_quota() -> None:
    made = quota_manager(10, [Q("q", 2, 4)])
    refusal = made.check_pod(pod("p", "q", 5))
    assert refusal is not None
    told = QuotaPodRefused("default/p", "q", refusal, 12.0)
    assert made.handle(told) == ()
    assert made.last_refusal("q") == told
