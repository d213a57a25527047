"""Controllers: what each outcome does to a key, and how failures are told. Limits that both rest on."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.kube.controller.controller import Controller, Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.rate_limit import JitteredBackoff, RateLimitedLog
from koord.telemetry.clock import LoopClock, ManualClock, run_virtual


def test_each_outcome_brings_the_key_back_when_it_says() -> None:
    async def story(clock: LoopClock) -> None:
        queue: WorkQueue[str] = WorkQueue(clock)
        script: list[ReconcileResult | Exception] = [
            Requeue(),
            Requeue(),
            RequeueAfter(30.0),
            ValueError("boom"),
            Requeue(),
            Done(),
        ]
        times: list[float] = []

        async def reconcile(key: str) -> ReconcileResult:
            assert key == "a"
            times.append(clock.monotonic())
            step = script.pop(0)
            if isinstance(step, Exception):
                raise step
            return step

        controller = Controller("test", queue, reconcile)
        running = asyncio.create_task(controller.run())
        queue.add("a")
        await asyncio.sleep(100)
        gaps = [round(after - before, 6) for before, after in pairwise(times)]
        assert gaps == [0.005, 0.01, 30.0, 0.005, 0.01], "a Retry starts the delays over"
        counts = controller.counts
        assert (counts.done, counts.requeued_after, counts.requeued, counts.failed) == (1, 1, 3, 1)
        assert queue.retries("a") == 0
        queue.shutdown()
        await running

    run_virtual(story)


def test_failures_are_logged_with_the_key_and_in_bounded_number(caplog: pytest.LogCaptureFixture) -> None:
    async def story(clock: LoopClock) -> None:
        queue: WorkQueue[str] = WorkQueue(clock)

        async def reconcile(key: str) -> ReconcileResult:
            raise ZeroDivisionError(key)

        controller = Controller("quota", queue, reconcile, workers=4)
        running = asyncio.create_task(controller.run())
        for number in range(100):
            queue.add(f"ns/q{number}")
        await asyncio.sleep(60)
        assert controller.counts.failed > 500
        queue.shutdown(drain=False)
        await running

    with caplog.at_level(logging.ERROR):
        run_virtual(story)
    assert 10 <= len(caplog.records) <= 20
    assert "quota: reconciling ns/q0 failed (failure 1 in a row)" in caplog.text
    assert "ZeroDivisionError: ns/q0" in caplog.text
    assert "more lines like this were left out" in caplog.text


def test_workers_run_side_by_side_and_end_with_their_controller() -> None:
    async def story(clock: LoopClock) -> None:
        queue: WorkQueue[int] = WorkQueue(clock)
        most = now = 0

        async def reconcile(key: int) -> ReconcileResult:
            nonlocal most, now
            now += 1
            most = max(most, now)
            await asyncio.sleep(10)
            now -= 1
            return Done()

        running = asyncio.create_task(Controller("test", queue, reconcile, workers=3).run())
        for key in range(9):
            queue.add(key)
        await asyncio.sleep(15)
        assert most == 3
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1
        assert queue.working == 0, "a cancelled worker gives its key back"

    run_virtual(story)


@given(st.integers(0, 1000))
def test_backoff_doubles_to_its_ceiling_within_its_jitter_and_forgets(seed: int) -> None:
    clock = ManualClock(0.0)
    backoff = JitteredBackoff(clock, Random(seed))
    for floor in (0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0):
        assert floor <= backoff.next() <= 2 * floor
    clock.advance(121)
    assert backoff.next() <= 1.6
    backoff.next()
    backoff.reset()
    assert backoff.next() <= 1.6


def test_a_quiet_log_says_how_much_it_left_out(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0.0)
    quiet = RateLimitedLog(logging.getLogger("test"), clock, every_s=30, burst=2)
    for number in range(10):
        quiet.warning("line %d", number)
    clock.advance(31)
    quiet.warning("line %d", 10)
    assert [record.getMessage() for record in caplog.records] == [
        "line 0",
        "line 1",
        "line 10 (8 more lines like this were left out)",
    ]
