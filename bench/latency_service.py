"""A service with a fixed rate of requests, as a process: it tells how long each request took from its due time on.

Requests come from a timetable made beforehand (a Poisson process), so nobody who sends them takes CPU away, and a
service that falls behind is not asked less. One line on standard input starts it; the latencies go to standard output.
With `--waits` each request also tells how long it was runnable without a CPU, by the kernel's own clock.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import random
import sys
import time

_BLOCK = bytes(range(256)) * 64  # 16 KiB: stays in the first cache


def work(blocks: int) -> None:
    digest = hashlib.sha256()
    for _ in range(blocks):
        digest.update(_BLOCK)


def blocks_of(cpu_s: float) -> int:
    """How many blocks take that much CPU time on this machine; the least of a few trials, as others may interfere."""
    trial = 400
    took: list[float] = []
    for _ in range(15):
        began = time.process_time()
        work(trial)
        took.append(time.process_time() - began)
    return max(1, round(trial * cpu_s / min(took)))


def serve(rate: float, seconds: float, blocks: int, seed: int) -> list[float]:
    """Milliseconds from when each request was due until it was done."""
    chance = random.Random(seed)
    latencies: list[float] = []
    began = time.monotonic()
    due = began
    while (due := due + chance.expovariate(rate)) < began + seconds:
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        work(blocks)
        latencies.append(1000 * (time.monotonic() - due))
    return latencies


def serve_with_waits(rate: float, seconds: float, blocks: int, seed: int) -> list[tuple[float, float, float]]:
    """As `serve`, each with the milliseconds it was runnable without a CPU: before it ran, and while it ran."""
    chance = random.Random(seed)
    found: list[tuple[float, float, float]] = []
    schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    began = time.monotonic()
    due = began
    while (due := due + chance.expovariate(rate)) < began + seconds:
        asleep = _runnable_ns(schedstat)
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        woken = _runnable_ns(schedstat)
        work(blocks)
        took = 1000 * (time.monotonic() - due)
        found.append((took, (woken - asleep) / 1e6, (_runnable_ns(schedstat) - woken) / 1e6))
    os.close(schedstat)
    return found


def _runnable_ns(schedstat: int) -> int:
    return int(os.pread(schedstat, 100, 0).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rate-before", type=float, default=0.0, help="of the seconds before, which are not told")
    parser.add_argument("--seconds-before", type=float, default=0.0)
    parser.add_argument("--waits", action="store_true")
    given = parser.parse_args()
    gc.disable()
    sys.stdin.readline()
    if given.seconds_before:
        serve(given.rate_before, given.seconds_before, given.blocks, given.seed + 1_000_000)
    measured = serve_with_waits if given.waits else serve
    print(json.dumps(measured(given.rate, given.seconds, given.blocks, given.seed)))


if __name__ == "__main__":
    main()
