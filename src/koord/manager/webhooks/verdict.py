"""What an admission decision comes to. The HTTP answer and the patch are made from it by the serving side."""

from __future__ import annotations

from typing import Any

import msgspec


class Allowed(msgspec.Struct, frozen=True):
    """`object` is the whole object as it should be stored; None leaves it as it came."""

    object: dict[str, Any] | None = None


class Denied(msgspec.Struct, frozen=True):
    code: int
    message: str


Verdict = Allowed | Denied
