"""This module holds what a check answers: findings, each of a declared diagnosis with its reason and its repair."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Literal

import msgspec

Severity = Literal["error", "warning", "unknown", "info", "ok"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "unknown", "info", "ok")  # the worst first

_NAMED = 5  # objects that a line names before it counts the others
_MAX_CHARS = 600  # of one text: messages of objects have no limit of their own


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Finding says what was found (`what`), why it matters and which command repairs it (`fix`, may be empty)."""

    id: str
    check: str
    severity: Severity
    what: str
    why: str = ""
    fix: str = ""
    objects: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Diagnosis declares one kind of finding; `fix` may name values in braces that `found` fills in."""

    kind: tuple[str, str, Severity]  # id, check and severity of the findings
    title: str  # what the finding means, for the documentation
    why: str
    fix: str = ""

    @property
    def id(self) -> str:
        return self.kind[0]

    @property
    def check(self) -> str:
        return self.kind[1]

    @property
    def severity(self) -> Severity:
        return self.kind[2]

    def found(self, what: str, objects: Iterable[str] = (), **values: str) -> Finding:
        # Names come from objects: a command that people copy must not run what a name says.
        shown = {key: shlex.quote(printable(value)) for key, value in values.items()}
        return Finding(
            id=self.id,
            check=self.check,
            severity=self.severity,
            what=printable(what),
            why=self.why,
            fix=self.fix.format_map(shown),
            objects=tuple(printable(one) for one in objects),
        )


class SkippedCheck(msgspec.Struct, frozen=True, kw_only=True):
    check: str
    why: str


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """DoctorReport holds the findings, the worst first, and the checks that did not apply."""

    koord_version: str
    server_version: str
    namespace: str
    at: str
    findings: tuple[Finding, ...]
    skipped: tuple[SkippedCheck, ...] = ()

    def count(self, severity: Severity) -> int:
        return sum(one.severity == severity for one in self.findings)


def printable(text: str) -> str:
    """Return the text on one line, without control characters, which a terminal would obey, and of bounded length."""
    line = "".join(one if one.isprintable() else " " for one in text[: 4 * _MAX_CHARS])
    line = " ".join(line.split())
    return line if len(line) <= _MAX_CHARS else f"{line[: _MAX_CHARS - 1]}…"


def name_list(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    given = list(names)
    more = f" and {len(given) - _NAMED} more" if len(given) > _NAMED else ""
    return ", ".join(given[:_NAMED]) + more
