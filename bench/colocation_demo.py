"""The demonstration of `koord up`: a virtual day of co-location on 20 nodes, with all programs in one process."""

from __future__ import annotations

import resource
import time
from typing import Any

import msgspec

from koord.cli.up import demo


def run() -> dict[str, Any]:
    cpu, wall = time.process_time(), time.perf_counter()
    last = demo.play_demo(demo.DemoOptions())
    assert last is not None
    return {
        **msgspec.to_builtins(last.summary),
        "seconds": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
