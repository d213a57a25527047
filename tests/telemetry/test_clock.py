"""Virtual time costs nothing to wait for, keeps order, and waits for threads."""

from __future__ import annotations

import asyncio
import time

from koord.telemetry.clock import VIRTUAL_EPOCH, LoopClock, ManualClock, now, run_virtual


def test_a_virtual_day_passes_at_once() -> None:
    async def main(clock: LoopClock) -> float:
        await clock.sleep(86_400)
        return clock.time()

    started = time.monotonic()
    assert run_virtual(main) == VIRTUAL_EPOCH + 86_400
    assert time.monotonic() - started < 60  # a day would show


def test_timers_fire_in_time_order_however_they_were_started() -> None:
    async def main(clock: LoopClock) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def note(name: str, after: float) -> None:
            await clock.sleep(after)
            seen.append((name, clock.monotonic()))

        async with asyncio.TaskGroup() as group:
            for name, after in (("late", 30.0), ("first", 0.5), ("middle", 2.0)):
                group.create_task(note(name, after))
        return seen

    assert [name for name, _ in run_virtual(main)] == ["first", "middle", "late"]


def test_virtual_time_waits_for_a_thread() -> None:
    async def main(clock: LoopClock) -> tuple[bool, float]:
        sleeper = asyncio.create_task(clock.sleep(3600))
        await asyncio.to_thread(time.sleep, 0.02)
        early = not sleeper.done()
        await sleeper
        return early, clock.monotonic()

    early, at = run_virtual(main)
    assert early
    assert at == 3600


def test_two_runs_are_the_same() -> None:
    async def main(clock: LoopClock) -> list[float]:
        return [await _tick(clock, i) for i in range(50)]

    async def _tick(clock: LoopClock, i: int) -> float:
        await asyncio.gather(*(clock.sleep(i / (j + 1)) for j in range(5)))
        return clock.time()

    assert run_virtual(main) == run_virtual(main)


async def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock()
    before = now(clock)
    clock.advance(1.5)
    await clock.sleep(0.5)
    assert (now(clock) - before).total_seconds() == 2.0
