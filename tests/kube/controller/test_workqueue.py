"""The queue against a plain model, and its promises one by one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.kube.controller.controller import WorkQueue
from koord.telemetry.clock import LoopClock, run_virtual

keys = st.sampled_from("abcd")
steps = st.one_of(
    st.tuples(st.just("add"), keys),
    st.tuples(st.just("later"), keys, st.sampled_from([0.0, 0.5, 1.0, 2.5])),
    st.tuples(st.just("get")),
    st.tuples(st.just("done"), keys),
    st.tuples(st.just("wait"), st.sampled_from([0.25, 1.0, 5.0])),
)


class Model:
    """What should be: lists and a linear search."""

    def __init__(self) -> None:
        self.ready: list[str] = []
        self.working: set[str] = set()
        self.again: list[str] = []
        self.later: dict[str, tuple[float, int]] = {}
        self.moment = 0.0
        self.order = 0

    def add(self, key: str) -> None:
        if key in self.working:
            if key not in self.again:
                self.again.append(key)
        elif key not in self.ready:
            self.ready.append(key)

    def add_after(self, key: str, seconds: float) -> None:
        if seconds <= 0:
            self.add(key)
            return
        self.order += 1
        due = self.moment + seconds
        if key not in self.later or due < self.later[key][0]:
            self.later[key] = (due, self.order)

    def wait(self, seconds: float) -> None:
        self.moment += seconds
        for key, (due, _) in sorted(self.later.items(), key=lambda item: item[1]):
            if due <= self.moment:
                del self.later[key]
                self.add(key)

    def get(self) -> str:
        key = self.ready.pop(0)
        self.working.add(key)
        return key

    def done(self, key: str) -> None:
        self.working.remove(key)
        if key in self.again:
            self.again.remove(key)
            self.ready.append(key)


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=60))
def test_any_use_gives_what_the_model_gives(script: list[tuple[Any, ...]]) -> None:
    async def story(clock: LoopClock) -> None:
        queue: WorkQueue[str] = WorkQueue(clock)
        model = Model()
        for step in script:
            match step:
                case ("add", key):
                    queue.add(key)
                    model.add(key)
                case ("later", key, seconds):
                    queue.add_after(key, seconds)
                    model.add_after(key, seconds)
                case ("get",) if model.ready:
                    assert await queue.get() == model.get()
                case ("done", key) if key in model.working:
                    queue.done(key)
                    model.done(key)
                case ("wait", seconds):
                    await asyncio.sleep(seconds)
                    await asyncio.sleep(0)
                    model.wait(seconds)
            assert queue.depth == len(model.ready)
            assert queue.delayed == len(model.later)
            assert queue.working == len(model.working)
        queue.shutdown()
        left = []
        while (key := await queue.get()) is not None:
            left.append(key)
            queue.done(key)
        assert left[: len(model.ready)] == model.ready

    run_virtual(story)


def test_a_key_is_never_worked_on_twice_at_once_and_none_is_lost() -> None:
    async def story(clock: LoopClock) -> None:
        queue: WorkQueue[int] = WorkQueue(clock)
        busy: set[int] = set()
        worked: list[int] = []

        async def worker() -> None:
            while (key := await queue.get()) is not None:
                assert key not in busy
                busy.add(key)
                await asyncio.sleep(1)
                busy.remove(key)
                worked.append(key)
                queue.done(key)

        workers = [asyncio.create_task(worker()) for _ in range(3)]
        for turn in range(40):
            queue.add(turn % 4)
            await asyncio.sleep(0.3)
        await queue.wait_idle()
        assert set(worked) == {0, 1, 2, 3}
        assert queue.counts.taken == queue.counts.finished == len(worked)
        queue.shutdown()
        await asyncio.gather(*workers)

    run_virtual(story)


def test_a_worker_that_is_cancelled_passes_its_wake_up_on() -> None:
    async def story(clock: LoopClock) -> None:
        queue: WorkQueue[str] = WorkQueue(clock)
        first = asyncio.create_task(queue.get())
        second = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add("a")  # wakes the first
        first.cancel()
        await asyncio.sleep(1)
        assert second.done()
        assert second.result() == "a"
        third = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        third.cancel()
        queue.add("b")
        assert await queue.get() == "b"

    run_virtual(story)


def test_retries_wait_longer_each_time_until_forgotten() -> None:
    async def story(clock: LoopClock) -> None:
        queue: WorkQueue[str] = WorkQueue(clock)

        async def delay() -> float:
            before = clock.monotonic()
            queue.add_rate_limited("a")
            assert await queue.get() == "a"
            queue.done("a")
            return clock.monotonic() - before

        assert [round(await delay(), 6) for _ in range(4)] == [0.005, 0.01, 0.02, 0.04]
        assert queue.retries("a") == 4
        for _ in range(20):
            longest = await delay()
        assert longest == pytest.approx(1000)
        queue.forget("a")
        assert await delay() == pytest.approx(0.005)

    run_virtual(story)


def test_all_retries_together_are_limited_to_ten_a_second_after_a_burst() -> None:
    async def story(clock: LoopClock) -> None:
        queue: WorkQueue[int] = WorkQueue(clock)
        for key in range(200):
            queue.add_rate_limited(key)
        await asyncio.sleep(0.01)
        assert queue.depth == 100
        await asyncio.sleep(5)
        assert queue.depth == 150
        await asyncio.sleep(5)
        assert [await queue.get() for _ in range(200)] == list(range(200))

    run_virtual(story)


@pytest.mark.parametrize("drain", [True, False], ids=["drained", "dropped"])
def test_shutting_down(drain: bool) -> None:
    async def story(clock: LoopClock) -> None:
        queue: WorkQueue[str] = WorkQueue(clock)
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        queue.add("b")
        queue.add_after("c", 1)
        queue.shutdown(drain=drain)
        queue.add("d")
        assert await queue.get() == ("b" if drain else None)
        if drain:
            queue.done("b")
        idle = asyncio.create_task(queue.wait_idle())
        await asyncio.sleep(5)
        assert not idle.done(), "a is still being worked on"
        queue.done("a")
        if drain:
            assert await queue.get() == "a"
            queue.done("a")
        await idle
        assert await queue.get() is None

    run_virtual(story)


def test_waiting_workers_learn_of_the_end() -> None:
    async def story(clock: LoopClock) -> None:
        queue: WorkQueue[str] = WorkQueue(clock)
        waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(1)
        queue.shutdown()
        assert await asyncio.gather(*waiting) == [None, None, None]

    run_virtual(story)


def test_counts_say_how_long_keys_waited_and_were_worked_on() -> None:
    async def story(clock: LoopClock) -> None:
        queue: WorkQueue[str] = WorkQueue(clock)
        queue.add("a")
        queue.add("a")
        await asyncio.sleep(3)
        assert await queue.get() == "a"
        await asyncio.sleep(4)
        queue.done("a")
        counts = queue.counts
        assert (counts.adds, counts.taken, counts.finished) == (1, 1, 1)
        assert (counts.waited_s, counts.longest_wait_s, counts.worked_s) == (3, 3, 4)

    run_virtual(story)


def test_giving_back_what_was_not_taken_is_an_error() -> None:
    async def story(clock: LoopClock) -> None:
        queue: WorkQueue[str] = WorkQueue(clock, name="pods")
        with pytest.raises(KeyError, match="pods"):
            queue.done("a")

    run_virtual(story)
