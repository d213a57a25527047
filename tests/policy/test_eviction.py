"""The ledger keeps the newest records within its bounds, and a record survives its annotation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import A_EVICTION_RECORD
from koord.policy.eviction import (
    ACTORS,
    DRY_RUN,
    EVICTED,
    FAILED,
    MAX_AMOUNTS,
    MAX_TEXT_BYTES,
    REFUSED,
    REQUESTED,
    EvictionLedger,
    EvictionRecord,
    bounded_record,
    parse_record,
    record_annotations,
)

TEXTS = st.text(max_size=60) | st.integers(0, 3000).map(lambda count: "ä" * count)
AMOUNTS = st.dictionaries(st.text(max_size=8), st.integers(-(2**40), 2**40), max_size=4)
RECORDS = st.builds(
    EvictionRecord,
    actor=st.sampled_from(ACTORS),
    rule=st.sampled_from(("a", "b")),
    reason=TEXTS,
    measured=TEXTS,
    detail=TEXTS,
    release=AMOUNTS,
    frees=AMOUNTS,
    namespace=st.sampled_from(("x", "y")),
    name=st.sampled_from(("p", "q")),
    uid=st.sampled_from("0123456789"),
    outcome=st.sampled_from((EVICTED, REFUSED, DRY_RUN, FAILED)),
)


def record(uid: str = "u", **more: object) -> EvictionRecord:
    given_fields = {"actor": "koordlet", "rule": "BEMemoryEvict", "namespace": "ns", "name": f"p-{uid}", **more}
    return EvictionRecord(uid=uid, **given_fields)  # type: ignore[arg-type]


def test_a_record_is_requested_and_then_concluded() -> None:
    begun = record(measured="12 of 16", threshold="70%", why_this_pod="priority 5000")
    assert (begun.outcome, begun.time, begun.numbers()) == (
        REQUESTED,
        "",
        "12 of 16; threshold 70%; priority 5000",
    )
    ended = begun.concluded(1767225600.9, REFUSED, "the budget needs 2")
    assert (ended.time, ended.outcome, ended.detail) == ("2026-01-01T00:00:00Z", "refused", "the budget needs 2")
    assert ended.key == "ns/p-u"


def test_the_oldest_go_first() -> None:
    ledger = EvictionLedger(most=3)
    for number in range(5):
        ledger.add(record(str(number)))
    assert [one.uid for one in ledger] == ["4", "3", "2"]
    assert [one.uid for one in ledger.records("ns", "p-3")] == ["3"]
    assert ledger.records("other") == []


def test_repeated_attempts_are_one_record_with_the_latest_numbers() -> None:
    ledger = EvictionLedger()
    ledger.add(record("a", measured="1").concluded(0, REFUSED))
    ledger.add(record("b").concluded(1, EVICTED))
    ledger.add(record("a", measured="2").concluded(2, REFUSED))
    ledger.add(record("a", measured="3").concluded(3, EVICTED))
    assert [(one.uid, one.outcome, one.measured, one.count) for one in ledger] == [
        ("a", EVICTED, "3", 1),
        ("a", REFUSED, "2", 2),
        ("b", EVICTED, "", 1),
    ]


def test_bytes_bound_it_too() -> None:
    ledger = EvictionLedger(most_bytes=2500)
    for number in range(100):
        ledger.add(record(str(number), measured="m" * 900))
    assert [one.uid for one in ledger] == ["99", "98"]
    assert 0 < ledger.bytes <= 2500


def test_texts_and_maps_are_cut_at_their_limit() -> None:
    cut = bounded_record(record(detail="ä" * 5000, release={f"r{n:03}": n for n in range(100)}))
    assert len(cut.detail.encode()) <= MAX_TEXT_BYTES
    assert cut.detail.endswith("ä ...")
    assert len(cut.release) == MAX_AMOUNTS
    assert bounded_record(cut) == cut


def test_what_is_no_record_is_told_apart_from_none() -> None:
    assert parse_record({}) is None
    assert isinstance(parse_record({A_EVICTION_RECORD: "{"}), MalformedAnnotation)
    assert isinstance(parse_record({A_EVICTION_RECORD: '{"actor": "koordlet"}'}), MalformedAnnotation)


@given(RECORDS)
def test_a_record_survives_its_annotation(given_record: EvictionRecord) -> None:
    annotations = record_annotations(given_record)
    assert parse_record(annotations) == bounded_record(given_record)
    assert len(annotations[A_EVICTION_RECORD]) < 32 * 1024


@given(st.lists(RECORDS, max_size=40), st.integers(1, 6), st.integers(2000, 20_000))
def test_bounds_hold_whatever_comes_and_the_newest_stays(
    records: list[EvictionRecord], most: int, most_bytes: int
) -> None:
    ledger = EvictionLedger(most, most_bytes)
    for one in records:
        ledger.add(one)
        assert len(ledger) <= most
        assert ledger.bytes <= most_bytes
    kept = list(ledger)
    assert len(kept) == len({(one.actor, one.rule, one.uid, one.outcome) for one in kept})
    if kept:
        newest = bounded_record(records[-1])
        assert (kept[0].actor, kept[0].uid, kept[0].measured) == (newest.actor, newest.uid, newest.measured)
