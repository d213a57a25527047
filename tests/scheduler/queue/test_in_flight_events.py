"""Each in-flight pod sees just the events since it was popped, and nothing is recorded for nobody."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.framework.cluster_event import ADD, ClusterEvent, ObjectEvent
from koord.scheduler.queue.queued_pod import InFlightPods, QueuedPod
from tests.scheduler.queue.fake_plugins import pod

NAMES = [f"p{number}" for number in range(3)]
STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "note", "note", "deafen", "end"]), st.sampled_from(NAMES)),
    min_size=10,
    max_size=60,
)


@settings(deadline=None, max_examples=300)
@given(STEPS)
def test_like_a_list_of_its_own_for_each(steps: list[tuple[str, str]]) -> None:
    flights = InFlightPods()
    own: dict[str, list[int]] = {}
    deaf: set[str] = set()
    for number, (step, name) in enumerate(steps):
        uid = f"uid-{name}"
        if step == "start" and uid not in own:
            flights.start(QueuedPod(pod(name), number, 0.0))
            own[uid] = []
        elif step == "note":
            flights.record_event(ObjectEvent(ClusterEvent("Thing", ADD), None, number))
            for other in own.keys() - deaf:
                own[other].append(number)
        elif step == "deafen" and uid in own:
            flights.stop_recording(uid)
            deaf.add(uid)
            own[uid] = []
        elif step == "end":
            assert (flights.end(uid) is not None) is (uid in own)
            own.pop(uid, None)
            deaf.discard(uid)
        for other, numbers in own.items():
            flight = flights.get(other)
            assert flight is not None
            assert [object_event.new for object_event in flights.events_since_start(flight)] == numbers
        assert len(flights) == len(own)
        if own.keys() == deaf:
            assert flights.event_counts() == {}


def test_landing_in_order_keeps_the_log_short() -> None:
    flights = InFlightPods()
    flights.start(QueuedPod(pod("even"), 0, 0.0))
    for _ in range(1_000):
        for starts, lands in (("odd", "even"), ("even", "odd")):
            flights.record_event(ObjectEvent(ClusterEvent("Thing", ADD)))
            flights.start(QueuedPod(pod(starts), 0, 0.0))
            flights.end(f"uid-{lands}")
    assert flights.event_counts() == {"PodPopped": 1}
