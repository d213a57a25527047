"""The heap returns what a sorted list would, whatever is replaced or removed on the way."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.queue.backoff import KeyedHeap

NAMES = st.sampled_from([f"p{i}" for i in range(8)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), NAMES, st.integers(0, 3)),
        st.tuples(st.just("remove"), NAMES, st.just(0)),
        st.tuples(st.just("pop"), st.just(""), st.just(0)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_behaves_like_a_sorted_list(steps: list[tuple[str, str, int]]) -> None:
    heap: KeyedHeap[str] = KeyedHeap()
    model: dict[str, tuple[int, int]] = {}
    for order, (step, name, key) in enumerate(steps):
        if step == "push":
            heap.push(name, key, name)
            model[name] = (key, order)
        elif step == "remove":
            assert heap.remove(name) is (model.pop(name, None) is not None)
        else:
            expected = min(model, key=model.__getitem__, default=None)
            assert heap.peek() == expected
            assert heap.pop() == expected
            model.pop(expected or "", None)
        assert len(heap) == len(model)
        assert list(heap) == sorted(model, key=model.__getitem__)
        assert all((name in heap) is (name in model) for name in ("p0", "p7"))


def test_dead_entries_do_not_pile_up() -> None:
    heap: KeyedHeap[int] = KeyedHeap()
    for round_ in range(10_000):
        heap.push("same", round_, round_)
    assert len(heap._entries) < 100
    assert heap.pop() == 9_999
