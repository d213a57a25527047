"""Failed pods back off for the right time, and only some may leave early."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.queue.backoff import BackoffQueue, QueueSettings, backoff_duration_s, backoff_end
from koord.scheduler.queue.queued_pod import QueuedPod
from tests.scheduler.queue.fake_plugins import pod

DEFAULTS = QueueSettings()
EXACT = QueueSettings(pop_from_backoff=False)


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [
        pytest.param(0, 0, id="never-failed"),
        pytest.param(1, 1, id="initial"),
        pytest.param(2, 2, id="doubles"),
        pytest.param(4, 8, id="doubles-again"),
        pytest.param(5, 10, id="capped"),
        pytest.param(10_000, 10, id="capped-for-ever"),
    ],
)
def test_duration(failures: int, seconds: float) -> None:
    assert backoff_duration_s(failures, DEFAULTS) == seconds


@pytest.mark.parametrize(
    ("since", "failures", "settings", "end"),
    [
        pytest.param(100.3, 1, DEFAULTS, 102.0, id="the-whole-second-in-which-it-ends-is-served"),
        pytest.param(100.0, 1, DEFAULTS, 102.0, id="also-from-a-whole-second"),
        pytest.param(100.3, 1, EXACT, 101.3, id="exact-without-early-pops"),
        pytest.param(100.3, 0, DEFAULTS, 0.0, id="nothing-to-serve"),
        pytest.param(100.3, 3, QueueSettings(max_backoff_s=0), 0.0, id="switched-off"),
        pytest.param(100.3, 3, QueueSettings(initial_backoff_s=20), 111.0, id="initial-above-the-cap"),
    ],
)
def test_end(since: float, failures: int, settings: QueueSettings, end: float) -> None:
    assert backoff_end(since, failures, settings) == end


@settings(deadline=None)
@given(
    since=st.floats(0, 1e9),
    failures=st.integers(1, 100),
    initial=st.floats(0.1, 10),
    longest=st.floats(0.1, 100),
    early=st.booleans(),
)
def test_grows_with_failures_and_is_capped(
    since: float, failures: int, initial: float, longest: float, early: bool
) -> None:
    settings = QueueSettings(initial_backoff_s=initial, max_backoff_s=longest, pop_from_backoff=early)
    end = backoff_end(since, failures, settings)
    assert backoff_end(since, failures + 1, settings) >= end
    assert since <= end <= since + longest + 1 + 1e-6
    assert backoff_duration_s(failures, settings) <= longest


def waiting(name: str, until: float, *, rejected: bool = True) -> QueuedPod:
    queued = QueuedPod(pod(name), number=0, now=0.0)
    queued.until = until
    queued.rejected = frozenset({"Fit"} if rejected else ())
    return queued


def test_a_second_is_left_in_order_of_the_sort_plugin() -> None:
    backoff = BackoffQueue()
    for name, until, key in (("low", 5.0, 9), ("later", 6.0, 0), ("high", 5.0, 1)):
        backoff.add(waiting(name, until), key)
    assert [q.pod.name for q in backoff] == ["high", "low", "later"]
    assert [q.pod.name for q in backoff.release(5.0)] == ["high", "low"]
    assert backoff.next_end() == 6.0


def test_errors_are_never_taken_early() -> None:
    backoff = BackoffQueue()
    backoff.add(waiting("broken", 3.0, rejected=False), 0)
    backoff.add(waiting("refused", 9.0), 0)
    assert backoff.next_end() == 3.0
    early = backoff.pop_early()
    assert early is not None
    assert early.pod.name == "refused"
    assert backoff.pop_early() is None
    assert [q.pod.name for q in backoff.release(3.0)] == ["broken"]
    assert backoff.next_end() is None
    assert len(backoff) == 0
