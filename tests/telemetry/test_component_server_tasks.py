"""The dump at /debug/tasks shows the tasks of a process."""

from __future__ import annotations

import asyncio

from koord.telemetry.component_server import dump_tasks


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def test_tasks_at_one_place_are_told_once() -> None:
    waiting = [asyncio.create_task(wait_for_ever(), name=f"waiter-{n}") for n in range(7)]
    await asyncio.sleep(0)
    told = dump_tasks()
    assert told.count("await asyncio.Event().wait()") == 1
    assert "7 at this place: waiter-0, waiter-1, waiter-2, waiter-3, waiter-4, ..." in told
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
