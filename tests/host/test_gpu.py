"""The decision whether a card works, and when it works again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.host.hardware import (
    DRAIN_P2P,
    GPU_RESET,
    LOST,
    NO_HEALTH_CHECK,
    NO_RECOVERY,
    GpuHealth,
    GpuReading,
    GpuRecord,
    decide_gpu_health,
    next_record,
)

QUIET_S = 60.0
FAILED = GpuRecord(xid=79, xid_at_s=100.0)


@pytest.mark.parametrize(
    ("record", "reading", "at_s", "xid"),
    [
        pytest.param(FAILED, GpuReading(recovery=NO_RECOVERY), 159.0, 79, id="too-early"),
        pytest.param(FAILED, GpuReading(recovery=NO_RECOVERY), 160.0, None, id="quiet-and-recovered"),
        pytest.param(FAILED, GpuReading(recovery=GPU_RESET), 999.0, 79, id="needs-a-reset"),
        pytest.param(FAILED, GpuReading(recovery=DRAIN_P2P), 999.0, 79, id="needs-a-drain"),
        pytest.param(FAILED, GpuReading(), 999.0, 79, id="an-old-driver-says-nothing"),
        pytest.param(GpuRecord(xid=79, lost=True), GpuReading(), 1.0, None, id="lost-and-back"),
        pytest.param(GpuRecord(xid=79, lost=True), GpuReading(lost=True), 1.0, 79, id="still-lost"),
    ],
)
def test_when_an_error_is_forgotten(record: GpuRecord, reading: GpuReading, at_s: float, xid: int | None) -> None:
    assert next_record(record, reading, at_s, QUIET_S).xid == xid


@pytest.mark.parametrize(
    ("record", "reading", "code"),
    [
        pytest.param(FAILED, GpuReading(lost=True, remap_failed=True), LOST.code, id="lost-first"),
        pytest.param(FAILED, GpuReading(recovery=GPU_RESET), "Xid79", id="then-the-error"),
        pytest.param(
            GpuRecord(), GpuReading(remap_failed=True, remap_pending=True), "RowRemapFailed", id="worst-first"
        ),
        pytest.param(GpuRecord(told=False), GpuReading(), NO_HEALTH_CHECK.code, id="nobody-tells"),
        pytest.param(GpuRecord(), GpuReading(recovery=NO_RECOVERY, uncorrected_errors=5), "", id="remapped-by-now"),
        pytest.param(GpuRecord(), GpuReading(recovery=DRAIN_P2P), "", id="links-alone"),
        pytest.param(GpuRecord(), GpuReading(uncorrected_errors=5), "EccUncorrected", id="an-old-driver-counts"),
    ],
)
def test_what_is_named(record: GpuRecord, reading: GpuReading, code: str) -> None:
    found = decide_gpu_health(record, reading)
    assert found.code == code
    assert found.healthy == (code in ("", NO_HEALTH_CHECK.code))


readings = st.builds(
    GpuReading,
    lost=st.booleans(),
    recovery=st.none() | st.integers(0, 5),
    remap_pending=st.booleans(),
    remap_failed=st.booleans(),
    retirement_pending=st.booleans(),
    uncorrected_errors=st.none() | st.integers(0, 3),
)


@given(st.lists(st.tuples(readings, st.none() | st.integers(1, 200)), max_size=12))
def test_a_card_is_healthy_again_after_any_story_with_a_good_end(story: list[tuple[GpuReading, int | None]]) -> None:
    record, now_s = GpuRecord(), 0.0
    for reading, xid in story:
        now_s += 1.0
        if xid is not None:
            record = GpuRecord(told=record.told, xid=xid, xid_at_s=now_s, lost=record.lost)
            assert not decide_gpu_health(record, reading).healthy
        record = next_record(record, reading, now_s, QUIET_S)
        if reading.lost:
            assert decide_gpu_health(record, reading) == LOST
    good = GpuReading(recovery=NO_RECOVERY, uncorrected_errors=0)
    record = next_record(record, good, now_s + QUIET_S, QUIET_S)
    assert decide_gpu_health(record, good) == GpuHealth()
