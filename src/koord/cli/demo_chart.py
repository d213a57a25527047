"""This module renders the co-location demonstration as one screen of 100 columns: the day so far, every node,
and what was evicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from rich.text import Text

SERVICES, BATCH, LENT, EMPTY = "#4c8dff", "#40b36b", "#f2a33a", "grey30"
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def areas(lower: Sequence[float], upper: Sequence[float], line: Sequence[float], top: float, rows: int) -> list[Text]:
    """Return rows from the top; each column is one value. `upper` is stacked on `lower`, `line` is how high both
    might go.
    """
    unit = top / rows
    found = []
    for row in reversed(range(rows)):
        floor = row * unit
        text = Text()
        for one, other, limit in zip(lower, upper, line, strict=True):
            text.append_text(_cell(one - floor, one + other - floor, limit - floor, unit))
        found.append(text)
    return found


def _cell(first: float, both: float, limit: float, unit: float) -> Text:
    """Return one cell. Heights are above the cell's floor; a cell shows two colours at most, so the larger parts
    win.
    """
    if first >= unit:
        return Text("█", Style(color=SERVICES))
    if first > 0:
        step = min(round(first / unit * 8), 8)
        behind = BATCH if both > first + unit / 16 else None
        return Text(_EIGHTHS[step], Style(color=SERVICES, bgcolor=behind))
    if both >= unit:
        return Text("█", Style(color=BATCH))
    if both > unit / 16:
        return Text(_EIGHTHS[max(1, round(both / unit * 8))], Style(color=BATCH))
    if 0 <= limit < unit:
        return Text("╌", Style(color=LENT))
    return Text(" ")


def bar(services: float, batch: float, width: int) -> Text:
    """Return a bar of shares from 0 to 1 of a whole."""
    left = min(round(services * width), width)
    right = min(round((services + batch) * width), width)
    text = Text("█" * left, Style(color=SERVICES))
    text.append("█" * (right - left), Style(color=BATCH))
    text.append("·" * (width - right), Style(color=EMPTY))
    return text
