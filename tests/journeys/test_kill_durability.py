"""A killed server has every write that it had acknowledged. The long run of this is in tests/real."""

from __future__ import annotations

from pathlib import Path

from tests.kill_harness import kill_rounds


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    assert kill_rounds(tmp_path, rounds=5, seed=1) > 100


def test_without_durability_the_file_stays_whole(tmp_path: Path) -> None:
    assert kill_rounds(tmp_path, rounds=3, seed=2, durable=False) > 50
