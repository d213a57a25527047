"""This module translates the patterns of CRD schemas from Go's regular expressions to Python's.

Syntax errors are reported in Go's words. Go has neither look-around nor back references, so what remains means the same
in both once `$`, the ASCII classes and the bracket classes are spelled Python's way. Patterns run unanchored, as in Go.
"""

from __future__ import annotations

import functools
import re

_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
# Unicode classes as far as Python's engine can say them without a table.
_UNICODE = {"L": r"[^\W\d_]", "N": r"\d", "Nd": r"\d"}
_MAX_REPEAT = 1000
_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_ESCAPES = "aftnrvxdDsSwWbBAzQEpP"
_GROUP = re.compile(r"\(\?(?:P?<([A-Za-z_]\w*)>|[imsU]*(?:-[imsU]+)?[:)])")


def regexp_error(pattern: str) -> str:
    """Return Go's error for a pattern, empty when there is none."""
    try:
        compile_regexp(pattern)
    except ValueError as refused:
        return str(refused)
    return ""


@functools.lru_cache(maxsize=1024)
def compile_regexp(pattern: str) -> re.Pattern[str]:
    """Compile a Go pattern; raises ValueError with `error parsing regexp: ...`."""
    try:
        return re.compile(_RegexpTranslator(pattern).translate())
    except re.error as odd:  # beyond what the translation knows of; the pattern is refused rather than half understood
        raise _syntax_error(f"unsupported pattern ({odd})", pattern) from None


def _syntax_error(problem: str, part: str) -> ValueError:
    return ValueError(f"error parsing regexp: {problem}: `{part}`")


class _RegexpTranslator:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.open = [0]  # for each open group, how many groups we opened in it for flags
        self.out: list[str] = []
        # The repetition just read, to refuse a second one; and whether there is something to repeat.
        self.repeated = ""
        self.operand = False

    def translate(self) -> str:
        pattern = self.pattern
        while self.at < len(pattern):
            char = pattern[self.at]
            if char in "*+?" or (char == "{" and _REPEAT.match(pattern, self.at)):
                self._repeat()
                continue
            self.repeated = ""
            if char == "(":
                self._group()
            elif char == ")":
                if len(self.open) == 1:
                    raise _syntax_error("unexpected )", pattern)
                self._emit(")" * (1 + self.open.pop()), 1, operand=True)
            elif char == "[":
                self._bracket_expression()
            elif char == "\\":
                self._escape()
            elif char == "|":
                self._emit("|", 1, operand=False)
            elif char == "$":
                self._emit(r"\Z", 1, operand=True)
            else:
                self._emit(char if char in "^." else re.escape(char), 1, operand=True)
        if len(self.open) > 1:
            raise _syntax_error("missing closing )", pattern)
        return "".join(self.out) + ")" * self.open[0]

    def _emit(self, text: str, width: int, *, operand: bool) -> None:
        self.out.append(text)
        self.at += width
        self.operand = operand

    def _repeat(self) -> None:
        found = _REPEAT.match(self.pattern, self.at)
        text = found.group() if found else self.pattern[self.at]
        if found:
            least, most = int(found.group(1)), found.group(2)
            if least > _MAX_REPEAT or (most and (int(most) > _MAX_REPEAT or int(most) < least)):
                raise _syntax_error("invalid repeat count", text)
        if self.pattern.startswith("?", self.at + len(text)):
            text += "?"
        if self.repeated:
            raise _syntax_error("invalid nested repetition operator", self.repeated + text)
        if not self.operand:
            raise _syntax_error("missing argument to repetition operator", text)
        self.out.append(text)
        self.at += len(text)
        self.repeated = text

    def _group(self) -> None:
        start = self.at
        if self.pattern.startswith("(?", start):
            found = _GROUP.match(self.pattern, start)
            if found is None:
                if self.pattern.startswith(("(?P<", "(?<"), start):
                    raise _syntax_error("invalid named capture", self.pattern[start:])
                raise _syntax_error("invalid or unsupported Perl syntax", self.pattern[start : start + 3])
            text = found.group()
            if "U" in text:
                raise _syntax_error("unsupported pattern (the U flag)", text)
            if text.endswith(")"):
                # A flag for the rest of the enclosing group: Python wants a group of its own around that rest.
                self.open[-1] += 1
                self._emit(text[:-1] + ":", len(text), operand=False)
                return
            self.open.append(0)
            self._emit(f"(?P<{found.group(1)}>" if found.group(1) else text, len(text), operand=False)
            return
        self.open.append(0)
        self._emit("(", 1, operand=False)

    def _escape(self) -> None:
        if self.at + 1 >= len(self.pattern):
            raise _syntax_error("trailing backslash at end of expression", "")
        char = self.pattern[self.at + 1]
        if char == "Q":
            end = self.pattern.find(r"\E", self.at)
            stop = end if end >= 0 else len(self.pattern)
            text = re.escape(self.pattern[self.at + 2 : stop])
            self._emit(text, (stop + 2 if end >= 0 else stop) - self.at, operand=bool(text))
        elif char in "pP":
            text, width = self._unicode()
            self._emit(text, width, operand=True)
        elif char == "z":
            self._emit(r"\Z", 2, operand=True)
        elif char == "x":
            text, width = self._hexadecimal()
            self._emit(text, width, operand=True)
        else:
            self._emit(self._plain(char), 2, operand=True)

    def _plain(self, char: str) -> str:
        if char.isascii() and char.isalnum() and char not in _ESCAPES:
            raise _syntax_error("invalid escape sequence", "\\" + char)
        # The classes are ASCII in Go; \b follows \w.
        if char in "dDsSwWbB":
            return f"(?a:\\{char})"
        return "\\" + char if char in "afnrtvA" else re.escape(char)

    def _unicode(self) -> tuple[str, int]:
        found = re.match(r"\\([pP])(?:\{(\^?)(\w+)\}|(\w))", self.pattern[self.at :])
        if found is None:
            raise _syntax_error("invalid character class range", self.pattern[self.at : self.at + 2])
        name = found.group(3) or found.group(4)
        if name not in _UNICODE:
            raise _syntax_error("unsupported pattern (this Unicode class)", found.group())
        text = _UNICODE[name]
        negative = (found.group(1) == "P") != bool(found.group(2))
        return (f"(?:(?!{text}).)" if negative else text), found.end()

    def _hexadecimal(self) -> tuple[str, int]:
        found = re.match(r"\\x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\})", self.pattern[self.at :])
        if found is None:
            raise _syntax_error("invalid escape sequence", self.pattern[self.at : self.at + 3])
        return re.escape(chr(int(found.group(1) or found.group(2), 16))), found.end()

    def _bracket_expression(self) -> None:
        """Translate a bracket expression, which has its own small syntax."""
        start = self.at
        at = start + 1
        out = ["["]
        if self.pattern.startswith("^", at):
            out.append("^")
            at += 1
        first = True
        while True:
            if at >= len(self.pattern):
                raise _syntax_error("missing closing ]", self.pattern[start:])
            char = self.pattern[at]
            if char == "]" and not first:
                break
            first = False
            if self.pattern.startswith("[:", at) and (end := self.pattern.find(":]", at)) > 0:
                name = self.pattern[at + 2 : end]
                if name.removeprefix("^") not in _POSIX or name.startswith("^"):
                    raise _syntax_error("invalid character class range", self.pattern[at : end + 2])
                out.append(_POSIX[name])
                at = end + 2
                continue
            low, text, at = self._bracket_member(start, at)
            if low and self.pattern.startswith("-", at) and not self.pattern.startswith("-]", at):
                begun = at - len(text)
                high, upper, at = self._bracket_member(start, at + 1)
                if not high or ord(high) < ord(low):
                    raise _syntax_error("invalid character class range", self.pattern[begun:at])
                text = f"{text}-{upper}"
            out.append(text)
        self.out.append("".join(out) + "]")
        self.at = at + 1
        self.operand = True

    def _bracket_member(self, start: int, at: int) -> tuple[str, str, int]:
        """Return one member's character when it is a single one, its Python spelling, and where it ends."""
        if at >= len(self.pattern):
            raise _syntax_error("missing closing ]", self.pattern[start:])
        char = self.pattern[at]
        if char != "\\":
            return char, re.escape(char), at + 1
        if at + 1 >= len(self.pattern):
            raise _syntax_error("trailing backslash at end of expression", "")
        code = self.pattern[at + 1]
        if code in "pP":
            self.at, kept = at, self.at
            text, width = self._unicode()
            self.at = kept
            if text.startswith("(") or text == _UNICODE["L"]:
                raise _syntax_error(
                    "unsupported pattern (a Unicode class inside brackets)", self.pattern[at : at + width]
                )
            return "", text, at + width
        if code == "x":
            self.at, kept = at, self.at
            text, width = self._hexadecimal()
            self.at = kept
            return text.removeprefix("\\"), text, at + width
        if code in "dDsSwW":
            spelled = {"d": "0-9", "s": r"\t\n\f\r ", "w": "0-9A-Za-z_"}.get(code)
            if spelled is None:
                raise _syntax_error("unsupported pattern (a negated class inside brackets)", "\\" + code)
            return "", spelled, at + 2
        if code.isascii() and code.isalnum() and code not in "aftnrv":
            raise _syntax_error("invalid escape sequence", "\\" + code)
        plain = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}.get(code, code)
        return plain, re.escape(plain), at + 2
