"""Run work in steps as a task of the event loop: one step in each turn of the loop."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from koord.koordlet.work_steps import WorkSteps

T = TypeVar("T")


async def run_steps_cooperatively(steps: WorkSteps[T]) -> T:
    """Run one step in each turn of the event loop and return the result; cancellation ends it between two steps."""
    try:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await asyncio.sleep(0)
    finally:
        steps.close()
