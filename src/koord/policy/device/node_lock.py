"""The lock annotation by which vendors' device plugins serve one pod of a node at a time.

Only the vendors that demand it are locked, and only for their own handshake; nothing else waits for a node.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from koord.values import instant
from koord.values.instant import InstantError
from koord.values.quotation import quoted

EXPIRES_AFTER = timedelta(minutes=5)


class NodeLock(msgspec.Struct, frozen=True):
    taken_at: datetime
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{instant.text(self.taken_at)},{self.namespace},{self.name}"


def parse(value: str) -> NodeLock | str:
    """Parse the annotation; a returned text says what is wrong with it."""
    parts = value.split(",")
    if len(parts) != 3:
        return f"invalid node lock value {quoted(value)}"
    try:
        return NodeLock(instant.parse(parts[0]), parts[1], parts[2])
    except InstantError as error:
        return f"invalid node lock value {quoted(value)}: {error}"


def claim(node: str, value: str | None, mine: NodeLock, *, holder_gone: bool) -> NodeLock | str:
    """Return the lock to write, or why the node cannot be locked now. `value` is the annotation as it is on the
    node.

    A lock is taken over when it has expired or its pod is gone.
    """
    if value is None:
        return mine
    held = parse(value)
    if isinstance(held, str):
        return held
    own = (held.namespace, held.name) == (mine.namespace, mine.name)
    if own or holder_gone or mine.taken_at - held.taken_at > EXPIRES_AFTER:
        return mine
    return f"failed to lock node: node {quoted(node)} has been locked"
