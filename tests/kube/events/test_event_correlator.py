"""The cache of events is bounded by what it takes, and the sum it keeps is that of its events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from koord.api.model import ObjectReference
from koord.kube.events import correlator
from koord.kube.events.correlator import EventCorrelator, EventKey
from koord.telemetry.clock import ManualClock

names = st.sampled_from("abcdef")
notes = st.integers(0, 3).map(lambda n: "x" * n * 300)
event_annotations: st.SearchStrategy[dict[str, str] | None] = st.none() | st.integers(0, 1 << 20).map(
    lambda size: {"record": "y" * size}
)


def key_of(name: str) -> EventKey:
    return EventKey(type="Normal", reason="R", action="A", regarding=ObjectReference(name=name), related=None)


class CorrelatorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.correlator = EventCorrelator(self.clock)

    @rule(name=names, note=notes, more=event_annotations)
    def record(self, name: str, note: str, more: dict[str, str] | None) -> None:
        key = key_of(name)
        if self.correlator.count_repetition(key, note, more) is None:
            self.correlator.start_event(key, key.regarding, f"{name}.1", note, more)

    @rule(seconds=st.integers(0, 500))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)
        list(self.correlator.due_for_write())

    @rule()
    def one_is_written_and_forgotten(self) -> None:
        for event in self.correlator.events_with_unwritten_counts()[:1]:
            event.written = event.count
            self.correlator.forget(event)
            self.correlator.forget(event)

    @invariant()
    def the_sum_is_that_of_the_events(self) -> None:
        events = self.correlator.events_with_unwritten_counts()
        if len(events) == len(self.correlator):
            assert self.correlator.cached_bytes == sum(event.size_bytes() for event in events)

    @invariant()
    def it_is_bounded(self) -> None:
        assert self.correlator.cached_bytes <= correlator.MAX_CACHED_BYTES + (2 << 20)  # one repetition may grow
        assert self.correlator.cached_bytes >= 0


TestCorrelator = CorrelatorMachine.TestCase
TestCorrelator.settings = settings(max_examples=30, stateful_step_count=30)


def test_long_events_push_out_older_ones_before_there_are_too_many() -> None:
    cache = EventCorrelator(ManualClock())
    for number in range(correlator.MAX_CACHED_EVENTS):
        key = key_of(str(number))
        cache.start_event(key, key.regarding, key.regarding.name, "n" * 1024, {"record": "r" * 4096})
    assert cache.cached_bytes <= correlator.MAX_CACHED_BYTES
    assert 500 < len(cache) < 1000
