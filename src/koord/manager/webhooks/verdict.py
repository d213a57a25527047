"""The admission decision, the context that pod and reservation admission reads, and the excluded namespaces."""

from __future__ import annotations

from typing import Any

import msgspec


class Allowed(msgspec.Struct, frozen=True):
    """The request is allowed. `object` is the whole object to store; None leaves it as it came."""

    object: dict[str, Any] | None = None


class Denied(msgspec.Struct, frozen=True):
    code: int
    message: str


Verdict = Allowed | Denied
