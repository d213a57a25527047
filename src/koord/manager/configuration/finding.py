"""One thing that somebody should know about a configuration before it is put to use."""

from __future__ import annotations

from typing import Literal

import msgspec

from koord.api.config.field_error import FieldError

Severity = Literal["error", "warning"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """An error is refused or has another effect than it says; a warning is a surprise that may be meant."""

    severity: Severity
    key: str  # the document: a data key, or "" where the file is the document
    flaw: FieldError


def errors(key: str, flaws: list[FieldError]) -> list[Finding]:
    return [Finding(severity="error", key=key, flaw=flaw) for flaw in flaws]


def warning(key: str, path: str, text: str) -> Finding:
    return Finding(severity="warning", key=key, flaw=FieldError(path, None, text))
