"""Keep values per row that plugins derive from nodes, computed again only for rows that changed.

The node table owns the columns and brings them up to date when they are read.
"""

from __future__ import annotations

_LIMIT = 1 << 16


class Changes:
    """Log which rows changed. Readers hold a position and ask what came after it; the older half is dropped when it is
    long.
    """

    __slots__ = ("_rows", "_start", "position")

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._start = 0
        self.position = 0  # an attribute, as every decision reads it many times

    def since(self, position: int) -> list[int] | None:
        """Return the rows that changed after a position, each once; None when that is too long ago to say."""
        if position < self._start:
            return None
        tail = self._rows[position - self._start :]
        return tail if len(tail) < 2 else list(dict.fromkeys(tail))

    def note(self, row: int) -> None:
        self._rows.append(row)
        self.position += 1
        if len(self._rows) > _LIMIT:
            drop = _LIMIT // 2
            del self._rows[:drop]
            self._start += drop
