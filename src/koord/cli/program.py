"""This module is the lifecycle of a program around its own work: its command line, its log, its loop, signals,
exit codes.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from koord import __version__
from koord.cli.flags import BadCommand, FlagSet, Values
from koord.cli.flags_logging import logs_of
from koord.telemetry import collector
from koord.telemetry.logs import Logs

Work = Callable[[Values, Logs], int]


def run(flags: FlagSet, argv: Sequence[str], work: Work) -> int:
    """Parse the command line, answer --help and --version, run `work` with the log on, and return the exit code."""
    values = flags.read(argv)
    if isinstance(values, BadCommand):
        print(f"Error: {values.message} (see {flags.program} --help)", file=sys.stderr)
        return 1
    if values.switch("help"):
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        print(flags.help(width), end="")
        return 0
    if (version := values.text("version")) in ("true", "raw"):  # another text only changes what would be reported
        print(_version(flags.program, version))
        return 0
    logs = logs_of(values)
    if isinstance(logs, str):
        print(logs, file=sys.stderr)
        return 1
    logs.start()
    try:
        return work(values, logs)
    finally:
        logs.stop()


def refuse(program: str, lines: Sequence[str]) -> int:
    """Print what is wrong, a line each, and return the exit code."""
    for line in lines:
        print(f"{program}: {line}", file=sys.stderr)
    return 1


def run_loop(main: Callable[[asyncio.Event], Coroutine[Any, Any, int]]) -> int:
    """Run `main` on the fastest loop there is. SIGTERM and SIGINT set the event; a second one ends it at once."""
    collector.relax()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_with_signals(main))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory where it is installed: its TLS costs half of the standard loop's."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _with_signals(main: Callable[[asyncio.Event], Coroutine[Any, Any, int]]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    def asked() -> None:
        if stop.is_set() and task is not None:
            task.cancel("asked to end twice")
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    try:
        return await main(stop)
    except asyncio.CancelledError:
        return 1
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _version(program: str, asked: str) -> str:
    if asked == "raw":
        python = ".".join(map(str, sys.version_info[:3]))
        return f'version.Info{{Program:"{program}", Version:"v{__version__}", Python:"{python}"}}'
    return f"{program} v{__version__}"
