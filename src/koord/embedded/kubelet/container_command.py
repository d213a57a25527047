"""Read from a container's command how long it runs and how it ends, as far as simple commands say it. Pure.

`sleep 5m`, `sh -c "echo hello; sleep 60 && exit 3"` and `tail -f /dev/null` are understood, and scripts with variables
of the container, arithmetic, `if` and marker files; what any other program would do is not known.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import msgspec

_SHELLS = frozenset(("sh", "bash", "ash", "dash"))
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_AT_ONCE = frozenset(("echo", "printf", "true", ":", "date", "hostname", "env", "pwd", "ls", "cat", "set"))
_PRINTING = ("echo", "printf")
_ENDLESS = re.compile(r"\s*(while\s+(true|:|\[ 1 \])|until\s+false)\s*;?\s*do\b")
_KEYWORDS = frozenset(("if", "then", "elif", "else", "fi"))
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_ARITHMETIC = re.compile(r"\$\(\((.+?)\)\)|\$\(\s*expr\s+(.+?)\)")
_NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})


class CommandOutcome(msgspec.Struct, frozen=True):
    run_s: float | None  # None: until it is stopped
    exit_code: int = 0
    files: frozenset[str] = frozenset()  # paths that are there when it has ended, beside those that were never touched


def command_outcome(
    command: Sequence[str],
    args: Sequence[str],
    environment: Mapping[str, str] = _NO_ENVIRONMENT,
    files: Collection[str] = (),
) -> CommandOutcome | None:
    """Return what the container does; None when its command does not tell. `files` are there when it starts."""
    argv = [*command, *args]
    if not argv:
        return None
    if argv[0].rpartition("/")[2] in _SHELLS and len(argv) >= 3 and re.fullmatch(r"-[eux]*c", argv[1]):
        return _script_outcome(argv[2], environment, files)
    outcome = _program_outcome(argv)
    return None if outcome is None else msgspec.structs.replace(outcome, files=frozenset(files))


def depends_on_pod(command: Sequence[str], args: Sequence[str]) -> bool:
    """Return whether a command can have another outcome in another pod of the same template, or in a later run."""
    return any("$" in word or "touch" in word for word in (*command, *args))


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


# -- scripts


def _script_outcome(script: str, environment: Mapping[str, str], files: Collection[str]) -> CommandOutcome | None:
    if _ENDLESS.match(script):
        return CommandOutcome(None, files=frozenset(files))
    statements = _statements(script)
    if statements is None:
        return None
    run = _ScriptRun(statements, environment, files)
    end = run.block(0, live=True)
    if not run.is_known or end != len(statements):
        return None
    return CommandOutcome(None if run.is_endless else run.seconds, run.code, frozenset(run.files))


def _statements(script: str) -> list[str] | None:
    """Split a script at line ends and semicolons outside of quotes and parentheses; keywords are statements too."""
    parts, quote, depth, begin = [], "", 0, 0
    for at, letter in enumerate(script):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter in ";\n" and depth == 0:
            parts.append(script[begin:at])
            begin = at + 1
    if quote or depth:  # an end is missing: a shell would refuse it, or it is not one that we know
        return None
    found: list[str] = []
    for part in (*parts, script[begin:]):
        rest = part.strip()
        while rest:
            word, _, tail = rest.partition(" ")
            if word not in _KEYWORDS:
                found.append(rest)
                break
            found.append(word)
            rest = tail.strip()
    return found


class _ScriptRun:
    """Runs statements until the script ends, or until one is met whose effect is not known."""

    def __init__(self, statements: list[str], environment: Mapping[str, str], files: Collection[str]) -> None:
        self._statements = statements
        self._environment = environment
        self.files = set(files)
        self.seconds = 0.0
        self.code = 0
        self.is_known = True
        self.is_endless = False
        self._has_ended = False

    def block(self, at: int, *, live: bool) -> int:
        """Run statements from `at` to the keyword that ends their block, or only pass over them; return its place."""
        while at < len(self._statements):
            statement = self._statements[at]
            if statement == "if":
                at = self._if(at, live=live)
            elif statement in _KEYWORDS:
                return at
            else:
                if live and self.is_known and not self._has_ended:
                    self._and_list(statement)
                at += 1
        return at

    def _keyword(self, at: int) -> str:
        return self._statements[at] if at < len(self._statements) else ""

    def _if(self, at: int, *, live: bool) -> int:
        is_decided = not live
        while self._keyword(at) in ("if", "elif"):
            at = self.block(at + 1, live=not is_decided)
            if self._keyword(at) != "then":
                self.is_known = False
                return len(self._statements)
            is_true = not is_decided and self.code == 0
            if not is_decided:
                self.code = 0  # of an `if` without a branch that is true
            at = self.block(at + 1, live=is_true)
            is_decided = is_decided or is_true
        if self._keyword(at) == "else":
            at = self.block(at + 1, live=not is_decided)
        if self._keyword(at) != "fi":
            self.is_known = False
            return len(self._statements)
        return at + 1

    def _and_list(self, statement: str) -> None:
        words = self._words(statement)
        if words is None:
            self.is_known = False
            return
        command: list[str] = []
        for word in (*words, "&&"):
            if word != "&&":
                command.append(word)
                continue
            if not command:
                self.is_known = False
                return
            self._command(command)
            if self.code or self._has_ended or not self.is_known:
                return
            command = []

    def _words(self, statement: str) -> list[str] | None:
        prints = statement.split(None, 1)[0] in _PRINTING
        expanded = statement if prints else self._expanded(statement)
        if expanded is None:
            return None
        lexer = shlex.shlex(expanded, posix=True, punctuation_chars="&|;<>()")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a backslash with nothing behind it
            return None
        # Pipes, redirections, background jobs and alternatives are not known.
        return None if any(word != "&&" and set(word) <= set("&|;<>()") for word in words) else words

    def _expanded(self, text: str) -> str | None:
        """Replace variables, then arithmetic; None where one is not known."""
        values = {name: self._environment.get(name) for found in _VARIABLE.findall(text) for name in found if name}
        if None in values.values():
            return None
        text = _VARIABLE.sub(lambda found: values[found[1] or found[2]] or "", text)
        for found in _ARITHMETIC.finditer(text):
            amount = _arithmetic(found[1] or found[2], self._environment)
            if amount is None:
                return None
            text = text.replace(found[0], str(amount))
        return None if "$" in text or "`" in text else text

    def _command(self, words: list[str]) -> None:
        name, rest = words[0], words[1:]
        self.code = 0
        if name == "exit":
            self.code = int(rest[0]) % 256 if rest and rest[0].isdecimal() else 0
            self._has_ended = True
        elif name in ("[", "[[", "test"):
            holds = _test(rest[:-1] if name != "test" else rest, self.files)
            self.is_known = holds is not None
            self.code = 0 if holds else 1
        elif name == "touch":
            self.files.update(rest)
        elif name == "rm":
            self.files.difference_update(rest)
        elif name not in _AT_ONCE:
            self._program(rest if name == "exec" and rest else words, ends=name == "exec")

    def _program(self, argv: list[str], *, ends: bool) -> None:
        outcome = _program_outcome(argv)
        if outcome is None:
            self.is_known = False
            return
        self.code = outcome.exit_code
        self.is_endless = outcome.run_s is None
        self.seconds += outcome.run_s or 0.0
        self._has_ended = ends or self.is_endless


_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


def _test(words: Sequence[str], files: Collection[str]) -> bool | None:
    """Return whether a condition of `[` holds; None for one that is not known."""
    match list(words):
        case ["!", *rest]:
            holds = _test(rest, files)
            return None if holds is None else not holds
        case ["-e" | "-f" | "-r" | "-s", path]:
            return path in files
        case ["-z", text]:
            return not text
        case ["-n", text] | [text]:
            return bool(text)
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, compared, right] if compared in _COMPARISONS and _is_integer(left) and _is_integer(right):
            return _COMPARISONS[compared](int(left), int(right))
    return None


def _is_integer(text: str) -> bool:
    return re.fullmatch(r"-?\d{1,18}", text) is not None


_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: int(left / right),
    ast.Mod: lambda left, right: left - right * int(left / right),
}


def _arithmetic(text: str, environment: Mapping[str, str]) -> int | None:
    """Return the value of an expression of integers and variables; None for one that is not known."""
    try:
        tree = ast.parse(text.strip().replace("\\*", "*"), mode="eval")
    except (SyntaxError, ValueError):
        return None
    return _value(tree.body, environment)


def _value(node: ast.expr, environment: Mapping[str, str]) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        text = environment.get(node.id, "")
        return int(text) if _is_integer(text) else None
    if not isinstance(node, ast.BinOp):
        return None
    left, right, compute = (
        _value(node.left, environment),
        _value(node.right, environment),
        _OPERATORS.get(type(node.op)),
    )
    if left is None or right is None or compute is None or (right == 0 and isinstance(node.op, ast.Div | ast.Mod)):
        return None
    return compute(left, right)
