"""This module is `koord up --demo`: a day of co-location in minutes, shown as it happens."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from koord.cli.cluster_access import fail
from koord.telemetry.clock import LoopClock, run_virtual
from koord.telemetry.process import relax_gc

if TYPE_CHECKING:
    from koord.cli.up.demo_cluster import DemoCluster
    from koord.cli.up.demo_view import DemoView

COLOCATION = "colocation"
YARN = "yarn"
# In the order of `--help`; the stories, which are slow to load, are in demo_stories.py and demo_yarn.py.
DEMOS = (COLOCATION, "gang", "quota", "gpu", "migration", "preemption", YARN)
DEFAULT_SEED = 1
DEFAULT_NODES = 20
REFRESH_S = 0.25
JSON_LINE_INTERVAL_S = 600.0  # of virtual time between two lines of JSON


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """DemoOptions: `speed` is how many virtual seconds pass in a second at most; None is as many as the machine can."""

    hours: float = 24.0
    speed: float | None = None
    nodes: int = DEFAULT_NODES
    seed: int = DEFAULT_SEED
    output: str = "table"
    screenshot: Path | None = None


class VirtualTimePacer:
    """VirtualTimePacer keeps virtual time from running ahead of `speed`; behind, it runs as fast as it can."""

    def __init__(self, speed: float | None, clock: LoopClock) -> None:
        self._speed = speed
        self._clock = clock
        self._virtual = clock.monotonic()
        self._wall = time.monotonic()

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self._wall

    def throttle(self) -> None:
        if self._speed is not None:
            ahead = (self._clock.monotonic() - self._virtual) / self._speed - self.wall_s
            if ahead > 0:
                time.sleep(ahead)


def run_demo(options: DemoOptions) -> None:
    show = _json_output() if options.output == "json" else _screen_output(options)
    show.close(play_demo(options, show.step))


def play_demo(options: DemoOptions, step: Callable[[DemoView], None] = lambda view: None) -> DemoView | None:
    """Play the whole run; `step` is called with every round. Return the last view, or None when there was none."""
    relax_gc()
    return run_virtual(lambda clock: _play(clock, options, step))


class _DemoOutput:
    """_DemoOutput shows a run: `step` after every round, `close` with the last view."""

    def __init__(self, step: Callable[[DemoView], None], close: Callable[[DemoView | None], None]) -> None:
        self.step = step
        self.close = close


def _json_output() -> _DemoOutput:
    from koord.cli.up.demo_view import json_line

    due: list[float] = []

    def step(view: DemoView) -> None:
        if not due or view.state.at_s >= due[0]:
            due[:] = [view.state.at_s + JSON_LINE_INTERVAL_S]
            click.echo(json.dumps(json_line(view)))

    def close(view: DemoView | None) -> None:
        if view is not None:
            click.echo(json.dumps({"summary": msgspec.to_builtins(view.summary)}))

    return _DemoOutput(step, close)


def _screen_output(options: DemoOptions) -> _DemoOutput:
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        fail("the demonstration needs the package rich (pip install rich); -o json works without it")
    from koord.cli.up.demo_picture import WIDTH, render_summary, render_view

    console = Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else WIDTH)
    if console.is_terminal and console.width < WIDTH:
        fail(f"the picture is {WIDTH} columns wide and this terminal has {console.width}; widen it, or use -o json")
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    drawn: list[float] = []

    def step(view: DemoView) -> None:
        at = time.monotonic()
        if live is not None and (not drawn or at - drawn[0] >= REFRESH_S):
            if not drawn:
                live.start()
            drawn[:] = [at]
            live.update(render_view(view, console.height), refresh=True)

    def close(view: DemoView | None) -> None:
        if live is not None and drawn:
            live.stop()
        if view is None:
            return
        console.print(render_view(view))
        console.print(render_summary(view.summary))
        if options.screenshot is not None:
            _save(options.screenshot, view)

    return _DemoOutput(step, close)


def _save(path: Path, view: DemoView) -> None:
    from rich.console import Console

    from koord.cli.up.demo_picture import WIDTH, render_summary, render_view

    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False
    )
    console.print(render_view(view))
    console.print(render_summary(view.summary))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_without_fetches(console.export_svg(title="koord up --demo colocation")))
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")


def _without_fetches(svg: str) -> str:
    """Remove the font that Rich lets the picture load from the network; viewers have a monospaced one."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


async def _play(clock: LoopClock, options: DemoOptions, show: Callable[[DemoView], None]) -> DemoView | None:
    from koord.cli.up.demo_cluster import DemoCluster
    from koord.cli.up.demo_view import DemoJobCounts, build_view

    pace = VirtualTimePacer(options.speed, clock)
    started_s = clock.time()
    last: list[DemoView] = []
    reader_gone: list[BrokenPipeError] = []
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    def on_round() -> None:
        submitter = demo.submitter
        jobs = DemoJobCounts(
            submitted=submitter.submitted,
            done=submitter.done,
            failed=submitter.failed,
            running=submitter.running,
            waiting=submitter.waiting,
        )
        evictions = demo.agents.ledger.records()
        view = build_view(
            demo.observation, jobs, evictions, started_s=started_s, wall_s=pace.wall_s, cpu_s=time.process_time()
        )
        if view is not None:
            last[:] = [view]
            try:
                show(view)
            except BrokenPipeError as error:  # not the agents' fault, whose task this is
                reader_gone.append(error)
                stopped.set()
        pace.throttle()

    demo: DemoCluster = DemoCluster(clock, seed=options.seed, nodes=options.nodes, on_round=on_round)
    await demo.start()
    try:
        await _wait_for_end(clock, options.hours * 3600, stopped)
    finally:
        await demo.stop()
    if reader_gone:
        raise reader_gone[0]
    return last[0] if last else None


async def _wait_for_end(clock: LoopClock, seconds: float, stopped: asyncio.Event) -> None:
    """Wait for the end of the run, or the user's Ctrl-C."""
    wait: asyncio.Task[Any] = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({wait}, timeout=seconds)
    finally:
        wait.cancel()
