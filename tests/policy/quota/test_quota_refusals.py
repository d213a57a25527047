"""Pods are admitted or refused by their quota, with the right text and numbers."""

from __future__ import annotations

import pytest

from koord.api.protocol import DEFAULT_QUOTA
from koord.policy.quota.amount import Amounts
from koord.policy.quota.event import Assigned, Eased, QuotaSeen, Refused, Released, Requested, Unassigned
from koord.policy.quota.refusal import Refusal
from tests.policy.quota.quotas import book, pod, quota, two

Q = quota
GI = 2**30


def text(refusal: Refusal | None) -> str:
    return "" if refusal is None else refusal.text


def amounts(cpu: int, gi: int) -> Amounts:
    return {"cpu": cpu * 1000, "memory": gi * GI}


def test_borrowing_ends_at_max() -> None:
    quotas = [
        Q("root", amounts(20, 80), amounts(20, 80), is_parent=True),
        Q("q1", amounts(10, 40), amounts(16, 80), parent="root"),
        Q("q2", amounts(10, 40), amounts(20, 80), parent="root"),
    ]
    extra = pod("extra", "q1", amounts(4, 4))
    running = [pod(f"p{i}", "q1", amounts(4, 4), placed=True) for i in range(4)]
    made = book(amounts(20, 80), quotas, [*running, extra])
    refusal = made.check(extra)
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
    running = [pod(f"p{i}", "q1" if i < 3 else "q2", amounts(4, 4), placed=True) for i in range(5)]
    made = book(amounts(20, 80), quotas, [*running, p2x, p1x])
    assert made.check(p2x) is None  # whether a node has room is for others to say
    assert text(made.check(p1x)) == (
        "Insufficient quotas, quotaName: q1, runtime: cpu:8,memory:16Gi, used: cpu:12,memory:12Gi, "
        "pod's request: cpu:4,memory:4Gi, exceedDimensions: [cpu]"
    )


def test_children_share_what_the_parent_may_have() -> None:
    quotas = [
        Q("root", amounts(4, 16), amounts(6, 16), is_parent=True),
        *(Q(name, amounts(2, 4), amounts(6, 16), parent="root") for name in ("q1", "q2")),
    ]
    last = pod("p2-1", "q2", amounts(2, 1))
    running = [pod(name, q, amounts(2, 1), placed=True) for name, q in (("a", "q1"), ("b", "q1"), ("c", "q2"))]
    made = book(amounts(32, 64), quotas, [*running, last])
    assert text(made.check(last)) == (
        "Insufficient quotas, quotaName: q2, runtime: cpu:3,memory:2Gi, used: cpu:2,memory:1Gi, "
        "pod's request: cpu:2,memory:1Gi, exceedDimensions: [cpu]"
    )


def test_nothing_used_yet_and_resources_outside_max() -> None:
    big = pod("big", "q", {"cpu": 1000, "memory": 3, "gpu": 8})
    made = book({"cpu": 1000, "memory": 2}, [Q("q", {}, {"cpu": 1000, "memory": 2})], [big])
    assert text(made.check(big)) == (
        "Insufficient quotas, quotaName: q, runtime: cpu:1,memory:2, used: <empty>, "
        "pod's request: cpu:1,memory:3, exceedDimensions: [memory]"
    )


def test_who_is_over_in_one_resource_gets_no_other() -> None:
    running = pod("a", "q", {"memory": 5}, placed=True)
    made = book({"cpu": 9000, "memory": 4}, [Q("q", {}, {"cpu": 9000, "memory": 9})], [running])
    refusal = made.check(pod("b", "q", {"cpu": 1000}))
    assert refusal is not None
    assert refusal.exceeded == ("memory",)


def test_pods_that_cannot_be_moved_stay_within_min() -> None:
    running = pod("a", "q", 4, preemptible=False, placed=True)
    made = book(100, [Q("q", 5, 50)], [running])
    assert text(made.check(pod("b", "q", 2, preemptible=False))) == (
        "Insufficient non-preemptible quotas, quotaName: q, min: cpu:5, nonPreemptibleUsed: cpu:4, "
        "pod's request: cpu:2, exceedDimensions: [cpu]"
    )
    assert made.check(pod("b", "q", 1, preemptible=False)) is None
    assert made.check(pod("c", "q", 2)) is None


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
    running = [pod("a", "q1", 4, placed=True), pod("b", "q2", 2, placed=True)]
    last = pod("last", "q2", 1)
    made = book(32, quotas, [*running, last], check_parents=check_parents)
    assert made.runtime("q2") == two(3)
    assert text(made.check(last)) == said


def test_what_is_within_min_is_given_though_a_sibling_took_too_much() -> None:
    quotas = [Q("top", 6, 6, is_parent=True), *(Q(name, 3, 6, parent="top") for name in ("q1", "q2"))]
    asks = pod("asks", "q2", 3)
    made = book(32, quotas, [pod("a", "q1", 4, placed=True), asks])
    assert made.check(asks) is None
    assert book(32, quotas, [pod("a", "q1", 4, placed=True), asks], check_parents=True).check(asks) is not None


@pytest.mark.parametrize("default_group", [True, False])
def test_an_unknown_quota_is_refused_by_name(default_group: bool) -> None:
    lost = pod("lost", "no-such", 1)
    made = book(100, [Q("q", 5, 50)], [lost], default_group=default_group)
    refusal = made.check(lost)
    assert refusal is not None
    assert (refusal.kind, refusal.text) == (
        "unknown",
        "Could not find the specified ElasticQuota, quotaName: no-such",
    )
    assert made.handle(QuotaSeen(Q("no-such", 5, 50))) == (Eased(frozenset({""}), QuotaSeen(Q("no-such", 5, 50))),)
    assert made.check(lost) is None


def test_pods_of_no_quota_are_free() -> None:
    assert book(1, [], default_group=False).check(pod("any", "", 50)) is None
    assert book(1, []).check(pod("any", "", 50)) is None


@pytest.mark.parametrize("runtime", [True, False])
def test_a_stated_max_of_the_default_group_holds(runtime: bool) -> None:
    made = book(100, [], [pod("a", "", 3, placed=True)], default_max=two(4), runtime=runtime)
    assert made.check(pod("b", "", 1)) is None
    refusal = made.check(pod("b", "", 2))
    assert refusal is not None
    assert refusal.quota == DEFAULT_QUOTA
    made.handle(QuotaSeen(Q(DEFAULT_QUOTA, 0, 10)))
    assert made.check(pod("b", "", 2)) is None


def test_without_runtime_quotas_max_is_the_limit() -> None:
    made = book(1, [Q("q", 0, 50)], runtime=False)
    assert made.check(pod("p", "q", 50)) is None
    assert made.check(pod("p", "q", 51)) is not None


def test_a_pod_counts_before_the_watch_brings_it() -> None:
    """Otherwise a quota that nobody asked of yet is entitled to nothing and the first pod is refused for no reason."""
    first = pod("first", "q", 4)
    made = book(10, [Q("q", 2, 8)])
    assert made.check(first) is None
    assert made.runtime("q") == {"cpu": 0}  # the question left no trace
    made.handle(Requested(first))
    assert made.check(first) is None


def test_a_grown_pod_is_judged_by_what_it_asks_now() -> None:
    made = book(10, [Q("q", 2, 8)], [pod("p", "q", 4)])
    assert made.check(pod("p", "q", 8)) is None
    assert made.check(pod("p", "q", 9)) is not None
    assert made.runtime("q") == two(4)
    shared = book(10, [Q("q", 2, 9), Q("r", 2, 9)], [pod("p", "q", 9), pod("r", "r", 9)])
    assert shared.runtime("r") == two(5)
    assert shared.check(pod("p", "r", 1)) is None  # it would no longer ask in its former quota
    refusal = shared.check(pod("p", "q", 1))
    assert refusal is None
    assert shared.runtime("r") == two(5)


def test_a_pod_that_has_its_place_is_not_counted_twice() -> None:
    p = pod("p", "q", 4)
    made = book(10, [Q("q", 2, 4)], [p])
    made.handle(Assigned(p.uid))
    assert made.check(p) is None
    assert made.check(pod("other", "q", 1)) is not None
    assert made.handle(Unassigned(p.uid)) != ()
    assert made.check(pod("other", "q", 1)) is None


def test_victims_are_imagined_away() -> None:
    victim, stranger = pod("victim", "q", 3, placed=True), pod("stranger", "r", 3, placed=True)
    made = book(10, [Q("q", 2, 4), Q("r", 2, 4)], [victim, stranger])
    asks = pod("asks", "q", 2)
    assert made.check(asks) is not None
    assert made.check(asks, without=[stranger]) is not None
    assert made.check(asks, without=[victim]) is None
    assert made.check(asks) is not None


def test_a_promise_becomes_a_place_and_counts_once() -> None:
    p = pod("p", "q", 4)
    made = book(10, [Q("q", 2, 8)], [p])
    made.handle(Assigned(p.uid))
    assert made.handle(Requested(pod("p", "q", 4, placed=True))) == ()
    account = made.forest.account("q")
    assert account is not None
    assert account.used == two(4)
    made.handle(Unassigned(p.uid))
    assert account.used == two(4)
    assert made.handle(Released(p.uid)) != ()
    assert account.used == {}


def test_the_last_refusal_is_remembered_with_its_quota() -> None:
    made = book(10, [Q("q", 2, 4)])
    refusal = made.check(pod("p", "q", 5))
    assert refusal is not None
    told = Refused("default/p", "q", refusal, 12.0)
    assert made.handle(told) == ()
    assert made.last_refusal("q") == told
