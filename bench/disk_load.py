"""Reads or writes of a disk past the page cache, as fast as they go, as a process: it tells how many and how long.

It says `ready`, starts with one line on standard input, and ends after its seconds.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import sys
import threading
import time

from bench.cpu_wait import CpuWait


def load(path: str, *, write: bool, size: int, seconds: float, seed: int, took: list[float]) -> None:
    """Read or write random places; the milliseconds of each, without waiting for a CPU, go to `took`."""
    waiting = CpuWait()
    descriptor = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_DIRECT)
    places = os.lseek(descriptor, 0, os.SEEK_END) // size
    buffer = mmap.mmap(-1, size)  # in whole pages, as direct I/O needs it
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    while (start := time.monotonic()) < end:
        waited, place = waiting.ms(), chance.randrange(places) * size
        if write:
            os.pwritev(descriptor, [buffer], place)
        else:
            os.preadv(descriptor, [buffer], place)
        took.append(max(0.0, 1000 * (time.monotonic() - start) - (waiting.ms() - waited)))
    os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--disk", required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    print("ready", flush=True)
    sys.stdin.readline()
    took: list[list[float]] = [[] for _ in range(given.threads)]
    common = {"write": given.write, "size": given.size, "seconds": given.seconds}
    threads = [
        threading.Thread(target=load, args=(given.disk,), kwargs={**common, "seed": number, "took": took[number]})
        for number in range(given.threads)
    ]
    began = time.monotonic()
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    elapsed = time.monotonic() - began
    # Each thread waits for one request at a time, so that its rate is what it moved by the time that this took.
    rate = sum(1000 * given.size * len(one) / sum(one) for one in took if sum(one))
    milliseconds = [value for one in took for value in one]
    found = {"bytes": given.size * len(milliseconds), "seconds": elapsed, "bytes_per_s": rate}
    print(json.dumps({**found, "took_ms": milliseconds}))


if __name__ == "__main__":
    main()
