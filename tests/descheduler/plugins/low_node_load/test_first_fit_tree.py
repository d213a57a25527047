"""The first target with room, and loads that are kept: the same answers as the long way."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from koord.descheduler.plugins.low_node_load.balance import FirstFitTree

room = st.lists(st.integers(-3, 9), min_size=2, max_size=2)


def first(rooms: Sequence[Sequence[int]], wanted: Sequence[int], closed: set[int]) -> int | None:
    for index, has in enumerate(rooms):
        if index not in closed and all(h >= w for h, w in zip(has, wanted, strict=True)):
            return index
    return None


@given(st.lists(room, max_size=20), st.lists(st.tuples(room, st.sets(st.integers(0, 20))), max_size=15))
def test_the_first_with_enough_of_everything(rooms: list[list[int]], asked: list[tuple[list[int], set[int]]]) -> None:
    shelf = FirstFitTree(rooms)
    for wanted, closed in asked:
        found = shelf.find_first(wanted, lambda index, closed=closed: index not in closed)  # type: ignore[misc]
        assert found == first(rooms, wanted, closed)
        if found is not None:
            rooms[found] = [has - want for has, want in zip(rooms[found], wanted, strict=True)]
            shelf.update(found, rooms[found])
