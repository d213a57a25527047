"""The long version of the kill test: kills on one data directory, forty in a usual run.

KOORD_CHAOS_MINUTES makes it as long as wanted (`make soak`), with a hundred kills at least.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kill_harness import kill_rounds

pytestmark = pytest.mark.real

KILLS_A_MINUTE = 25
MINUTES = float(os.environ.get("KOORD_CHAOS_MINUTES", "0"))
ROUNDS = max(100, round(KILLS_A_MINUTE * MINUTES)) if MINUTES else 40


def test_kills_lose_nothing_acknowledged(tmp_path: Path) -> None:
    assert kill_rounds(tmp_path, rounds=ROUNDS, seed=20) > 20 * ROUNDS
