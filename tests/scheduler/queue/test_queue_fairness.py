"""Nobody starves: pods that keep failing, however important, do not keep others from being tried. And runs repeat."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.queue.fake_plugins import QueuePlugins, node_added, pod, pod_gone

FIT = frozenset({"Fit"})
ATTEMPT_S = 0.25

# priority, how often it fails before it fits (None: it never does), and whether by error rather than by refusal
fates = st.lists(
    st.tuples(st.integers(-2, 2), st.one_of(st.none(), st.integers(0, 4)), st.booleans()), min_size=1, max_size=20
)
Fate = tuple[int, int | None, bool]


def run(pods: list[Fate], pops: int) -> tuple[list[str], set[str]]:
    """Try pods for a while, with an event that gives everyone hope in the middle of each attempt."""
    queue = SchedulingQueue(QueuePlugins().profiles)
    now = 0.0
    for number, (priority, _, _) in enumerate(pods):
        queue.add(pod(str(number), priority=priority), now)
    order: list[str] = []
    bound: set[str] = set()
    while len(order) < pops and len(queue):
        queued = queue.pop(now)
        if queued is None:
            wakeup = queue.next_wakeup()
            assert wakeup is not None, "somebody waits, and nothing will ever wake him"
            now = wakeup
            continue
        now += ATTEMPT_S
        order.append(queued.pod.name)
        queue.on_event(pod_gone(), now)
        _, failures, by_error = pods[int(queued.pod.name)]
        if failures is not None and queued.attempts > failures:
            bound.add(queued.pod.name)
            queue.done(queued.uid)
        else:
            queue.attempt_failed(queued, now, rejected=frozenset() if by_error else FIT)
    return order, bound


@settings(deadline=None, max_examples=50)
@given(fates)
def test_every_pod_that_fits_in_the_end_is_bound(pods: list[Fate]) -> None:
    _, bound = run(pods, pops=600)
    assert bound == {str(number) for number, (_, failures, _) in enumerate(pods) if failures is not None}


@settings(deadline=None, max_examples=50)
@given(fates)
def test_everyone_is_tried_before_anyone_less_urgent_is_tried_twice(pods: list[Fate]) -> None:
    order, _ = run(pods, pops=len(pods))
    tried: set[str] = set()
    for name in order:
        if name in tried:
            waiting = [p for number, (p, _, _) in enumerate(pods) if str(number) not in tried]
            assert all(priority < pods[int(name)][0] for priority in waiting)
        tried.add(name)


@settings(deadline=None, max_examples=50)
@given(fates)
def test_equal_pods_are_first_tried_in_the_order_of_their_coming(pods: list[Fate]) -> None:
    order, _ = run(pods, pops=600)
    first = list(dict.fromkeys(order))
    for priority in {priority for priority, _, _ in pods}:
        numbers = [int(name) for name in first if pods[int(name)][0] == priority]
        assert numbers == sorted(numbers)


@settings(deadline=None, max_examples=50)
@given(fates)
def test_the_same_story_twice_has_the_same_order(pods: list[Fate]) -> None:
    assert run(pods, pops=200) == run(pods, pops=200)


def test_a_crowd_that_is_woken_is_tried_by_priority_then_by_last_failure() -> None:
    queue = SchedulingQueue(QueuePlugins().profiles)
    for number in range(30):
        queue.add(pod(f"{number:02}", priority=number % 3), 0.0)
    for now in range(30):
        queued = queue.pop(float(now))
        assert queued is not None
        queue.attempt_failed(queued, float(now), rejected=FIT)
    assert queue.on_event(node_added(cpu="4"), 100.0) == 30
    again = [queued.pod.name for _ in range(30) if (queued := queue.pop(100.0))]
    assert again == sorted(again, key=lambda name: (-(int(name) % 3), name))
