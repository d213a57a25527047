"""NUMA masks agree with Python's own sets, and their order with its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.values.bitmask import EMPTY, FULL, BitMask, masks_over

members = st.frozensets(st.integers(0, 63))


@given(members, members)
def test_set_arithmetic(left: frozenset[int], right: frozenset[int]) -> None:
    a, b = BitMask.of(*left), BitMask.of(*right)
    assert set(a & b) == left & right
    assert set(a | b) == left | right
    assert set(a.set(*right)) == left | right
    assert set(a.clear(*right)) == left - right
    assert (a == b) == (left == right)
    assert list(a) == sorted(left)
    assert len(a) == len(left)
    assert all((bit in a) == (bit in left) for bit in range(-1, 66))


@given(members, members)
def test_narrower_is_fewer_bits_then_lower_number(left: frozenset[int], right: frozenset[int]) -> None:
    a, b = BitMask.of(*left), BitMask.of(*right)
    number = {mask: sum(2**bit for bit in bits) for mask, bits in ((a, left), (b, right))}
    assert a.is_narrower_than(b) == ((len(left), number[a]) < (len(right), number[b]))


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        pytest.param((), "00", id="empty"),
        pytest.param((0,), "01", id="first"),
        pytest.param((0, 1), "11", id="first-two"),
        pytest.param((2,), "100", id="lone-bit-at-the-foot-of-a-group"),
        pytest.param((0, 2), "0101", id="two-groups"),
        pytest.param((3,), "1000", id="top-of-second-group"),
        pytest.param((63,), "1" + "0" * 63, id="last"),
    ],
)
def test_text_is_the_kubelets(bits: tuple[int, ...], text: str) -> None:
    assert str(BitMask.of(*bits)) == text


@pytest.mark.parametrize("bit", [-1, 64])
def test_bits_have_bounds(bit: int) -> None:
    for operation in (EMPTY.set, FULL.clear, BitMask.of):
        with pytest.raises(ValueError, match="bit number must be in range 0-63"):
            operation(bit)


def test_masks_over_bits_come_narrow_first() -> None:
    assert [tuple(mask) for mask in masks_over([0, 1, 3])] == [(0,), (1,), (3,), (0, 1), (0, 3), (1, 3), (0, 1, 3)]
    assert list(masks_over([])) == []


@given(st.sets(st.integers(0, 63), max_size=7))
def test_masks_over_bits_are_all_subsets_once(bits: set[int]) -> None:
    masks = list(masks_over(sorted(bits)))
    assert len(set(masks)) == len(masks) == 2 ** len(bits) - 1
    assert all(set(mask) <= bits for mask in masks)


def test_full_mask() -> None:
    assert list(FULL) == list(range(64))
    assert not EMPTY
