"""This module formats metav1.MicroTime: the server accepts exactly six digits of fraction and no other
spelling.
"""

from __future__ import annotations

from datetime import UTC, datetime


def microtime(moment: datetime) -> str:
    """Format a moment as metav1.MicroTime: the server accepts exactly six digits of fraction and no other
    spelling.
    """
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
