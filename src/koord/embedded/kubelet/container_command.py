"""Read from a container's command how long it runs and how it ends, as far as simple commands say it. Pure.

`sleep 5m`, `sh -c "echo hello; sleep 60 && exit 3"` and `tail -f /dev/null` are understood; what any other program
would do is not known.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import msgspec

_SHELLS = frozenset(("sh", "bash", "ash", "dash"))
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_AT_ONCE = frozenset(("echo", "printf", "true", ":", "date", "hostname", "env", "pwd", "ls", "cat", "set"))
_ENDLESS = re.compile(r"\s*(while\s+(true|:|\[ 1 \])|until\s+false)\s*;?\s*do\b")


class CommandOutcome(msgspec.Struct, frozen=True):
    run_s: float | None  # None: until it is stopped
    exit_code: int = 0


def command_outcome(command: Sequence[str], args: Sequence[str]) -> CommandOutcome | None:
    """Return what the container does; None when its command does not tell."""
    argv = [*command, *args]
    if not argv:
        return None
    if argv[0].rpartition("/")[2] in _SHELLS and len(argv) >= 3 and re.fullmatch(r"-[eux]*c", argv[1]):
        return _script_outcome(argv[2])
    return _program_outcome(argv)


def _script_outcome(script: str) -> CommandOutcome | None:
    if _ENDLESS.match(script):
        return CommandOutcome(None)
    total_s, code = 0.0, 0
    lexer = shlex.shlex(script.replace("\n", ";"), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quote without its end: a shell would refuse it, or it is not one that we know
        return None
    statement: list[str] = []
    for word in (*words, ";"):
        if word not in (";", "&&"):
            if set(word) <= set(";&|<>()"):
                return None  # pipes, background jobs, alternatives
            statement.append(word)
            continue
        if statement and not (code and word == "&&"):
            outcome = _statement_outcome(statement)
            if outcome is None:
                return None
            if outcome.run_s is None or statement[0] in ("exit", "exec"):
                return CommandOutcome(None if outcome.run_s is None else total_s + outcome.run_s, outcome.exit_code)
            total_s, code = total_s + outcome.run_s, outcome.exit_code
            if code and word == "&&":
                return CommandOutcome(total_s, code)
        statement = []
    return CommandOutcome(total_s, code)


def _statement_outcome(words: list[str]) -> CommandOutcome | None:
    name, *rest = words
    if name == "exec" and rest:
        return _program_outcome(rest)
    if name == "exit":
        return CommandOutcome(0.0, int(rest[0]) % 256 if rest and rest[0].isdecimal() else 0)
    if any("$" in word or "`" in word for word in words) and name not in ("echo", "printf"):
        return None
    return CommandOutcome(0.0) if name in _AT_ONCE else _program_outcome(words)


def _program_outcome(argv: Sequence[str]) -> CommandOutcome | None:
    name, rest = argv[0].rpartition("/")[2], argv[1:]
    if name == "true":
        return CommandOutcome(0.0)
    if name == "false":
        return CommandOutcome(0.0, 1)
    if name == "tail" and "-f" in rest:
        return CommandOutcome(None)
    if name != "sleep" or not rest:
        return None
    total_s = 0.0
    for word in rest:
        if word in ("infinity", "inf"):
            return CommandOutcome(None)
        found = _DURATION.fullmatch(word)
        if found is None:
            return None
        total_s += float(found[1]) * _UNITS_S[found[2]]
    return CommandOutcome(total_s)
