"""metav1.MicroTime as text: the server takes exactly six digits of fraction and no other spelling."""

from __future__ import annotations

from datetime import UTC, datetime


def microtime(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
