"""The quota tree: whatever order its news come in, it is what a rebuild would give."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.protocol import DEFAULT_QUOTA, L_QUOTA_NAME, ROOT_QUOTA
from koord.manager.webhooks.quota.topology import (
    PENDING_WRITE_TTL_S,
    QuotaDeleteAdmitted,
    QuotaInfo,
    QuotaObjectDeleted,
    QuotaObserved,
    QuotaTopology,
    QuotaWriteAdmitted,
    TimeElapsed,
    TopologyEvent,
)
from koord.values.quantity import Quantity
from tests.manager.webhooks.quota.quota_builders import quota, quota_info, topology_of

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def state(tree: QuotaTopology) -> dict[str, Any]:
    return {
        "quotas": dict(tree.quotas),
        "children": {name: tree.children(name) for name in (ROOT_QUOTA, *"abc", "nowhere")},
        "owners": {namespace: tree.owner_of(namespace) for namespace in ("n1", "n2", "n3")},
        "shown": tree.to_json(),
    }


quotas = st.builds(
    QuotaInfo,
    name=st.sampled_from("abc"),
    namespace=st.sampled_from(["one", "two"]),
    created=st.integers(0, 2).map(lambda hours: EPOCH + timedelta(hours=hours)),
    parent=st.sampled_from([ROOT_QUOTA, "a", "b", "nowhere"]),
    is_parent=st.booleans(),
    namespaces=st.lists(st.sampled_from(["n1", "n2", "n3"]), max_size=2).map(tuple),
    min=st.dictionaries(st.just("cpu"), st.integers(0, 2).map(Quantity.from_value)),
)
times = st.floats(0, 100)
events: st.SearchStrategy[TopologyEvent] = st.one_of(
    quotas.map(QuotaObserved),
    st.builds(QuotaObjectDeleted, st.sampled_from(["one", "two"]), st.sampled_from("abc")),
    st.builds(QuotaWriteAdmitted, quotas, times),
    st.builds(QuotaDeleteAdmitted, st.sampled_from("abc"), times),
    times.map(TimeElapsed),
)


class Ledger:
    """The two things that the state is a function of, kept in the plainest way."""

    def __init__(self) -> None:
        self.live: dict[tuple[str, str], QuotaInfo] = {}
        self.open: dict[str, QuotaWriteAdmitted | QuotaDeleteAdmitted] = {}

    def note(self, event: TopologyEvent) -> None:
        match event:
            case QuotaObserved(seen):
                self.live[seen.namespace, seen.name] = seen
                waiting = self.open.get(seen.name)
                if isinstance(waiting, QuotaWriteAdmitted) and waiting.quota.has_same_spec(seen):
                    del self.open[seen.name]
            case QuotaObjectDeleted(namespace, name):
                self.live.pop((namespace, name), None)
                if isinstance(self.open.get(name), QuotaDeleteAdmitted) and not any(
                    known == name for _, known in self.live
                ):
                    del self.open[name]
            case QuotaWriteAdmitted(admitted):
                self.open[admitted.name] = event
            case QuotaDeleteAdmitted(name):
                self.open[name] = event
            case TimeElapsed(now):
                self.open = {name: one for name, one in self.open.items() if one.at + PENDING_WRITE_TTL_S > now}


@given(story=st.lists(events, max_size=25), order=st.randoms(use_true_random=False))
def test_any_sequence_of_news_equals_a_rebuild(story: list[TopologyEvent], order: Any) -> None:
    tree, ledger = QuotaTopology(), Ledger()
    for event in story:
        tree.handle(event)
        ledger.note(event)
        live = list(ledger.live.values())
        order.shuffle(live)
        rebuilt = QuotaTopology()
        for one in live:
            rebuilt.handle(QuotaObserved(one))
        for waiting in ledger.open.values():
            rebuilt.handle(waiting)
        assert state(tree) == state(rebuilt)


@given(story=st.lists(events, max_size=15))
def test_news_told_twice_change_nothing(story: list[TopologyEvent]) -> None:
    once, twice = QuotaTopology(), QuotaTopology()
    for event in story:
        once.handle(event)
        twice.handle(event)
        twice.handle(event)
    assert state(once) == state(twice)


@given(story=st.lists(events, max_size=15))
def test_walks_up_the_tree_end(story: list[TopologyEvent]) -> None:
    """A circle can be there already: validation may have been off."""
    tree = QuotaTopology()
    for event in story:
        tree.handle(event)
    for name in "abc":
        assert len(list(tree.ancestors(name))) <= 3


class TestAdmittedWrites:
    def test_hide_what_the_watch_still_shows(self) -> None:
        tree = topology_of(quota("a"))
        tree.handle(QuotaWriteAdmitted(quota_info(quota("a", parent="p")), 0.0))
        tree.handle(QuotaObserved(quota_info(quota("a"))))  # an event from before the write
        assert tree.quotas["a"].parent == "p"

    def test_are_forgotten_when_the_watch_shows_them(self) -> None:
        tree = QuotaTopology()
        tree.handle(QuotaWriteAdmitted(quota_info(quota("a")), 0.0))
        tree.handle(QuotaObserved(quota_info(quota("a"))))
        tree.handle(QuotaObjectDeleted("team", "a"))
        assert tree.get("a") is None

    def test_do_not_block_a_name_for_good_when_they_failed(self) -> None:
        tree = QuotaTopology()
        tree.handle(QuotaWriteAdmitted(quota_info(quota("a")), 0.0))
        tree.handle(TimeElapsed(PENDING_WRITE_TTL_S - 1))
        assert tree.get("a") is not None
        tree.handle(TimeElapsed(PENDING_WRITE_TTL_S))
        assert tree.get("a") is None

    def test_of_deletion_free_the_name_at_once_and_only_for_a_while(self) -> None:
        tree = topology_of(quota("a"))
        tree.handle(QuotaDeleteAdmitted("a", 0.0))
        assert tree.get("a") is None
        tree.handle(TimeElapsed(PENDING_WRITE_TTL_S))  # a finalizer keeps the object
        assert tree.get("a") is not None


def aged(name: str, hours: int, **more: Any) -> QuotaInfo:
    obj = quota(name, **more)
    obj["metadata"]["creationTimestamp"] = (EPOCH + timedelta(hours=hours)).isoformat()
    return quota_info(obj)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["older-first", "younger-first"])
def test_the_older_claim_on_a_namespace_stands(order: tuple[int, int]) -> None:
    claims = aged("z", 0, namespaces=["n"]), aged("a", 1, namespaces=["n"])
    assert QuotaTopology.build(claims[index] for index in order).owner_of("n") == "z"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["older-first", "younger-first"])
def test_of_two_objects_of_one_name_the_older_counts(order: tuple[int, int]) -> None:
    twins = aged("a", 0, namespace="two"), aged("a", 1, namespace="one")
    assert QuotaTopology.build(twins[index] for index in order).quotas["a"].namespace == "two"


@pytest.mark.parametrize(
    ("labels", "namespace", "expected"),
    [
        pytest.param({L_QUOTA_NAME: "unknown"}, "team", "unknown", id="by-label-even-unknown"),
        pytest.param({}, "team", "team", id="by-the-name-of-the-namespace"),
        pytest.param({}, "n1", "a", id="by-annotation"),
        pytest.param({}, "far", DEFAULT_QUOTA, id="namesake-in-another-namespace-is-none"),
        pytest.param({}, "other", DEFAULT_QUOTA, id="default"),
        pytest.param({L_QUOTA_NAME: ""}, "n1", "a", id="empty-label-says-nothing"),
    ],
)
def test_quota_of_a_pod(labels: dict[str, str], namespace: str, expected: str) -> None:
    tree = topology_of(quota("a", namespaces=["n1"]), quota("team"), quota("far", namespace="elsewhere"))
    assert tree.quota_of(labels, namespace) == expected


def test_without_default_only_the_label_counts() -> None:
    tree = topology_of(quota("team"))
    assert tree.quota_of({}, "team", default=False) == ""
    assert tree.quota_of({L_QUOTA_NAME: "a"}, "team", default=False) == "a"


def test_what_the_debug_page_shows() -> None:
    tree = topology_of(quota("p", is_parent=True, min={}), quota("c", parent="p", min={"cpu": "500m"}))
    assert tree.to_json() == {
        "quotaInfoMap": {
            "c": {
                "name": "c",
                "parentName": "p",
                "isParent": False,
                "allowLentResource": True,
                "max": {"cpu": "10", "memory": "10Gi"},
                "min": {"cpu": "500m"},
            },
            "p": {
                "name": "p",
                "parentName": ROOT_QUOTA,
                "isParent": True,
                "allowLentResource": True,
                "max": {"cpu": "10", "memory": "10Gi"},
                "min": {},
            },
        },
        "quotaHierarchyInfo": {ROOT_QUOTA: ["p"], "p": ["c"], "c": []},
    }
