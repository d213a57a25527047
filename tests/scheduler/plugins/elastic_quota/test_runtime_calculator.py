"""One resource is shared among siblings by the worked examples, the invariants and the constant-time paths."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.plugins.elastic_quota.tree import SiblingClaim, SiblingPool, scaled_min

# weight, request, min, and what differs from a quota that lends
Row = tuple[int, int, int] | tuple[int, int, int, dict[str, int | bool]]


def divided(total: int, rows: dict[str, Row], *, scales: bool = True) -> list[int]:
    claims = [
        SiblingClaim(name, weight=row[0], request=row[1], min=row[2], **(row[3] if len(row) > 3 else {}))  # type: ignore[arg-type]
        for name, row in rows.items()
    ]
    pool = SiblingPool(claims, scales=scales)
    return [pool.runtime(claim, total) for claim in claims]


FOUR: dict[str, Row] = {"n1": (40, 5, 10), "n2": (60, 20, 15), "n3": (50, 40, 20), "n4": (80, 70, 15)}
EIGHTY_ONE: dict[str, Row] = {
    "donor": (3, 0, 3),
    **{f"q{i}": (8, 100, 8) for i in range(8)},
    **{f"r{i}": (7, 100, 7) for i in range(2)},
}


@pytest.mark.parametrize(
    ("total", "rows", "expected"),
    [
        pytest.param(100, FOUR, [5, 20, 35, 40], id="by-weight-above-min"),
        pytest.param(100, {**FOUR, "n4": (0, 70, 15)}, [5, 20, 40, 15], id="no-weight-is-min-only"),
        pytest.param(100, {**FOUR, "n4": (0, 70, 15, {"guaranteed": 45})}, [5, 20, 30, 45], id="running-is-guaranteed"),
        pytest.param(100, {**FOUR, "n1": (40, 5, 10, {"lends": False})}, [10, 20, 33, 37], id="one-does-not-lend"),
        pytest.param(10, {"a": (1, 100, 0), "b": (1, 100, 0), "c": (1, 100, 0)}, [4, 3, 3], id="odd-one-by-name"),
        pytest.param(7, {"a": (1, 100, 0), "b": (1, 100, 0), "z": (2, 100, 0)}, [2, 2, 3], id="largest-remainder"),
        pytest.param(50, {"a": (1, 30, 10), "b": (3, 30, 10)}, [20, 30], id="surplus-goes-round-again"),
        pytest.param(100, {"a": (0, 50, 10), "b": (0, 50, 20)}, [10, 20], id="all-weights-zero"),
        pytest.param(100, {"t1": (1, 120, 60), "t2": (1, 0, 40, {"lends": False})}, [60, 40], id="min-is-not-lent"),
        pytest.param(200, dict.fromkeys("abc", (1, 200, 100)), [67, 67, 66], id="mins-shrink-and-the-rest-is-shared"),
        pytest.param(
            200, {"a": (1, 200, 100), "b": (1, 0, 100), "c": (1, 200, 100)}, [100, 0, 100], id="idle-min-helps"
        ),
        pytest.param(600, dict.fromkeys("abc", (1, 200, 100)), [200, 200, 200], id="enough-for-all"),
        pytest.param(-5, {"a": (1, 10, 5), "b": (1, 10, 5, {"lends": False})}, [0, 0], id="nothing-is-there"),
        pytest.param(
            70, {"x": (1, 50, 50, {"lends": False}), "y": (0, 20, 50)}, [50, 20], id="requests-fit-mins-do-not"
        ),
        pytest.param(81, EIGHTY_ONE, [0, 9, 9, 9, 8, 8, 8, 8, 8, 7, 7], id="no-gpu-is-stranded"),
    ],
)
def test_worked_examples(total: int, rows: dict[str, Row], expected: list[int]) -> None:
    assert divided(total, rows) == expected


def test_without_scaling_mins_stand_though_they_overcommit() -> None:
    assert divided(30, {"a": (1, 50, 20), "b": (1, 50, 20)}, scales=False) == [20, 20]


@pytest.mark.parametrize(("total", "expected"), [(200, 50), (100, 25), (50, 0), (20, 0)])
def test_mins_shrink_beside_one_that_does_not(total: int, expected: int) -> None:
    assert scaled_min(total, 50, scalable=100, fixed=50) == expected


# -- invariants

small = st.integers(0, 40)
claims = st.lists(st.tuples(st.integers(0, 5), small, small, st.booleans()), min_size=1, max_size=6)


def pool_of(rows: list[tuple[int, int, int, bool]]) -> tuple[SiblingPool, list[SiblingClaim]]:
    made = [
        # A quota that does not lend asks for its min at least.
        SiblingClaim(f"q{i}", weight=w, request=max(r, m) if not lends else r, min=m, lends=lends)
        for i, (w, r, m, lends) in enumerate(rows)
    ]
    return SiblingPool(made), made


@settings(max_examples=100)
@given(claims, st.integers(-10, 200))
def test_never_more_than_there_is_and_never_less_than_can_be_used_R22(
    rows: list[tuple[int, int, int, bool]], total: int
) -> None:
    pool, made = pool_of(rows)
    got = [pool.runtime(claim, total) for claim in made]
    assert min(got) >= 0
    assert sum(got) <= max(total, 0)
    wants = sum(claim.want for claim in made)
    if any(claim.weight > 0 and g < claim.request for claim, g in zip(made, got)):
        assert sum(got) == max(total, 0)  # nobody with a weight is left wanting while something is left
    assert sum(got) <= wants


@settings(max_examples=100)
@given(claims, st.integers(0, 200))
def test_mins_that_fit_are_kept_R23(rows: list[tuple[int, int, int, bool]], total: int) -> None:
    pool, made = pool_of(rows)
    total = max(total, sum(claim.min for claim in made))
    for claim in made:
        assert pool.runtime(claim, total) >= (min(claim.min, claim.request) if claim.lends else claim.min)


@settings(max_examples=100)
@given(claims, st.integers(0, 200), st.integers(1, 60))
def test_more_to_share_costs_nobody_more_than_rounding(
    rows: list[tuple[int, int, int, bool]], total: int, more: int
) -> None:
    pool, made = pool_of(rows)
    before = [pool.runtime(claim, total) for claim in made]
    after = [pool.runtime(claim, total + more) for claim in made]
    assert all(b - a <= len(made) for a, b in zip(after, before))


@settings(max_examples=100)
@given(claims, st.integers(0, 200), st.lists(st.tuples(st.integers(0, 5), small), max_size=12))
def test_changes_one_by_one_end_where_a_fresh_start_does(
    rows: list[tuple[int, int, int, bool]], total: int, changes: list[tuple[int, int]]
) -> None:
    pool, made = pool_of(rows)
    for which, request in changes:
        pool.runtime(made[0], total)
        claim = made[which % len(made)]
        claim.update(request=request if claim.lends else max(request, claim.min))
    fresh = [
        SiblingClaim(c.name, weight=c.weight, request=c.request, min=c.min, lends=c.lends, guaranteed=c.guaranteed)
        for c in made
    ]
    anew = SiblingPool(fresh)
    assert [pool.runtime(c, total) for c in made] == [anew.runtime(c, total) for c in fresh]
