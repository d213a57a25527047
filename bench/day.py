"""A virtual day of 1,000 nodes with services, rollouts and thousands of batch pods."""

from __future__ import annotations

import resource
import time
from typing import Any

import msgspec

from koord.telemetry.process import relax_gc
from tests.journeys.virtual_day import run_day


def run() -> dict[str, Any]:
    relax_gc()
    cpu, wall = time.process_time(), time.perf_counter()
    day = run_day(nodes=1_000, services=40, jobs=400, hours=24, seed=11)
    return {
        **msgspec.to_builtins(day),
        "seconds": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
