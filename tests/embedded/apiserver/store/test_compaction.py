"""History is compacted by age: older lists and watches fail with 410, the present and the near past stay."""

from __future__ import annotations

import pytest

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, EVENTS_EVENTS
from koord.embedded.apiserver.store.collection import RevisionTooOldError
from koord.embedded.apiserver.store.object_store import HistoryCompactor, ObjectStore
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock, ManualClock, run_virtual

MAPS = "configmaps"


def put(store: ObjectStore, name: str, value: str = "") -> int:
    return store.put(MAPS, "default", name, {"metadata": {"name": name}, "value": value}).revision


def test_events_are_forgotten_when_they_are_old_enough_and_not_before() -> None:
    clock, store = ManualClock(), ObjectStore()
    compaction = HistoryCompactor(store, clock, kept_s=300)
    first = put(store, "a")
    compaction.compact_due()
    clock.advance(200)
    second = put(store, "a", "later")
    compaction.compact_due()
    assert store.collection(MAPS).scan_at(first)[0].plain()["value"] == ""
    clock.advance(100)
    compaction.compact_due()
    assert [event.revision for event in store.collection(MAPS).events_from(1) or ()] == [second]
    with pytest.raises(RevisionTooOldError):
        store.collection(MAPS).subscribe(first - 1)
    store.collection(MAPS).subscribe(first).close()  # all that came after it is still known
    clock.advance(200)
    compaction.compact_due()
    assert store.collection(MAPS).events_from(2) == []
    record = store.collection(MAPS).get("default", "a")
    assert record is not None
    assert record.plain()["value"] == "later"


def test_a_collection_without_news_can_be_watched_from_any_time() -> None:
    clock, store = ManualClock(), ObjectStore()
    compaction = HistoryCompactor(store, clock, kept_s=300)
    quiet = put(store, "a")
    compaction.compact_due()
    for number in range(20):
        store.put("leases", "x", "l", {"metadata": {"name": "l"}, "n": number})
        clock.advance(60)
        compaction.compact_due()
    store.collection(MAPS).subscribe(quiet).close()
    assert len(store.collection("leases").events_from(store.collection("leases").end_position - 5) or ()) == 5
    assert store.collection("leases").events_from(0) is None


def test_a_watcher_that_was_away_for_too_long_is_told() -> None:
    clock, store = ManualClock(), ObjectStore()
    compaction = HistoryCompactor(store, clock, kept_s=300)
    put(store, "a")
    watcher = store.collection(MAPS).subscribe(1)
    compaction.compact_due()
    clock.advance(300)
    compaction.compact_due()
    assert watcher.pending() is None


def test_nothing_is_noted_while_nothing_happens() -> None:
    clock, store = ManualClock(), ObjectStore()
    compaction = HistoryCompactor(store, clock, kept_s=300)
    for _ in range(1000):
        compaction.compact_due()
        clock.advance(1)
    assert len(compaction._marks) <= 1


def test_a_server_keeps_an_hour_of_events_and_minutes_of_history() -> None:
    async def main(clock: LoopClock) -> None:
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), clock=clock)
        await cluster.start()
        client, server = cluster.client, cluster.server
        assert client is not None
        assert server is not None
        try:
            unwrap(await client.create(CONFIG_MAPS, {"metadata": {"name": "c", "namespace": "default"}}))
            sizes: list[tuple[int, int]] = []
            for number in range(240):  # three hours, one of each every 45 s
                event = {
                    "metadata": {"name": f"e{number}", "namespace": "default"},
                    "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
                    "note": "hello",
                    "eventTime": "2026-01-01T00:00:00.000000Z",
                    "reportingController": "test",
                    "reportingInstance": "test",
                    "action": "Test",
                    "reason": "Test",
                    "type": "Normal",
                }
                unwrap(await client.create(EVENTS_EVENTS, event))
                change = {"data": {"n": str(number)}}
                unwrap(await client.patch(CONFIG_MAPS, "c", change, "default", kind="merge"))
                await clock.sleep(45)
                history = server.store.collection(MAPS)
                sizes.append((len(server.store.collection("events")), history.end_position - history._first_position))
            assert [kept for kept, _ in sizes[:79]] == list(range(1, 80))
            assert {kept for kept, _ in sizes[79:]} <= {79, 80}
            assert 6 <= max(history for _, history in sizes) <= 10
        finally:
            await cluster.stop()

    run_virtual(main)
