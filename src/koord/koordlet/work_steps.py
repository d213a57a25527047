"""Work in steps: a generator that yields wherever other tasks of the same event loop may run in between.

What must not be divided lies between two yields. The same generator serves a caller that waits for all of it, as a
simulated node does, and the agent (`cooperative_task`), whose runtime expects answers meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
WorkSteps: TypeAlias = Generator[None, None, T]


def run_steps(steps: WorkSteps[T]) -> T:
    """Run all steps at once and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def timed_steps(steps: WorkSteps[T], timer: Callable[[], float]) -> WorkSteps[tuple[T, float]]:
    """Return the result and the seconds that the steps took themselves, without what ran in between."""
    seconds = 0.0
    while True:
        began = timer()
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result, seconds + timer() - began
        seconds += timer() - began
        yield
