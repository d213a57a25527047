"""Runtime quotas over several levels equal the worked examples, also after changes of the tree."""

from __future__ import annotations

import pytest

from koord.api.koordinator.protocol import DEFAULT_QUOTA, SYSTEM_QUOTA
from koord.scheduler.plugins.elastic_quota.admission import (
    ClusterTotalChanged,
    QuotaDeleted,
    QuotaPodAssumed,
    QuotaPodRemoved,
    QuotaPodUpdated,
    QuotaUpdated,
)
from koord.scheduler.plugins.elastic_quota.definition import QuotaDefinition, QuotaPod
from koord.scheduler.plugins.elastic_quota.quota_manager import GroupQuotaManager
from tests.scheduler.plugins.elastic_quota.quota_builders import cpus, pod, quota, quota_manager, two

Q = quota


def family(**below: bool) -> list[QuotaDefinition]:
    """Build a root of 60 with two children of 20; true lends."""
    return [
        Q("root", 60, is_parent=True, lends=below["root"]),
        Q("c1", 20, parent="root", lends=below["c1"]),
        Q("c2", 20, parent="root", lends=below["c2"]),
    ]


@pytest.mark.parametrize(
    ("lends", "asked", "expected"),
    [
        pytest.param((False, False, False), 0, [60, 20, 20], id="nobody-lends-nobody-asks"),
        pytest.param((False, False, False), 40, [60, 40, 20], id="nobody-lends"),
        pytest.param((False, False, False), 60, [80, 60, 20], id="nobody-lends-and-one-needs-more"),
        pytest.param((True, False, True), 0, [20, 20, 0], id="only-a-child-keeps-its-min"),
        pytest.param((True, False, True), 40, [40, 40, 0], id="the-keeper-asks"),
        pytest.param((True, False, True), 60, [60, 60, 0], id="the-keeper-asks-for-all"),
    ],
)
def test_lending_over_two_levels(lends: tuple[bool, bool, bool], asked: int, expected: list[float]) -> None:
    made = quota_manager(100, family(root=lends[0], c1=lends[1], c2=lends[2]), [pod("p", "c1", asked)])
    assert cpus(made, "root", "c1", "c2") == expected


SHRINKING = [Q("p", 300, is_parent=True), *(Q(c, 100, parent="p") for c in "abc")]


@pytest.mark.parametrize(
    ("total", "asking", "scale", "expected"),
    [
        pytest.param(200, "abc", True, [200, 66.667, 66.667, 66.666], id="mins-shrink"),
        pytest.param(600, "abc", True, [600, 200, 200, 200], id="back-to-plenty"),
        pytest.param(200, "abc", False, [300, 100, 100, 100], id="no-scaling-overcommits"),
        pytest.param(200, "ac", True, [200, 100, 0, 100], id="one-is-idle"),
    ],
)
def test_shrinking_mins(total: int, asking: str, scale: bool, expected: list[float]) -> None:
    made = quota_manager(total, SHRINKING, [pod(c, c, 200) for c in asking], scale_min=scale)
    assert cpus(made, "p", "a", "b", "c") == expected


def test_max_below_the_request_and_max_of_the_parent() -> None:
    sub = Q("sub", {}, {"cpu": 500, "memory": 2048})
    made = quota_manager({"cpu": 300, "memory": 4096}, [sub], [pod("p", "sub", {"cpu": 500, "memory": 4096})])
    assert made.runtime("sub") == {"cpu": 300, "memory": 2048}
    wide = Q("wide", {}, {"cpu": 900, "memory": 9000}, parent="narrow")
    narrow = Q("narrow", {}, {"cpu": 300, "memory": 1024}, is_parent=True)
    made = quota_manager(
        {"cpu": 9000, "memory": 9000}, [wide, narrow], [pod("p", "wide", {"cpu": 500, "memory": 4096})]
    )
    assert made.runtime("wide") == {"cpu": 300, "memory": 1024}


def test_requests_pass_upwards_within_max() -> None:
    small = {"cpu": 64, "memory": 128}
    quotas = [Q("a", {}, {"cpu": 900, "memory": 900}, is_parent=True), Q("a-123", {}, small, parent="a")]
    made = quota_manager({}, quotas, [pod("p", "a-123", {"cpu": 96, "memory": 130})])
    leaf, above = (made.trees.node(name) for name in ("a-123", "a"))
    assert leaf is not None
    assert above is not None
    assert (leaf.request, above.request) == ({"cpu": 96, "memory": 130}, small)
    made.handle(QuotaUpdated(Q("a-123", {}, {"cpu": 100, "memory": 200}, parent="a")))
    above = made.trees.node("a")
    assert above is not None
    assert above.request == {"cpu": 96, "memory": 130}


def test_what_runs_is_guaranteed() -> None:
    quotas = [Q("top", 20, is_parent=True), Q("q2", 10, parent="top"), Q("q3", 5, parent="top")]
    made = quota_manager(100, quotas, guarantee_usage=True)

    def seen() -> list[dict[str, int]]:
        accounts = [made.trees.node(name) for name in ("q2", "top")]
        return [{"allocated": a.allocated["cpu"], "guaranteed": a.guaranteed["cpu"]} for a in accounts if a is not None]

    for name, cpu, expected in (
        ("one", 5, [(5, 10), (15, 20)]),
        ("two", 10, [(15, 15), (20, 20)]),
        ("three", 10, [(25, 25), (30, 30)]),
    ):
        made.handle(QuotaPodUpdated(pod(name, "q2", cpu, has_node=True)))
        assert seen() == [{"allocated": a * 1000, "guaranteed": g * 1000} for a, g in expected]


def test_resources_come_and_go() -> None:
    asks = pod("p", "q", {"cpu": 1000, "gpu": 2})
    made = quota_manager(10, [Q("q", {}, {"cpu": 9000, "gpu": 8})], [asks])
    assert made.runtime("q") == {"cpu": 1000, "gpu": 0}
    made.handle(ClusterTotalChanged({"cpu": 10_000, "gpu": 4}))
    assert made.runtime("q") == {"cpu": 1000, "gpu": 2}
    made.handle(QuotaUpdated(Q("q", {}, {"cpu": 9000})))
    assert made.runtime("q") == {"cpu": 1000}


def test_trees_have_totals_of_their_own() -> None:
    plain = Q("plain", 0, 1000)

    def root(cpu: int, **other: bool) -> QuotaDefinition:
        return Q("pool", cpu, 1000, tree="t", is_tree_root=True, is_parent=True, total=two(cpu), **other)

    asks = [pod("p", "plain", 900), pod("t", "leaf", 900)]
    made = quota_manager(
        300, [plain, root(200), Q("leaf", 0, 1000, tree="t", parent="pool")], asks, multi_quota_tree=True
    )
    assert cpus(made, "plain", "pool", "leaf") == [100, 200, 200]
    made.handle(QuotaUpdated(root(250)))
    assert cpus(made, "plain", "leaf") == [50, 250]
    made.handle(QuotaUpdated(root(250, ignores_default_tree=True)))
    assert cpus(made, "plain", "leaf") == [300, 250]
    made.handle(QuotaDeleted("quotas", "leaf"))
    made.handle(QuotaDeleted("quotas", "pool"))
    assert cpus(made, "plain") == [300]


def test_groups_apart_are_taken_off_the_total_and_share_in_nothing() -> None:
    a = Q("a", {"memory": 200}, {"memory": 960})
    made = quota_manager({"memory": 1000}, [a], [pod("p", "a", {"memory": 900})])
    assert made.runtime("a") == {"memory": 900}
    stranger = pod("stranger", "", {"memory": 500})
    made.handle(QuotaPodUpdated(stranger))
    assert made.runtime("a") == {"memory": 900}  # asking alone takes nothing from anybody
    made.handle(QuotaPodAssumed(stranger.uid))
    assert made.runtime("a") == {"memory": 500}
    made.handle(QuotaPodUpdated(pod("system", SYSTEM_QUOTA, {"memory": 100}, has_node=True)))
    assert made.runtime("a") == {"memory": 400}
    made.handle(QuotaPodRemoved(stranger.uid))
    assert made.runtime("a") == {"memory": 900}


def test_a_quota_without_its_parent_gets_nothing_until_the_parent_comes() -> None:
    made = quota_manager(100, [Q("leaf", 10, parent="later")], [pod("p", "leaf", 5)])
    refusal = made.check_pod(pod("p", "leaf", 5))
    assert refusal is not None
    assert (refusal.kind, refusal.message) == (
        "adrift",
        "ElasticQuota leaf has no place in its tree: there is no quota later above it in its tree",
    )
    made.handle(QuotaUpdated(Q("later", 20, is_parent=True)))
    assert made.check_pod(pod("p", "leaf", 5)) is None


def test_a_circle_of_quotas_hurts_only_itself() -> None:
    made = quota_manager(
        100, [Q("a", parent="b"), Q("b", parent="a"), Q("self", parent="self"), Q("fine")], [pod("p", "fine", 5)]
    )
    assert cpus(made, "a", "b", "self", "fine") == [0, 0, 0, 5]
    refusal = made.check_pod(pod("x", "a"))
    assert refusal is not None
    assert refusal.kind == "adrift"


def test_pods_in_a_parent_draw_on_it_beside_its_children() -> None:
    quotas = [Q("top", 10, 10, is_parent=True), Q("child", 5, 10, parent="top")]
    made = quota_manager(10, quotas, [pod("own", "top", 6, has_node=True), pod("p", "child", 8)])
    assert cpus(made, "top", "child") == [10, 8]
    above = made.trees.node("top")
    assert above is not None
    assert (above.child_request, above.used) == (two(14), two(6))


def test_a_quota_moves_with_its_pods() -> None:
    pods = [pod("p", "leaf", 30, has_node=True)]
    made = quota_manager(100, [Q("x", 50, is_parent=True), Q("y", 50, is_parent=True), Q("leaf", 10, parent="x")], pods)
    assert cpus(made, "x", "y", "leaf") == [30, 0, 30]
    made.handle(QuotaUpdated(Q("leaf", 10, parent="y")))
    assert cpus(made, "x", "y", "leaf") == [0, 30, 30]
    made.handle(QuotaDeleted("quotas", "leaf"))
    assert cpus(made, "x", "y") == [0, 0]
    group = made.trees.node(DEFAULT_QUOTA)
    assert group is not None
    assert group.used == two(30)  # its nodes are still taken


def members(made: GroupQuotaManager, *pods: QuotaPod) -> list[str | None]:
    return [made.quota_of_pod(one) for one in pods]


def test_which_quota_a_pod_belongs_to() -> None:
    own = Q("team", namespace="team")
    lists = Q("listed", namespaces=("other", "third"), at=5)
    late = Q("late", namespaces=("third",), at=9)
    made = quota_manager(10, [late, own, lists])
    assert members(
        made,
        pod("a"),
        pod("b", "listed"),
        pod("c", namespace="team"),
        pod("d", namespace="other"),
        pod("e", namespace="third"),
        pod("f", "unheard-of", namespace="team"),
        pod("g", namespace="late"),  # of that name, but it lives elsewhere
    ) == [DEFAULT_QUOTA, "listed", "team", "listed", "listed", None, DEFAULT_QUOTA]
    by_label_only = quota_manager(10, [late, own, lists], has_default_group=False)
    assert members(by_label_only, pod("a"), pod("b", "listed"), pod("c", namespace="team")) == [None, "listed", None]


def test_of_two_quotas_with_one_name_the_older_counts() -> None:
    old, new = Q("q", max=5, namespace="a", at=1), Q("q", max=9, namespace="b", at=2)
    for order in ([old, new], [new, old]):
        made = quota_manager(10, order, [pod("p", "q", 8)])
        assert cpus(made, "q") == [5]
        made.handle(QuotaDeleted("a", "q"))
        assert cpus(made, "q") == [8]
