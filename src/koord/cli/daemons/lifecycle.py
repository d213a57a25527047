"""This module is the lifecycle of a program around its own work: command line, log flags, event loop, signals,
exit codes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from koord.cli.daemons.flag_set import (
    BOOLEAN,
    DURATION,
    LEVEL,
    MODULES,
    TEXT,
    Flag,
    FlagParseError,
    FlagSet,
    FlagValues,
)
from koord.telemetry.logs import JSON, Logs
from koord.telemetry.logs import TEXT as TEXT_FORMAT
from koord.telemetry.process import freeze_imports, map_large_blocks
from koord.values.go_format import quoted
from koord.version import build_info

_AT_ONCE = "every line is written at once, to standard error"
_STDERR = "the log always goes to standard error"

LOGGING_FLAGS = (
    Flag("log-flush-frequency", DURATION, "Longest time between log flushes", 5_000_000_000, no_effect_reason=_AT_ONCE),
    Flag("log-json-info-buffer-size", TEXT, "Buffer of JSON information lines", "0", no_effect_reason=_AT_ONCE),
    Flag("log-json-split-stream", BOOLEAN, "JSON: errors to stderr, the rest to stdout", no_effect_reason=_AT_ONCE),
    Flag("log-text-info-buffer-size", TEXT, "Buffer of text information lines", "0", no_effect_reason=_AT_ONCE),
    Flag("log-text-split-stream", BOOLEAN, "Text: errors to stderr, the rest to stdout", no_effect_reason=_AT_ONCE),
    Flag("logging-format", TEXT, 'Sets the log format. Permitted formats: "json", "text".', TEXT_FORMAT),
    Flag("v", LEVEL, "number for the log level verbosity: 5 and above show debug lines", short="v"),
    Flag("vmodule", MODULES, "comma-separated list of pattern=N settings for file-filtered logging"),
)


# Of an older klog; charts pass some of them.
OLD_KLOG_FLAGS = tuple(
    Flag(name, kind, help, default, no_effect_reason=_STDERR)
    for name, kind, help, default in (
        ("logtostderr", BOOLEAN, "Log to standard error", True),
        ("alsologtostderr", BOOLEAN, "Log to standard error as well", None),
        ("stderrthreshold", TEXT, "Level at and above which lines go to standard error", "2"),
        ("log-dir", TEXT, "Folder of log files", None),
        ("log-file", TEXT, "Log file", None),
        ("log-file-max-size", TEXT, "Size of the log file in MB", "1800"),
        ("log-backtrace-at", TEXT, "Line at which a trace is logged", ":0"),
        ("one-output", BOOLEAN, "Write a line to one file only", None),
        ("add-dir-header", BOOLEAN, "Add the folder to lines", None),
        ("skip-headers", BOOLEAN, "Leave headers out", None),
        ("skip-log-headers", BOOLEAN, "Leave file headers out", None),
    )
)


def logs_from_flags(values: FlagValues) -> Logs | str:
    """Return the log that the flags ask for, or what is wrong with them."""
    form = values.text("logging-format")
    if form not in (TEXT_FORMAT, JSON):
        return f'format: Invalid value: "{form}": Unsupported log format'
    return Logs(format=form, verbosity=values.number("v"), modules=values.mapping("vmodule"))


def set_verbosity(logs: Logs, text: str) -> str:
    """Set the level from the body of PUT /debug/flags/v; raise ValueError in Go's words."""
    level = LEVEL.parse(text)
    logs.set_verbosity(level)
    return f"successfully set klog.logging.verbosity to {level}"


ProgramMain = Callable[[FlagValues, Logs], int]


def run_program(flags: FlagSet, argv: Sequence[str], work: ProgramMain) -> int:
    """Parse the command line, answer --help and --version, run `work` with the log on, and return the exit code."""
    values = flags.parse(argv)
    if isinstance(values, FlagParseError):
        print(f"Error: {values.message} (see {flags.program} --help)", file=sys.stderr)
        return 1
    if values.switch("help"):
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        return _print_answer(flags.help(width))
    if (version := values.text("version")) in ("true", "raw"):  # another text only changes what would be reported
        return _print_answer(f"{_version_text(flags.program, version)}\n")
    logs = logs_from_flags(values)
    if isinstance(logs, str):
        print(logs, file=sys.stderr)
        return 1
    logs.start()
    freeze_imports()
    try:
        return work(values, logs)
    finally:
        logs.stop()


def _print_answer(text: str) -> int:
    """Print to whoever listens, and return the exit code: 1 when a pipe's reader has gone."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer has nowhere to go
        return 1
    return 0


def report_errors(program: str, lines: Sequence[str]) -> int:
    """Print what is wrong, a line each, and return the exit code."""
    for line in lines:
        print(f"{program}: {line}", file=sys.stderr)
    return 1


def run_event_loop(main: Callable[[asyncio.Event], Coroutine[Any, Any, int]]) -> int:
    """Run `main` on the fastest loop there is. SIGTERM and SIGINT set the event; a second one ends it at once."""
    map_large_blocks()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return runner.run(_with_signals(main))


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
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


def _version_text(program: str, asked: str) -> str:
    info = build_info()
    if asked != "raw":
        return f"{program} v{info}"
    fields = {
        "Program": program,
        "Version": f"v{info.version}",
        "GitCommit": info.commit,
        "GitTreeState": info.tree_state,
        "BuildDate": info.date,
        "Python": ".".join(map(str, sys.version_info[:3])),
    }
    return f"version.Info{{{', '.join(f'{name}:{quoted(value)}' for name, value in fields.items())}}}"
