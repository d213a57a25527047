"""The long version of the kill test: a hundred kills on one data directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kill_harness import kill_rounds

pytestmark = pytest.mark.real


def test_a_hundred_kills_lose_nothing_acknowledged(tmp_path: Path) -> None:
    assert kill_rounds(tmp_path, rounds=100, seed=20) > 2000
