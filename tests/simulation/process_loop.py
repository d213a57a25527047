"""A virtual event loop that runs several processes: each can be killed or stopped at any of its steps.

A step is one callback of a process: what a coroutine does between two awaits. A process that is killed never runs
again, whatever it awaited; one that is stopped goes on where it was, later, while time has passed.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from koord.telemetry.clock import LoopClock, VirtualLoop

T = TypeVar("T")

_CURRENT: contextvars.ContextVar[SimulatedProcess | None] = contextvars.ContextVar("process", default=None)


class SimulatedProcess:
    """One process on the loop: every task that its first task makes, and they make, belongs to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = 0
        self.stop_at = 0  # the step before which it is stopped; 0: never
        self.kill_at = 0
        self.stopped = False
        self.killed = False
        self.tasks: dict[asyncio.Task[Any], None] = {}  # in the order of starting
        self._held: list[asyncio.Handle] = []
        self._context = contextvars.copy_context()
        self._context.run(_CURRENT.set, self)
        self.on_killed: Callable[[], None] = lambda: None
        self.on_stopped: Callable[[], None] = lambda: None

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(work, name=self.name, context=self._context.copy())

    def admit(self, handle: asyncio.Handle) -> bool:
        """Count a step and return whether it runs now."""
        if self.killed:
            return False
        self.steps += 1
        if self.steps == self.kill_at:
            self.killed = True
            self.on_killed()
            return False
        if self.steps == self.stop_at:
            self.stopped = True
            self.on_stopped()
        if self.stopped:
            self._held.append(handle)
            return False
        return True

    def resume(self) -> None:
        """Go on after a stop with everything that became runnable meanwhile."""
        self.stopped = False
        held, self._held = self._held, []
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        if not self.killed:
            loop.run_handles(held)

    def bury(self) -> None:
        """Drop the coroutines of a killed process. It can reach nobody any more, so its clean-up changes nothing."""
        self._held.clear()
        while self.tasks:  # clean-up may start more of them
            task, _ = self.tasks.popitem()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            self._context.copy().run(_close, task)
            asyncio.tasks._unregister_task(task)  # it never ends: nobody may wait for it


class ProcessLoop(VirtualLoop):
    def __init__(self) -> None:
        super().__init__()
        self.set_task_factory(_make_task)
        self.steps = 0

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        process = _CURRENT.get() if context is None else context.get(_CURRENT)
        self.steps += 1
        if process is None:
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        if process.admit(handle):
            self.run_handles([handle])
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        process = _CURRENT.get() if context is None else context.get(_CURRENT)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, _timer_due, process, callback, args, context=context)

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """Drop a generator that nobody iterates any more: those of killed processes must not run again."""
        self._asyncgens.discard(agen)  # type: ignore[attr-defined]

    def run_handles(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)  # type: ignore[attr-defined]


def _close(task: asyncio.Task[Any]) -> None:
    """End a coroutine at whatever await it is, then at each await of its clean-up."""
    coroutine = task.get_coro()
    try:
        for _ in range(100):  # a task group waits for its tasks whatever else is thrown
            coroutine.throw(asyncio.CancelledError())
            coroutine.throw(GeneratorExit())
    except BaseException:  # noqa: BLE001 - whatever it says when it ends, nobody is left to hear it
        return


def _timer_due(process: SimulatedProcess, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
    loop = asyncio.get_running_loop()
    if process.stopped:
        process.admit(asyncio.Handle(callback, args, loop, contextvars.copy_context()))
    elif not process.killed:
        callback(*args)


def _make_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    context = options.get("context")
    process = _CURRENT.get() if context is None else context.get(_CURRENT)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(lambda ended: process.tasks.pop(ended, None))
    return task


def outside(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start work that belongs to no process: what is on the wire, or in the server, goes on when its caller dies."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


def run_processes(main: Callable[[LoopClock], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, ProcessLoop)
        return runner.run(main(LoopClock(loop)))
