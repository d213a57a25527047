"""Offline inspection of the documents of slo-controller-config. Pure.

It is stricter than the programs: they run with whatever they can read, here a setting without effect is an
error.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from koord.api.config.field_error import FieldError

Severity = Literal["error", "warning"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One error or warning about a configuration.

    An error is refused or has another effect than it says; a warning is a surprise that may be intended.
    """

    severity: Severity
    key: str  # the document: a data key, or "" where the file is the document
    flaw: FieldError


def errors(key: str, flaws: list[FieldError]) -> list[Finding]:
    return [Finding(severity="error", key=key, flaw=flaw) for flaw in flaws]


def warning(key: str, path: str, text: str) -> Finding:
    return Finding(severity="warning", key=key, flaw=FieldError(path, None, text))
