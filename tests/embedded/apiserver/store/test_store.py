"""The store keeps what was written, in order, and its events lead from any revision to the present."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.embedded.apiserver.store.collection import ResourceCollection, RevisionTooOldError
from koord.embedded.apiserver.store.object_store import ObjectStore


def obj(value: int = 0, **labels: str) -> dict[str, Any]:
    return {"metadata": {"labels": labels}, "value": value}


def content(collection: ResourceCollection) -> dict[str, Any]:
    return {f"{r.namespace}/{r.name}": r.plain() for r in collection.scan()}


def test_put_stamps_the_revision_and_get_finds_it() -> None:
    store = ObjectStore()
    record = store.put("pods", "a", "x", obj(1))
    found = store.collection("pods").get("a", "x")
    assert found is record
    assert record.plain()["metadata"]["resourceVersion"] == str(record.revision) == str(store.revision)


def test_a_deleted_object_carries_the_revision_of_its_removal() -> None:
    store = ObjectStore()
    store.put("pods", "a", "x", obj(1))
    gone = store.delete("pods", "a", "x")
    assert gone is not None
    assert gone.plain()["metadata"]["resourceVersion"] == str(store.revision)
    assert store.delete("pods", "a", "x") is None


def test_keys_are_in_etcd_order_and_namespaces_do_not_leak() -> None:
    store = ObjectStore()
    for namespace, name in (("a", "x"), ("a-b", "x"), ("a", "b"), ("b", "x")):
        store.put("pods", namespace, name, obj())
    assert [f"{r.namespace}/{r.name}" for r in store.collection("pods").scan()] == ["a-b/x", "a/b", "a/x", "b/x"]
    assert [r.name for r in store.collection("pods").scan("a")] == ["b", "x"]
    assert [r.name for r in store.collection("pods").scan("a", after="a/b")] == ["x"]


def test_cold_records_are_read_back_from_their_bytes() -> None:
    store = ObjectStore()
    record = store.put("pods", "a", "x", obj(7, tier="web"))
    record.drop_decoded()
    assert record.plain()["value"] == 7


def test_a_watch_line_is_encoded_once() -> None:
    store = ObjectStore()
    watcher = store.collection("pods").subscribe()
    store.put("pods", "a", "x", obj(1))
    (event,) = watcher.pending() or []
    assert event.line() is event.line()
    assert event.line().endswith(b"}\n")


async def test_wait_returns_when_something_happens_and_when_closed() -> None:
    store = ObjectStore()
    watcher = store.collection("pods").subscribe()
    assert await watcher.wait(timeout=0) is False
    store.put("pods", "a", "x", obj(1))
    assert await watcher.wait() is True
    watcher.pending()
    watcher.close()
    assert await watcher.wait() is False


def test_a_slow_watcher_is_told_to_list_again_and_others_are_not() -> None:
    store = ObjectStore(history_events=8)
    slow, quick = store.collection("pods").subscribe(), store.collection("pods").subscribe()
    for i in range(40):
        store.put("pods", "a", f"x{i}", obj(i))
        assert quick.pending()
    assert slow.pending() is None


def test_an_old_revision_is_refused() -> None:
    store = ObjectStore(history_events=4)
    first = store.put("pods", "a", "x", obj(0)).revision
    for i in range(20):
        store.put("pods", "a", "x", obj(i))
    with pytest.raises(RevisionTooOldError):
        store.collection("pods").subscribe(first)
    with pytest.raises(RevisionTooOldError):
        store.collection("pods").scan_at(first)


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "delete"]), st.sampled_from("abc"), st.sampled_from("xyz")), max_size=60
)


@settings(max_examples=200)
@given(steps=STEPS, data=st.data())
def test_watching_from_any_revision_gives_the_present(steps: list[tuple[str, str, str]], data: st.DataObject) -> None:
    """List at a revision plus the events after it equals the list now; and the past is what it was."""
    store = ObjectStore()
    history: dict[int, dict[str, Any]] = {store.revision: {}}
    pods = store.collection("pods")
    for i, (what, namespace, name) in enumerate(steps):
        if what == "put":
            store.put("pods", namespace, name, obj(i))
        else:
            store.delete("pods", namespace, name)
        history[store.revision] = content(pods)
    start = data.draw(st.sampled_from(sorted(history)))
    past = {f"{r.namespace}/{r.name}": r.plain() for r in pods.scan_at(start)}
    assert past == history[start]
    assert list(past) == sorted(past)
    replayed = dict(past)
    for event in pods.subscribe(start).pending() or []:
        key = f"{event.record.namespace}/{event.record.name}"
        if event.type == "DELETED":
            del replayed[key]
        else:
            assert (event.type == "ADDED") == (key not in replayed)
            replayed[key] = event.record.plain()
    assert replayed == content(pods)
