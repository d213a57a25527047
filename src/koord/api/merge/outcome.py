"""What a merge gives back when it cannot be done: the code, reason and words of the Status to answer with."""

from __future__ import annotations

from typing import Any

import msgspec

Obj = dict[str, Any]


class PatchFailed(msgspec.Struct, frozen=True):
    """A refusal as a value; who serves the patch makes an answer of it."""

    code: int
    message: str
    reason: str = ""
    details: dict[str, Any] | None = None


def bad_patch(message: str) -> PatchFailed:
    return PatchFailed(400, message, "BadRequest")


def unprocessable() -> PatchFailed:
    """kube-apiserver hides what was wrong with a JSON patch behind one sentence."""
    return PatchFailed(422, "the server rejected our request due to an error in our request", "Invalid", {})


def server_error(message: str) -> PatchFailed:
    """Errors that kube-apiserver never gave a code: they leave it as a 500 without a reason."""
    return PatchFailed(500, message)
