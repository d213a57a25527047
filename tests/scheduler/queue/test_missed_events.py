"""Each in-flight pod sees just the events since it was popped, and nothing is recorded for nobody."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.framework.event import ADD, Event, Happened
from koord.scheduler.queue.entry import QueuedPod
from koord.scheduler.queue.flight import Flights
from tests.scheduler.queue.actors import pod

NAMES = [f"p{number}" for number in range(3)]
STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "note", "note", "deafen", "end"]), st.sampled_from(NAMES)),
    min_size=10,
    max_size=60,
)


@settings(deadline=None, max_examples=300)
@given(STEPS)
def test_like_a_list_of_its_own_for_each(steps: list[tuple[str, str]]) -> None:
    flights = Flights()
    own: dict[str, list[int]] = {}
    deaf: set[str] = set()
    for number, (step, name) in enumerate(steps):
        uid = f"uid-{name}"
        if step == "start" and uid not in own:
            flights.start(QueuedPod(pod(name), number, 0.0))
            own[uid] = []
        elif step == "note":
            flights.note(Happened(Event("Thing", ADD), None, number))
            for other in own.keys() - deaf:
                own[other].append(number)
        elif step == "deafen" and uid in own:
            flights.stop_listening(uid)
            deaf.add(uid)
            own[uid] = []
        elif step == "end":
            assert (flights.end(uid) is not None) is (uid in own)
            own.pop(uid, None)
            deaf.discard(uid)
        for other, numbers in own.items():
            flight = flights.get(other)
            assert flight is not None
            assert [happened.new for happened in flights.missed(flight)] == numbers
        assert len(flights) == len(own)
        if own.keys() == deaf:
            assert flights.labels() == {}


def test_landing_in_order_keeps_the_log_short() -> None:
    flights = Flights()
    flights.start(QueuedPod(pod("even"), 0, 0.0))
    for _ in range(1_000):
        for starts, lands in (("odd", "even"), ("even", "odd")):
            flights.note(Happened(Event("Thing", ADD)))
            flights.start(QueuedPod(pod(starts), 0, 0.0))
            flights.end(f"uid-{lands}")
    assert flights.labels() == {"PodPopped": 1}
