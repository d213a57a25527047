"""This module applies JSON merge patches (RFC 7386) with kube-apiserver's treatment of nulls inside lists, and
defines the failure that all patches return as a value.
"""

from __future__ import annotations

from typing import Any

import msgspec

Obj = dict[str, Any]


class PatchFailed(msgspec.Struct, frozen=True):
    """PatchFailed is a failure as a value: the code, reason and message of the Status to respond with."""

    code: int
    message: str
    reason: str = ""
    details: dict[str, Any] | None = None


def bad_patch(message: str) -> PatchFailed:
    return PatchFailed(400, message, "BadRequest")


def unprocessable() -> PatchFailed:
    """Return the one sentence behind which kube-apiserver hides what was wrong with a JSON patch."""
    return PatchFailed(422, "the server rejected our request due to an error in our request", "Invalid", {})


def server_error(message: str) -> PatchFailed:
    """Return an error that kube-apiserver never gave a code: it leaves it as a 500 without a reason."""
    return PatchFailed(500, message)
