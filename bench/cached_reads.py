"""A service whose data is a file in the page cache, as a process: it tells how long its requests took.

A request reads blocks from random places of the file. Requests come from a timetable made beforehand. The service
first reads the whole file, so that the kernel charges the cache to its group, and says `ready`; one line on standard
input starts it. What it had to fetch from the disk is counted by the kernel.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from bench.cpu_wait import CpuWait

BLOCK_BYTES = 64 << 10
BLOCKS = 8  # of a request


def fetched_bytes() -> int:
    """What this process read from disks so far."""
    rows = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(rows["read_bytes"])


def serve(descriptor: int, blocks: int, rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """Milliseconds of the reads of each request, without waiting for a CPU."""
    chance = random.Random(seed)
    waiting = CpuWait()
    took: list[float] = []
    fetched = fetched_bytes()
    buffer = bytearray(BLOCK_BYTES)
    due = began = time.monotonic()
    while (due := due + chance.expovariate(rate)) < began + seconds:
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        places = [chance.randrange(blocks) * BLOCK_BYTES for _ in range(BLOCKS)]
        waited, start = waiting.ms(), time.perf_counter()
        for place in places:
            os.preadv(descriptor, [buffer], place)
        took.append(max(0.0, 1000 * (time.perf_counter() - start) - (waiting.ms() - waited)))
    return {"read_ms": took, "fetched_bytes": fetched_bytes() - fetched}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", required=True)
    parser.add_argument("--memory-mib", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    kept = [b"\x01" * (1 << 20) for _ in range(given.memory_mib)]  # memory of its own beside the cache
    descriptor = os.open(given.file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # a miss costs what was asked for, and no more
    blocks = os.fstat(descriptor).st_size // BLOCK_BYTES
    for number in range(2 * blocks):  # twice: the second read makes the kernel take the pages for used ones
        os.pread(descriptor, BLOCK_BYTES, number % blocks * BLOCK_BYTES)
    gc.disable()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps({**serve(descriptor, blocks, given.rate, given.seconds, given.seed), "kept_mib": len(kept)}))


if __name__ == "__main__":
    main()
