"""Integer amounts by resource: zeros are dropped where sums must not depend on their history, and kept elsewhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koord.values.resources import (
    accumulate,
    add_in_place,
    add_keyed_amounts,
    remaining_keyed_amounts,
    subtract_amounts,
    sum_amounts,
)

amounts = st.dictionaries(st.sampled_from(("cpu", "memory", "gpu")), st.integers(1, 9))
keyed = st.dictionaries(st.integers(0, 2), amounts.filter(bool))


def test_zeros() -> None:
    kept, dropped = {"cpu": 2}, {"cpu": 2}
    accumulate(kept, {"cpu": 2}, -1)
    add_in_place(dropped, {"cpu": 2}, -1)
    assert (kept, dropped) == ({"cpu": 0}, {})
    assert subtract_amounts({"cpu": 1}, {"cpu": 3, "gpu": 1}) == {"cpu": -2, "gpu": -1}
    assert sum_amounts([{"cpu": 1}, {"gpu": 2}, {"cpu": 4}]) == {"cpu": 5, "gpu": 2}


@given(keyed, keyed)
def test_what_is_added_and_taken_away_again_leaves_no_trace(total: dict, change: dict) -> None:  # type: ignore[type-arg]
    before = {key: dict(found) for key, found in total.items()}
    assert add_keyed_amounts(add_keyed_amounts(total, change), change, -1) == total
    assert total == before


@given(keyed, keyed)
def test_what_remains_is_never_below_zero(total: dict, taken: dict) -> None:  # type: ignore[type-arg]
    rest = remaining_keyed_amounts(total, taken)
    for key, found in total.items():
        for name, amount in found.items():
            assert rest.get(key, {}).get(name, 0) == max(0, amount - taken.get(key, {}).get(name, 0))
    assert all(amount > 0 for found in rest.values() for amount in found.values())
