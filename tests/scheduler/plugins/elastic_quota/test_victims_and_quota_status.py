"""Over-use selects pods to revoke, preemption stays within a quota, and the published status is right."""

from __future__ import annotations

import json

import pytest

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import DEFAULT_QUOTA
from koord.api.koordinator.sigs_scheduling import ElasticQuota, ElasticQuotaSpec, ElasticQuotaStatus
from koord.api.kubernetes.meta import ObjectMeta
from koord.scheduler.plugins.elastic_quota.admission import QuotaPodRemoved
from koord.scheduler.plugins.elastic_quota.definition import QuotaDefinition, QuotaPod
from koord.scheduler.plugins.elastic_quota.plugin import (
    OveruseState,
    may_preempt,
    observe_overuse,
    overused_quotas,
    select_revoked_pods,
)
from koord.scheduler.plugins.elastic_quota.report import decide_status_patch
from tests.scheduler.plugins.elastic_quota.quota_builders import pod, quota, quota_manager, two

Q = quota
PODS = [pod("1", "q", 20, priority=10), pod("2", "q", 10, priority=9), pod("3", "q", 20, priority=8)]
PODS.append(pod("4", "q", 40, priority=7))


@pytest.mark.parametrize(
    ("pods", "entitled", "expected"),
    [
        pytest.param(PODS, 50, ["4"], id="the-least-important"),
        pytest.param(
            [pod("x", "q", 5, priority=1), pod("y", "q", 40, priority=2)], 10, ["y"], id="what-fits-after-all-stays"
        ),
        pytest.param(PODS, 90, [], id="within-the-share"),
        pytest.param(PODS, 20, ["2", "3", "4"], id="the-most-important-stays"),
        pytest.param([*PODS[:3], pod("4", "q", 40, preemptible=False)], 60, ["3", "2"], id="one-cannot-be-moved"),
        pytest.param(
            [pod("a", "q", 5, started_s=1.0), pod("b", "q", 5, started_s=2.0)], 5, ["b"], id="the-younger-goes"
        ),
    ],
)
def test_who_leaves(pods: list[QuotaPod], entitled: int, expected: list[str]) -> None:
    used = two(sum(one.requests["cpu"] for one in pods) // 1000)
    assert sorted(one.name for one in select_revoked_pods(pods, used, two(entitled))) == sorted(expected)


def test_all_leave_when_nothing_is_allowed() -> None:
    assert len(select_revoked_pods(PODS, two(90), {"cpu": -1000})) == 4


def test_every_resource_counts_to_the_end() -> None:
    light = pod("light", "q", {"memory": 5}, priority=1)
    heavy = pod("heavy", "q", {"cpu": 5}, priority=2)
    assert select_revoked_pods([light, heavy], {"cpu": 5, "memory": 5}, {"cpu": 4, "memory": 9}) == [heavy]


def test_overuse_has_to_last() -> None:
    over = [pod("p", "q", 8, has_node=True), pod("r", "r", 5)]
    made = quota_manager(10, [Q("q", 5, 10), Q("r", 5, 10)], over)
    assert overused_quotas(made) == {"q": two(3)}
    state = OveruseState({})
    for now, due in ((0.0, ()), (120.0, ()), (121.0, ("q",)), (130.0, ())):
        state = observe_overuse(state, overused_quotas(made), now, 120.0)
        assert state.due == due
    made.handle(QuotaPodRemoved("uid-r"))
    assert observe_overuse(state, overused_quotas(made), 500.0, 120.0) == OveruseState({})


@pytest.mark.parametrize(
    ("victim", "allowed"),
    [
        pytest.param(pod("v", "q", priority=1), True, id="lower-in-the-same-quota"),
        pytest.param(pod("v", "q", priority=5), False, id="equal"),
        pytest.param(pod("v", "q", priority=1, preemptible=False), False, id="not-preemptible"),
        pytest.param(pod("v", "r", priority=1), False, id="another-quota"),
        pytest.param(pod("v", "", priority=1), False, id="none-named"),
        pytest.param(pod("v", "no-such", priority=1), False, id="unknown-quota"),
    ],
)
def test_who_may_preempt_whom(victim: QuotaPod, allowed: bool) -> None:
    made = quota_manager(10, [Q("q"), Q("r")])
    assert may_preempt(made, pod("p", "q", priority=5), victim) is allowed


@pytest.mark.parametrize(
    ("named", "spare", "allowed"),
    [
        pytest.param("", True, False, id="the-default-group-is-spared"),
        pytest.param("", False, True, id="unless-told-otherwise"),
        pytest.param("no-such", False, False, id="a-wrong-name-gives-no-right"),
    ],
)
def test_preemption_in_the_default_group(named: str, spare: bool, allowed: bool) -> None:
    made = quota_manager(10, [])
    victim, preemptor = pod("v", "", priority=1), pod("p", named, priority=5)
    assert may_preempt(made, preemptor, victim, spare_default=spare) is allowed


def live(
    name: str = "q", annotations: dict[str, str] | None = None, used: dict[str, str | int | float] | None = None
) -> ElasticQuota:
    return ElasticQuota(
        metadata=ObjectMeta(name=name, namespace="quotas", annotations=annotations or {}),
        spec=ElasticQuotaSpec(min={"cpu": "2", "memory": "8Gi"}, max={"cpu": "3", "memory": "32Gi"}),
        status=ElasticQuotaStatus(used=used or {}),
    )


KEY = "quota.scheduling.koordinator.sh/"


def test_what_is_written() -> None:
    gi = 2**30
    pods = [pod(f"p{i}", "q", {"cpu": 2000, "memory": gi}, has_node=not i) for i in range(2)]
    made = quota_manager({"cpu": 32_000, "memory": 64 * gi}, [QuotaDefinition.from_elastic_quota(live())], pods)
    patch = decide_status_patch(live(), made)
    assert isinstance(patch, dict)
    shown = {key.removeprefix(KEY): json.loads(text) for key, text in patch["metadata"]["annotations"].items()}
    asked = {"cpu": "4", "memory": "2Gi"}
    assert shown == {"runtime": {"cpu": "3", "memory": "2Gi"}, "request": asked, "child-request": asked}
    assert patch["status"] == {"used": {"cpu": "2", "memory": "1Gi"}}
    written = live(annotations=patch["metadata"]["annotations"], used=patch["status"]["used"])
    assert decide_status_patch(written, made) is None
    for one in pods:
        made.handle(QuotaPodRemoved(one.uid))
    patch = decide_status_patch(written, made)
    assert isinstance(patch, dict)
    assert patch["status"] == {"used": {"cpu": "0", "memory": "0"}}
    assert decide_status_patch(live(), made) is None  # zero is as good as nothing


def test_what_is_left_alone() -> None:
    made = quota_manager(10, [QuotaDefinition.from_elastic_quota(live())])
    assert decide_status_patch(live("gone"), made) is None
    assert isinstance(decide_status_patch(live(annotations={KEY + "runtime": "{"}), made), MalformedAnnotation)
    group = quota_manager(10, [], [pod("p", "", 3, has_node=True)])
    patch = decide_status_patch(live(DEFAULT_QUOTA), group)
    assert isinstance(patch, dict)
    assert KEY + "runtime" not in patch["metadata"]["annotations"]


def test_a_quota_is_read_from_its_object() -> None:
    labels = {KEY + "parent": "up", KEY + "allow-lent-resource": "false", KEY + "tree-id": "t", KEY + "is-root": "true"}
    notes = {
        KEY + "shared-weight": '{"cpu":"7"}',
        KEY + "namespaces": '["a","b"]',
        KEY + "total-resource": '{"cpu":"90"}',
    }
    found = QuotaDefinition.from_elastic_quota(
        ElasticQuota(metadata=ObjectMeta(name="q", namespace="n", labels=labels, annotations=notes))
    )
    assert (found.parent, found.lends, found.tree, found.is_tree_root) == ("up", False, "t", True)
    assert (found.weight, found.namespaces, found.total) == ({"cpu": 7000}, ("a", "b"), {"cpu": 90_000})
    assert QuotaDefinition.from_elastic_quota(live()).weight == {"cpu": 3000, "memory": 32 * 2**30}
