"""This module is the lifecycle of a program around its own work: command line, log flags, event loop, signals,
exit codes.
"""

from __future__ import annotations

from koord.cli.flag_kind import BOOLEAN, DURATION, LEVEL, MODULES, TEXT
from koord.cli.flags import Flag, Values
from koord.telemetry.logs import JSON, Logs
from koord.telemetry.logs import TEXT as TEXT_FORMAT

_AT_ONCE = "every line is written at once, to standard error"

LOGGING = (
    Flag("log-flush-frequency", DURATION, "Longest time between log flushes", 5_000_000_000, unused=_AT_ONCE),
    Flag("log-json-info-buffer-size", TEXT, "Buffer of JSON information lines", "0", unused=_AT_ONCE),
    Flag("log-json-split-stream", BOOLEAN, "JSON: errors to stderr, the rest to stdout", unused=_AT_ONCE),
    Flag("log-text-info-buffer-size", TEXT, "Buffer of text information lines", "0", unused=_AT_ONCE),
    Flag("log-text-split-stream", BOOLEAN, "Text: errors to stderr, the rest to stdout", unused=_AT_ONCE),
    Flag("logging-format", TEXT, 'Sets the log format. Permitted formats: "json", "text".', TEXT_FORMAT),
    Flag("v", LEVEL, "number for the log level verbosity: 5 and above show debug lines", short="v"),
    Flag("vmodule", MODULES, "comma-separated list of pattern=N settings for file-filtered logging"),
)


def logs_of(values: Values) -> Logs | str:
    """Return the log that the flags ask for, or what is wrong with them."""
    form = values.text("logging-format")
    if form not in (TEXT_FORMAT, JSON):
        return f'format: Invalid value: "{form}": Unsupported log format'
    return Logs(format=form, verbosity=values.number("v"), modules=values.mapping("vmodule"))


def verbosity(logs: Logs, text: str) -> str:
    """Set the level from the body of PUT /debug/flags/v; raise ValueError in Go's words."""
    level = LEVEL.read(text)
    logs.set_verbosity(level)
    return f"successfully set klog.logging.verbosity to {level}"
