"""History, decoded forms and Events are bounded in bytes, however large or many objects are."""

from __future__ import annotations

from typing import Any

import pytest

from koord.embedded.apiserver.store.collection import RevisionTooOldError
from koord.embedded.apiserver.store.object_store import EventExpiry, ObjectStore
from koord.telemetry.clock import ManualClock


def obj(size: int) -> dict[str, Any]:
    return {"metadata": {}, "value": "x" * size}


def test_the_history_of_many_collections_has_one_limit() -> None:
    store = ObjectStore(total_history_bytes=1 << 20)
    before = store.revision
    for number in range(640):
        store.put(f"kind{number % 20}", "a", f"x{number % 3}", obj(10_000))
    total = sum(collection.history_bytes for collection in store.collections().values())
    assert total <= (1 << 20) + 64 * 11_000  # it is looked at every so many writes
    with pytest.raises(RevisionTooOldError):
        store.collection("kind0").subscribe(before)
    assert all(len(collection) == 3 for collection in store.collections().values())  # objects stay


def test_decoded_forms_have_a_limit() -> None:
    store = ObjectStore(hot_bytes=100_000)
    records = [store.put("pods", "a", f"x{number}", obj(10_000)) for number in range(50)]
    kept = [record for record in records if record.plain() is record.plain()]
    assert 0 < len(kept) < 10
    assert kept == records[-len(kept) :]


def test_the_oldest_events_go_when_there_are_too_many() -> None:
    store, clock = ObjectStore(), ManualClock()
    expiry = EventExpiry(store, clock, max_bytes=100_000)
    for number in range(100):
        expiry.record_write("events", store.put("events", "a", f"e{number:03}", obj(5_000)))
        expiry.delete_expired()
    left = [record.name for record in store.collection("events").scan()]
    assert 10 < len(left) < 25
    assert left[-1] == "e099"
    assert left == [f"e{number:03}" for number in range(100 - len(left), 100)]
