"""Verdicts by a table of measures."""

from __future__ import annotations

import pytest

from koord.gpu import probe
from koord.gpu.isolation import NO_LIMITS, GpuLimits
from koord.gpu.probe import CoreMeasure, MemoryMeasure, ProbeMeasures

GIB = 1 << 30
SHARE = GpuLimits(provider="MPS", memory_bytes=10 * GIB, core_percent=30)


def memory(allocated: float, visible: float = 140.0, *, refused: bool = True) -> MemoryMeasure:
    return MemoryMeasure(
        visible_bytes=int(visible * GIB), allocated_bytes=int(allocated * GIB), tried_bytes=11 * GIB, refused=refused
    )


def cores(percent: float, reached: int, busy: int | None = 0) -> CoreMeasure:
    return CoreMeasure(
        sms=100,
        sms_reached=reached,
        fma_per_s=percent,
        whole_card_fma_per_s=100.0,
        clock_hz=1e9,
        busy_percent_before=busy,
    )


@pytest.mark.parametrize(
    ("found", "wanted", "said"),
    [
        pytest.param(memory(10.0), "holds", "refused above 10.00 GiB", id="exactly"),
        pytest.param(memory(9.5), "holds", "10.00 GiB is the limit", id="context-takes-its-part"),
        pytest.param(memory(10.1), "holds", "", id="within-two-percent"),
        pytest.param(memory(10.3), "does not hold", "10.30 GiB could be allocated", id="above"),
        pytest.param(memory(10.0, refused=False), "does not hold", "could be allocated", id="never-refused"),
        pytest.param(memory(5.0), "cannot tell", "others may hold the rest", id="card-is-full"),
        pytest.param(memory(5.0, 6.0), "does not hold", "the card shows 6.00 GiB", id="card-is-smaller"),
    ],
)
def test_memory(found: MemoryMeasure, wanted: str, said: str) -> None:
    row = probe.judge_memory(10 * GIB, 10 * GIB, 10 * GIB, found)
    assert row.verdict == wanted
    assert said in row.reason


@pytest.mark.parametrize(
    ("found", "wanted", "said"),
    [
        pytest.param(cores(30, 30), "holds", "30 of 100 multiprocessors", id="by-multiprocessors"),
        pytest.param(cores(31, 100), "holds", "31 % of the arithmetic", id="by-time"),
        pytest.param(cores(30, 30, 90), "holds", "", id="by-multiprocessors-on-a-busy-card"),
        pytest.param(cores(31, 100, 90), "cannot tell", "90 % busy", id="by-time-on-a-busy-card"),
        pytest.param(cores(31, 100, None), "holds", "", id="nothing-known-of-others"),
        pytest.param(cores(90, 100), "does not hold", "more than 30 %", id="no-limit"),
        pytest.param(cores(90, 100, 90), "does not hold", "more than 30 %", id="no-limit-on-a-busy-card"),
        pytest.param(cores(10, 30), "does not hold", "less than 30 %", id="less-than-granted"),
    ],
)
def test_cores(found: CoreMeasure, wanted: str, said: str) -> None:
    row = probe.judge_cores(30, 30, 30, found)
    assert row.verdict == wanted
    assert said in row.reason


def measures(memory: MemoryMeasure | None, cores: CoreMeasure | None) -> ProbeMeasures:
    return ProbeMeasures(card="H", cuda_version=13000, memory=memory, cores=cores)


def test_the_worst_verdict_counts() -> None:
    good = probe.judge(SHARE, SHARE, measures(memory(10), cores(30, 30)))
    assert good.verdict == "holds"
    unknown = probe.judge(SHARE, SHARE, measures(memory(5), cores(30, 30)))
    assert unknown.verdict == "cannot tell"
    bad = probe.judge(SHARE, SHARE, measures(memory(5), cores(90, 100)))
    assert bad.verdict == "does not hold"
    assert [probe.EXIT_CODES[one.verdict] for one in (good, bad, unknown)] == [0, 1, 3]


def test_only_what_was_asked_or_granted_is_told() -> None:
    alone = GpuLimits(provider="MPS", memory_bytes=10 * GIB)
    report = probe.judge(NO_LIMITS, alone, measures(memory(10), None))
    assert [one.resource for one in report.limits] == ["memory"]
    assert report.verdict == "holds"


def test_nothing_measured_cannot_tell() -> None:
    report = probe.judge(SHARE, SHARE, "no driver")
    assert report.verdict == "cannot tell"
    assert {one.reason for one in report.limits} == {"no driver"}
    assert probe.judge(NO_LIMITS, NO_LIMITS, "no share").verdict == "cannot tell"


def test_the_condition_of_a_pod() -> None:
    report = probe.judge(SHARE, SHARE, measures(memory(10), cores(90, 100)))
    condition = probe.condition_of(report, "2026-01-01T00:00:00Z")
    assert (condition.type, condition.status, condition.reason) == (probe.CONDITION, "False", "DoesNotHold")
    assert "cores: does not hold" in condition.message
