"""Read usage traces from CSV files: `time,cpu,memory` in seconds, cores and bytes (or quantities), one
line per point.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

from koord.embedded.kubelet.usage import BadUsage, Points, Usage
from koord.values.quantity import Quantity, QuantityError

COLUMNS = ("time", "cpu", "memory")


def read(path: Path) -> Points | BadUsage:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        return BadUsage(f"{path}: cannot be read: {error}")
    found = parse(text)
    return BadUsage(f"{path}: {found.rule}") if isinstance(found, BadUsage) else found


def parse(text: str) -> Points | BadUsage:
    rows = list(csv.reader(line for line in text.splitlines() if line.strip()))
    if not rows or tuple(cell.strip() for cell in rows[0]) != COLUMNS:
        return BadUsage(f"the first line must be {','.join(COLUMNS)}")
    times: list[float] = []
    usages: list[Usage] = []
    for number, row in enumerate(rows[1:], 2):
        try:
            time, cpu, memory = (cell.strip() for cell in row)
            at, used = float(time), Usage(Quantity.parse(cpu).milli_value(), Quantity.parse(memory).value())
        except (ValueError, QuantityError) as error:
            return BadUsage(f"line {number}: {error}")
        if not math.isfinite(at) or (times and at <= times[-1]) or used.cpu_milli < 0 or used.memory_bytes < 0:
            return BadUsage(f"line {number}: times must rise and amounts must be 0 or more")
        times.append(at)
        usages.append(used)
    if not times:
        return BadUsage("there is no point in it")
    first = times[0]
    return Points(times=tuple(at - first for at in times), usages=tuple(usages))
