"""Work in steps: others run in between, what took long is known, and cancellation ends it between two steps."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from koord.koordlet.control_loop import run_steps_cooperatively
from koord.koordlet.strategies.strategy import WorkSteps, run_steps, timed_steps


def three(log: list[str]) -> WorkSteps[int]:
    try:
        for number in range(3):
            log.append(f"step {number}")
            yield
        return 42
    finally:
        log.append("end")


def test_all_steps_at_once() -> None:
    log: list[str] = []
    assert run_steps(three(log)) == 42
    assert log == ["step 0", "step 1", "step 2", "end"]


def test_others_run_between_two_steps() -> None:
    log: list[str] = []

    async def other() -> None:
        for number in range(3):
            log.append(f"other {number}")
            await asyncio.sleep(0)

    async def main() -> int:
        task = asyncio.create_task(other())
        result = await run_steps_cooperatively(three(log))
        await task
        return result

    assert asyncio.run(main()) == 42
    assert log == ["step 0", "other 0", "step 1", "other 1", "step 2", "other 2", "end"]


def test_cancelled_it_ends_between_two_steps_and_cleans_up() -> None:
    log: list[str] = []

    async def main() -> None:
        task = asyncio.create_task(run_steps_cooperatively(three(log)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log == ["step 0", "end"]

    asyncio.run(main())


def test_only_the_steps_themselves_are_timed() -> None:
    """The timer moves by one with each look; what lies between two steps has no look."""
    ticks = count()
    steps = timed_steps(three([]), lambda: float(next(ticks)))
    result, seconds = run_steps(steps)
    assert (result, seconds) == (42, 4.0)
