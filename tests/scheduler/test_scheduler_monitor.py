"""The monitor reports a late pod at each check, and forgets pods that were never tried."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from koord.scheduler.scheduler_monitor import SchedulerMonitor, SchedulerMonitorSettings, SchedulingTimeout
from koord.telemetry.clock import LoopClock, run_virtual

SETTINGS = SchedulerMonitorSettings(period_s=10, timeout_s=30, drop_unhandled_s=5)


def watched() -> tuple[SchedulerMonitor, list[SchedulingTimeout]]:
    told: list[SchedulingTimeout] = []
    return SchedulerMonitor(told.append, SETTINGS), told


def test_a_late_pod_is_told_at_every_look_and_at_its_end() -> None:
    monitor, told = watched()
    monitor.dequeued("u", "ns/p", "prof", 2, 0.0)
    monitor.started("u", 1.0)
    monitor.check(31.0)
    assert told == []
    monitor.check(31.5)
    monitor.check(41.5)
    monitor.completed("u", 61.0)
    monitor.completed("u", 62.0)
    assert [late.took_s for late in told] == [30.5, 40.5, 60.0]
    assert str(told[-1]) == "!!!CRITICAL TIMEOUT!!! scheduling pod ns/p(u) took longer (1m0s) than the timeout 30s"
    assert len(monitor) == 0


def test_a_pod_that_was_never_tried_is_dropped() -> None:
    monitor, told = watched()
    monitor.dequeued("u", "ns/p", "prof", 1, 0.0)
    monitor.check(5.0)
    assert len(monitor) == 1
    monitor.check(5.1)
    monitor.started("u", 6.0)
    monitor.check(100.0)
    assert len(monitor) == 0
    assert told == []


def test_a_terminating_pod_is_not_watched() -> None:
    monitor, _ = watched()
    monitor.dequeued("u", "ns/p", "prof", 1, 0.0)
    monitor.dequeued("u", "ns/p", "prof", 2, 1.0, ending=True)
    assert len(monitor) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["dequeued", "started", "completed", "look"]))))
def test_nothing_is_watched_after_everything_completed(steps: list[tuple[str, str]]) -> None:
    monitor, _ = watched()
    for now, (uid, step) in enumerate(steps):
        if step == "dequeued":
            monitor.dequeued(uid, uid, "prof", 1, float(now))
        elif step == "look":
            monitor.check(float(now))
        else:
            getattr(monitor, step)(uid, float(now))
    for uid in "abc":
        monitor.completed(uid, 1000.0)
    assert len(monitor) == 0


def test_it_looks_once_a_period() -> None:
    async def main(clock: LoopClock) -> list[float]:
        told: list[SchedulingTimeout] = []
        monitor = SchedulerMonitor(told.append, SETTINGS)
        monitor.dequeued("u", "ns/p", "prof", 1, clock.monotonic())
        monitor.started("u", clock.monotonic())
        task = asyncio.create_task(monitor.run(clock))
        await clock.sleep(65)
        task.cancel()
        return [late.took_s for late in told]

    assert run_virtual(main) == [40.0, 50.0, 60.0]
