"""How large a pool's root quota is, and when it is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.profiles import ElasticQuotaProfile
from koord.api.koordinator.protocol import (
    A_QUOTA_RESOURCE_KEYS,
    A_QUOTA_TOTAL_RESOURCE,
    A_QUOTA_UNSCHEDULABLE_RESOURCE,
    L_QUOTA_IS_ROOT,
    L_QUOTA_PROFILE,
    L_QUOTA_TREE_ID,
)
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.node import Node
from koord.api.model import convert
from koord.api.patch.merge_patch import merge_patch
from koord.manager.controllers.quota_profile import (
    UNLIMITED_QUANTITY,
    PoolNode,
    RootQuota,
    create_body,
    default_tree_id,
    desired_root_quota,
    parse_resource_ratio,
    sum_pool,
    update_patch,
)
from koord.values import resources as vector
from koord.values.selector import EVERYTHING, Selector


def share(name: str, usable: bool = True, labels: dict[str, str] | None = None, **amounts: Any) -> PoolNode:
    return PoolNode(name, labels or {}, vector.parse({key.replace("_", "-"): q for key, q in amounts.items()}), usable)


def profile(**more: Any) -> ElasticQuotaProfile:
    meta = {"name": "p", "namespace": "ns", "annotations": more.pop("annotations", {})}
    return convert({"metadata": meta, "spec": {"quotaName": "q", **more}}, ElasticQuotaProfile)


def root(of: ElasticQuotaProfile, *nodes: PoolNode) -> RootQuota:
    return desired_root_quota(of, "t", sum_pool(nodes, EVERYTHING, parse_resource_ratio(of.spec.resource_ratio)))


@pytest.mark.parametrize(
    ("namespace", "name", "expected"),
    [
        ("kube-system", "cn-hangzhou-k-nodepool", "18340441938858026940"),
        ("kube-system", "cn-hangzhou-g-nodepool", "8589367430557242040"),
    ],
)
def test_tree_ids(namespace: str, name: str, expected: str) -> None:
    assert default_tree_id(namespace, name) == expected


@pytest.mark.parametrize(
    ("text", "ratio"),
    [(None, None), ("0.9", 0.9), ("1", 1.0), ("1.1", 1.0), ("abc", 1.0), ("0", 1.0), ("-0.5", 1.0), ("nan", 1.0)],
)
def test_ratio(text: str | None, ratio: float | None) -> None:
    assert parse_resource_ratio(text) == ratio


def test_a_share_of_the_pool() -> None:
    nodes = [share(name, usable, cpu=10, memory=1000, storage=1000) for name, usable in (("a", True), ("b", False))]
    made = root(profile(resourceRatio="0.9"), *nodes)
    assert vector.to_wire(made.min) == {"cpu": "18", "memory": "1800"}
    assert set(made.max.values()) == {UNLIMITED_QUANTITY}
    assert str(UNLIMITED_QUANTITY) == "4611686018427387"
    assert json.loads(made.annotations[A_QUOTA_TOTAL_RESOURCE]) == {"cpu": "18", "memory": "1800", "storage": "1800"}
    assert json.loads(made.annotations[A_QUOTA_UNSCHEDULABLE_RESOURCE]) == {
        "cpu": "9",
        "memory": "900",
        "storage": "900",
    }


def test_shares_are_cut_to_whole_units() -> None:
    made = root(profile(resourceRatio="0.333"), share("a", cpu="3333m", memory="1234567Ki", pods=110))
    assert {key: amount.milli_value() for key, amount in made.min.items()} == {"cpu": 1109, "memory": 420977470000}
    assert json.loads(made.annotations[A_QUOTA_TOTAL_RESOURCE])["pods"] == "36"


def test_only_selected_nodes_count() -> None:
    pool = sum_pool(
        [share("a", labels={"pool": "x"}, cpu=1), share("b", cpu=2)], Selector.from_label_selector({"pool": "x"}), None
    )
    assert vector.to_wire(pool.total) == {"cpu": "1"}
    assert (pool.nodes, pool.unschedulable_nodes) == (1, 0)


def test_resource_keys_choose_the_bounds_but_not_the_total() -> None:
    made = root(profile(annotations={A_QUOTA_RESOURCE_KEYS: '["cpu","gpu"]'}), share("a", cpu=1, memory=1))
    assert vector.to_wire(made.min) == {"cpu": "1", "gpu": "0"}
    assert made.max.keys() == {"cpu", "gpu"}
    assert json.loads(made.annotations[A_QUOTA_TOTAL_RESOURCE]).keys() == {"cpu", "memory"}


def test_unreadable_resource_keys_are_said_and_the_usual_ones_used() -> None:
    made = root(profile(annotations={A_QUOTA_RESOURCE_KEYS: "{"}), share("a", cpu=1, memory=1))
    assert made.min.keys() == {"cpu", "memory"}
    assert A_QUOTA_RESOURCE_KEYS in made.warning


def test_labels_of_the_profile_may_change_profile_but_not_tree_and_root() -> None:
    theirs = {L_QUOTA_PROFILE: "other", L_QUOTA_TREE_ID: "x", L_QUOTA_IS_ROOT: "false", "team": "x"}
    assert root(profile(quotaLabels=theirs)).labels == {
        L_QUOTA_PROFILE: "other",
        L_QUOTA_TREE_ID: "t",
        L_QUOTA_IS_ROOT: "true",
        "team": "x",
    }


@pytest.mark.parametrize(
    ("conditions", "unschedulable", "usable"),
    [
        ([{"type": "Ready", "status": "True"}], False, True),
        ([{"type": "Ready", "status": "True"}], True, False),
        ([{"type": "Ready", "status": "Unknown"}], False, False),
        ([], False, False),
    ],
    ids=["ready", "cordoned", "lost", "silent"],
)
def test_usable_nodes(conditions: list[dict[str, str]], unschedulable: bool, usable: bool) -> None:
    node = convert({"spec": {"unschedulable": unschedulable}, "status": {"conditions": conditions}}, Node)
    assert PoolNode.from_node(node).is_schedulable is usable


def test_a_stale_quota_keeps_foreign_labels_and_loses_foreign_amounts() -> None:
    made = root(profile(), share("a", cpu=1, memory=1))
    stale = {
        "metadata": {"name": "q", "labels": {"old": "kept"}},
        "spec": {"min": {"cpu": 5, "gpu": 1}, "max": {"gpu": 2}},
    }
    patch = update_patch(made, convert(stale, ElasticQuota))
    after = merge_patch(stale, patch)
    assert isinstance(after, dict)
    assert after["metadata"]["labels"] == {"old": "kept", **made.labels}
    assert after["spec"] == {"min": {"cpu": "1", "memory": "1"}, "max": vector.to_wire(made.max)}


def test_equal_amounts_in_other_words_are_left_alone() -> None:
    made = root(profile(), share("a", cpu="1", memory="1Gi"))
    body = create_body(made, "ns", "q")
    body["spec"]["min"] = {"cpu": "1000m", "memory": "1024Mi"}
    body["metadata"]["annotations"] = {**made.annotations, A_QUOTA_TOTAL_RESOURCE: '{"cpu":1,"memory":1073741824}'}
    assert update_patch(made, convert(body, ElasticQuota)) is None


amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "x"]), st.integers(0, 10**6))
nodes = st.lists(st.tuples(amounts, st.booleans()), max_size=4)


@given(nodes=nodes, ratio=st.one_of(st.none(), st.floats(0.01, 1.0)), before=amounts)
def test_one_write_is_enough(
    nodes: list[tuple[dict[str, int], bool]], ratio: float | None, before: dict[str, int]
) -> None:
    shares = [PoolNode(str(index), {}, vector.parse(given), usable) for index, (given, usable) in enumerate(nodes)]
    made = desired_root_quota(profile(), "t", sum_pool(shares, EVERYTHING, ratio))
    stale = {"metadata": {"name": "q"}, "spec": {"min": before, "max": before}}
    patch = update_patch(made, convert(stale, ElasticQuota))
    after = merge_patch(stale, patch or {})
    assert update_patch(made, convert(after, ElasticQuota)) is None


@given(nodes=nodes, ratio=st.floats(0.01, 1.0))
def test_a_share_is_never_more_than_the_whole(nodes: list[tuple[dict[str, int], bool]], ratio: float) -> None:
    shares = [PoolNode(str(index), {}, vector.parse(given), usable) for index, (given, usable) in enumerate(nodes)]
    part, whole = sum_pool(shares, EVERYTHING, ratio), sum_pool(shares, EVERYTHING, None)
    assert all(part.total[key] <= whole.total[key] for key in whole.total)
    assert all(part.unschedulable[key] <= part.total[key] for key in part.unschedulable)
