"""CPU sets agree with Python's own sets."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.values.cpuset import EMPTY, MAX_CPU, CPUSet, CPUSetError

members = st.frozensets(st.integers(0, 300), max_size=80)


@pytest.mark.parametrize(
    ("text", "cpus", "canonical"),
    [
        pytest.param("", [], "", id="empty"),
        pytest.param("0", [0], "0", id="one"),
        pytest.param("0-3,7", [0, 1, 2, 3, 7], "0-3,7", id="range-and-one"),
        pytest.param("3,1,2", [1, 2, 3], "1-3", id="order-does-not-matter"),
        pytest.param("0-2,1-4,3", [0, 1, 2, 3, 4], "0-4", id="overlap"),
        pytest.param("5-5", [5], "5", id="range-of-one"),
        pytest.param("0,1", [0, 1], "0-1", id="two-neighbours-are-a-range"),
        pytest.param("0-3\n", [0, 1, 2, 3], "0-3", id="as-a-kernel-file-ends"),
        pytest.param("0,2,4", [0, 2, 4], "0,2,4", id="gaps"),
    ],
)
def test_parse(text: str, cpus: list[int], canonical: str) -> None:
    parsed = CPUSet.parse(text)
    assert list(parsed) == cpus
    assert str(parsed) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("3-1", 'invalid range "3-1" (3 > 1)', id="falling-range"),
        pytest.param("a", 'invalid cpu list "a": "a" is not a cpu number', id="word"),
        pytest.param("0,,1", 'invalid cpu list "0,,1": "" is not a cpu number', id="gap-in-list"),
        pytest.param("1-", 'invalid cpu list "1-": "" is not a cpu number', id="open-range"),
        pytest.param("-1", 'invalid cpu list "-1": "" is not a cpu number', id="negative"),
        pytest.param("1-2-3", 'invalid cpu list "1-2-3": "2-3" is not a cpu number', id="two-dashes"),
        pytest.param("0, 1", 'invalid cpu list "0, 1": " 1" is not a cpu number', id="space-inside"),
        pytest.param("\u0661", 'invalid cpu list "\u0661": "\u0661" is not a cpu number', id="other-script"),
        pytest.param("0-99999999999", "cpu number must be in range 0-65535, got 99999999999", id="absurd-range"),
    ],
)
def test_malformed_list_is_refused(text: str, message: str) -> None:
    with pytest.raises(CPUSetError) as refusal:
        CPUSet.parse(text)
    assert CPUSet.parse_or_empty(text) == CPUSet()
    assert str(refusal.value) == message


def test_numbers_have_bounds() -> None:
    assert list(CPUSet.of([MAX_CPU])) == [MAX_CPU]
    for cpu in (-1, MAX_CPU + 1):
        with pytest.raises(CPUSetError, match="range"):
            CPUSet.of([cpu])


@given(members)
def test_text_round_trip(cpus: frozenset[int]) -> None:
    made = CPUSet.of(cpus)
    assert list(made) == sorted(cpus)
    assert len(made) == len(cpus)
    assert CPUSet.parse(str(made)) == made
    assert all((cpu in made) == (cpu in cpus) for cpu in range(-2, 303))
    assert repr(made) == f"CPUSet.parse({str(made)!r})"


@given(members)
def test_text_has_no_mergeable_neighbours(cpus: frozenset[int]) -> None:
    text = str(CPUSet.of(cpus))
    ends = [(int(part.split("-")[0]), int(part.split("-")[-1])) for part in text.split(",") if part]
    assert all(high + 1 < low for (_, high), (low, _) in pairwise(ends))


@given(members, members)
def test_set_arithmetic(left: frozenset[int], right: frozenset[int]) -> None:
    a, b = CPUSet.of(left), CPUSet.of(right)
    assert set(a | b) == left | right
    assert set(a & b) == left & right
    assert set(a - b) == left - right
    assert (a <= b) == (left <= right)
    assert a.isdisjoint(b) == left.isdisjoint(right)
    assert (a == b) == (left == right)
    assert bool(a) == bool(left)


def test_equal_sets_are_one_key() -> None:
    assert {CPUSet.parse("0-1"): "here"}[CPUSet.of([1, 0])] == "here"
    assert not EMPTY
