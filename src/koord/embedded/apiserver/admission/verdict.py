"""The verdict of a hook, whether it answered over HTTPS or as a function in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from koord.embedded.apiserver.refusal import Refusal

Obj = dict[str, Any]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Says whether a hook allows a request and what it changes: `patch` is a JSON patch, `obj` a whole object
    to take instead.
    """

    allowed: bool = True
    message: str = ""
    code: int = 0
    reason: str = ""
    details: Obj | None = None
    patch: Sequence[Obj] = ()
    obj: Obj | None = None
    warnings: Sequence[str] = ()


ALLOWED = Verdict()


def denied(message: str, code: int = 0, reason: str = "") -> Verdict:
    return Verdict(allowed=False, message=message, code=code, reason=reason)


def denial(name: str, verdict: Verdict) -> Refusal:
    """Return the error of a denial in kube-apiserver's words; a code that would mean success becomes 400."""
    by = f'admission webhook "{name}" denied the request'
    why = verdict.message or verdict.reason
    message = f"{by}: {why}" if why else f"{by} without explanation"
    code = verdict.code if verdict.code >= 400 else 400
    return Refusal(code, verdict.reason, message, details=verdict.details)
