"""The file of the past: what was written is read again, and one that cannot be used is told, not taken for none."""

from __future__ import annotations

from pathlib import Path

import pytest

from koord.dashboard.fleet import DAY_KEPT, RECENT_KEPT, FleetHistory, FleetSample, ResourceUse
from koord.dashboard.history_file import MAX_BYTES, HistoryFile, HistoryUnreadable

LARGE = ResourceUse(*[1 << 50] * 11)
FULL = FleetHistory(
    saved_s=1e9,
    recent=(FleetSample(1234567890.123456, LARGE, LARGE, 50_000),) * RECENT_KEPT,
    day=(FleetSample(1234567890.123456, LARGE, LARGE, 50_000),) * DAY_KEPT,
    reclaimed_core_seconds=0.1,
    reclaimed_since_s=1.0,
)


def test_a_whole_day_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "new" / "past.json")
    assert file.load() is None
    assert file.save(FULL) == ""
    assert file.load() == FULL
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.path.stat().st_size < MAX_BYTES / 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"format": 2, "history": {"saved_s": 1, "reclaimed_since_s": 1}}', "format 2"),
        (b" " * (MAX_BYTES + 1), "larger than"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "past.json").write_bytes(content)
    found = HistoryFile(tmp_path / "past.json").load()
    assert isinstance(found, HistoryUnreadable)
    assert words in found.text
    assert "begin anew" in found.text


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "The past is not kept" in HistoryFile(tmp_path / "file" / "past.json").save(FULL)
