"""Hours of cluster life in virtual time give the same story for the same seed. The full day is in `make bench`."""

from __future__ import annotations

from tests.journeys.virtual_day import run_day


def test_a_seed_tells_the_same_story_twice() -> None:
    first = run_day(nodes=30, services=10, jobs=60, hours=4, seed=7)
    again = run_day(nodes=30, services=10, jobs=60, hours=4, seed=7)
    assert first == again
    assert first.pods_seen > 300
    assert set(first.phases) <= {"Running", "Succeeded"}, "after the rush nothing is left waiting"


def test_another_seed_tells_another_story() -> None:
    assert run_day(nodes=10, services=3, jobs=10, hours=1, seed=1) != run_day(
        nodes=10, services=3, jobs=10, hours=1, seed=2
    )
