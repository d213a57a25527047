"""What each program holds in memory: over twenty restarts of the API server, and over a virtual day of churn.

The figure is VmRSS. Flat means that the mean of the last quarter of the readings lies within five percent of that of
the first quarter. What is bounded fills before the first reading, and the result says what and how large; see
`bench.memory_restarts` and `bench.memory_churn` for how each part is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.memory_churn import PROGRAMS
from bench.memory_reading import FLAT_PERCENT


def _in_a_process(call: str) -> dict[str, Any]:
    """Run each part in a process of its own, so that none inherits the memory of another."""
    code = f"import json; from bench import memory_churn, memory_restarts; print(json.dumps({call}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def run() -> dict[str, Any]:
    # All parts run side by side: what one holds does not depend on how fast another is.
    with ThreadPoolExecutor(1 + len(PROGRAMS)) as pool:
        restarts = pool.submit(_in_a_process, "memory_restarts.restarts()")
        churn = {name: pool.submit(_in_a_process, f"memory_churn.churn({name!r})") for name in PROGRAMS}
        return {
            "flat_percent": FLAT_PERCENT,
            "restarts": restarts.result(),
            "virtual_hours_of_churn": {name: part.result() for name, part in churn.items()},
        }
