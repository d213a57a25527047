"""Reading of a process' resident memory, and the growth over a series of readings."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

FLAT_PERCENT = 5.0


def rss_mb(pid: int | str = "self") -> float:
    (line,) = [row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def growth(values: list[float]) -> dict[str, Any]:
    """Compare the mean of the last quarter with that of the first."""
    quarter = max(1, len(values) // 4)
    first, last = statistics.mean(values[:quarter]), statistics.mean(values[-quarter:])
    percent = round(100 * (last / first - 1), 1)
    return {
        "rss_mb": [round(value, 1) for value in values],
        "first_mb": first,
        "last_mb": last,
        "growth_percent": percent,
        "flat": abs(percent) <= FLAT_PERCENT,
    }
