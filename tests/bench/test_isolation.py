"""The report of the isolation benchmark: one table and one picture, whatever ran and whatever could not."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.colocation_part import MORE, Measure, PartResult, Skipped
from bench.isolation import IsolationReport, chart, table, write

READS = Measure(name="the service reads", unit="MB/s", alone=20, unmanaged=5, managed=19, better=MORE)
KILLED = Measure(name="services killed", unit="", alone=0, unmanaged=1, managed=0)
DISK = PartResult(part="disk", goal="at least 90 %", goal_met=True, measures=(READS, KILLED))
NETWORK = Skipped(part="network", reason="no tc on this machine: install iproute2")


def report(*parts: PartResult | Skipped) -> IsolationReport:
    return IsolationReport(
        python="3.11", taken="2026-01-01", kernel="6.18", cpus=2, load_average=0.5, seconds=1 / 3, parts=parts
    )


def test_the_table_has_each_measure_each_goal_and_each_reason() -> None:
    lines = table((DISK, NETWORK)).splitlines()
    assert lines[2].split() == ["disk", "the", "service", "reads", "MB/s", "20", "5", "19", "0.95"]
    assert lines[3].split() == ["disk", "services", "killed", "0", "1", "0"], "there is no ratio to nothing"
    assert lines[4] == "network  skipped: no tc on this machine: install iproute2"
    assert lines[5] == "disk: met: at least 90 %"


def test_a_goal_that_was_missed_is_told() -> None:
    missed = msgspec.structs.replace(DISK, goal_met=False)
    assert table((missed,)).splitlines()[-1] == "disk: NOT met: at least 90 %"


def test_the_picture_shows_the_charted_measures_and_names_what_is_missing() -> None:
    picture = chart(report(DISK, NETWORK))
    assert "disk: the service reads" in picture
    assert "services killed" not in picture
    assert "not measured: network (no tc on this machine: install iproute2)" in picture
    assert "more is better; managed is 0.95 times alone" in picture


def test_results_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    write(report(DISK, NETWORK), tmp_path / "new")
    found = msgspec.json.decode((tmp_path / "new" / "isolation.json").read_bytes(), type=IsolationReport)
    assert found.parts == (DISK, NETWORK)
    assert found.seconds == 0.333
    assert (tmp_path / "new" / "isolation.svg").read_text().startswith("<svg")
