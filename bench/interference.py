"""A memory stream on another CPU than a service: how much it slows the service, how soon it is found, and what holding
it back returns.

Machines without hardware counters are the usual case here, so the service counts itself: every operation is the same
number of instructions, and cycles are the CPU time of its thread, which no waiting for a CPU is part of. The samples go
through koordlet's own judgement and correlation. Each has a CPU of its own, so no CPU control could mend it.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

from koord.api.config.slo.interference import DEFAULT_INTERFERENCE
from koord.koordlet.strategies.interference_detection import (
    CPI,
    MetricTrack,
    correlation,
    judge_sample,
)

SAMPLE_S = 1.0
CALM, DISTURBED, HELD = 30, 10, 10  # samples
ROUNDS = 3
_INSTRUCTIONS = 20_000.0  # of an operation, about: only ratios count
_HERTZ = 2.5e9
_SERVICE = """
import os, random, sys, time
import numpy as np
os.sched_setaffinity(0, {cpu})
table = np.arange(16 << 20, dtype=np.int64)
places = np.random.default_rng(1).integers(0, len(table), 1 << 12)
done, began = 0, time.thread_time()
for line in sys.stdin:
    print(done, time.thread_time() - began, flush=True)
    done, began, end = 0, time.thread_time(), time.perf_counter() + float(line)
    while time.perf_counter() < end:
        int(table[(places + done) % len(table)].sum())
        done += 1
"""
_STREAM = """
import os
import numpy as np
os.sched_setaffinity(0, {cpu})
here, there = np.ones(32 << 20), np.ones(32 << 20)
while True:
    np.copyto(there, here)
"""


class _Service:
    def __init__(self, cpu: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVICE.format(cpu={cpu})], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.sample()

    def sample(self) -> float:
        """Run it for one sample; return its cycles per instruction in the sample before."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{SAMPLE_S}\n")
        self._process.stdin.flush()
        done, seconds = self._process.stdout.readline().split()
        return float(seconds) * _HERTZ / max(float(done) * _INSTRUCTIONS, 1.0)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class _Stream:
    """The antagonist. It is held to a share of its CPU by stopping it, as cgroups need not be writable here."""

    def __init__(self, cpu: int) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", _STREAM.format(cpu={cpu})])

    def cpu_s(self) -> float:
        with open(f"/proc/{self._process.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def hold(self, share: float, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            os.kill(self._process.pid, signal.SIGCONT)
            time.sleep(0.1 * share)
            os.kill(self._process.pid, signal.SIGSTOP)
            time.sleep(0.1 * (1 - share))

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def run() -> dict[str, Any]:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        return {"skipped": "the service and the stream need a CPU each"}
    rounds = [_round(cpus[0], cpus[1]) for _ in range(ROUNDS)]
    return {
        "what": "cycles per instruction of a service, by its own count, beside a memory stream on another CPU",
        "rounds": rounds,
        "slowed": statistics.median(one["slowed"] for one in rounds),
        "slowed_held_to_a_tenth": statistics.median(one["slowed_held"] for one in rounds),
        "found_after_samples": [one["found_after_samples"] for one in rounds],
        "score": statistics.median(one["score"] for one in rounds),
    }


def _round(service_cpu: int, stream_cpu: int) -> dict[str, Any]:
    service = _Service(service_cpu)
    track, usage, number = MetricTrack(), dict[float, float](), 0
    strategy = DEFAULT_INTERFERENCE

    def judge(value: float, cores: float) -> None:
        nonlocal track, number
        number += 1
        usage[float(number)] = cores
        track = judge_sample(
            track,
            CPI,
            float(number),
            number,
            value,
            deviations=strategy.outlier_deviations or 0.0,
            outliers=strategy.outliers or 1,
            baseline_samples=strategy.baseline_samples or 1,
        )

    try:
        service.sample()
        calm = [service.sample() for _ in range(CALM)]
        for value in calm:
            judge(value, 0.0)
        false_alarm = track.since_s is not None
        stream = _Stream(stream_cpu)
        try:
            time.sleep(1.0)  # its memory is being made
            service.sample()
            disturbed, found, score = list[float](), 0, 0.0
            for count in range(1, DISTURBED + 1):
                before = stream.cpu_s()
                disturbed.append(service.sample())
                judge(disturbed[-1], (stream.cpu_s() - before) / SAMPLE_S)
                if track.normal is not None and not found:
                    found = count
                    threshold = track.normal.threshold(strategy.outlier_deviations or 0.0)
                    score = correlation(track.recent, threshold, usage)
            held = list[float]()
            for _ in range(HELD):
                service.sample()  # starts a sample of its own time, in which the stream is held
                stream.hold(0.1, SAMPLE_S)
                held.append(service.sample())
        finally:
            stream.stop()
    finally:
        service.stop()
    normal = statistics.median(calm)
    return {
        "cpi_calm": normal,
        "spread_calm": statistics.pstdev(calm),
        "slowed": statistics.median(disturbed) / normal,
        "slowed_held": statistics.median(held) / normal,
        "found_after_samples": found,  # 0: not found
        "score": score,
        "named": score >= (strategy.correlation_threshold or 0.0),
        "false_alarm": false_alarm,
    }
