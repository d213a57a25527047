"""The best rows are those that sorting all rows would put first."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koord.scheduler.framework.engine import best_rows


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=40), st.integers(1, 6))
def test_best_rows_are_the_first_of_all_rows_sorted(totals: list[int], count: int) -> None:
    total = np.asarray(totals, np.int64)
    assert best_rows(total, count) == np.argsort(-total, kind="stable")[:count].tolist()
