"""One tenant of a GPU, as a process of its own: python -m bench.gpu_tenant KIND. It says when it is ready, waits for
the moment to begin on its standard input, and prints what it measured as JSON.

Kinds: `load` keeps the card busy, `small` times small kernels one by one, `memory` allocates up to a limit, `fault`
makes a kernel write where nothing is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from koord.gpu import probe
from koord.gpu.driver import BLOCKS_PER_SM, CudaCard, CudaDriver, CudaError

RAMP_S = 0.5  # at both ends of a load, that do not count
_SMALL_ROUNDS = 20
_NO_MEMORY = 0x10  # an address that no allocation has
_FEW_BLOCKS_ROUNDS = 1600


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("load", "small", "memory", "fault"))
    parser.add_argument("--ex", action="store_true", help="launch by cuLaunchKernelEx")
    parser.add_argument("--few-blocks", action="store_true", help="one long block for each place on the card")
    parser.add_argument("--bytes", type=int, default=0)
    asked = parser.parse_args(argv)
    card = _open(asked.ex)
    if isinstance(card, CudaError):
        return _end({"error": str(card)})
    found: dict[str, Any] | CudaError
    if asked.kind == "memory":
        found = _memory(card, asked.bytes)
    elif asked.kind == "small":
        found = _small(card)
    elif asked.kind == "fault":
        found = _fault(card)
    else:
        found = _load(card, few_blocks=asked.few_blocks)
    return _end({"error": str(found)} if isinstance(found, CudaError) else found)


def _open(ex: bool) -> CudaCard | CudaError:
    driver = CudaDriver.open()
    return driver if isinstance(driver, CudaError) else CudaCard.open(driver, ex_launch=ex)


def _end(found: dict[str, Any]) -> int:
    print(json.dumps(found), flush=True)
    return 1 if "error" in found else 0


def _wait_for_start() -> tuple[float, float]:
    """Tell that all is prepared, and wait; return when to begin (monotonic) and for how many seconds."""
    print(json.dumps({"ready": True}), flush=True)
    start, seconds = map(float, sys.stdin.readline().split())
    time.sleep(max(start - time.monotonic(), 0.0))
    return start, seconds


def _load(card: CudaCard, *, few_blocks: bool) -> dict[str, Any] | CudaError:
    load = probe.full_load(card)
    if few_blocks:
        load = probe.KernelLoad(card, max(card.sm_count, 1) * BLOCKS_PER_SM, _FEW_BLOCKS_ROUNDS)
    start, seconds = _wait_for_start()
    failed = load.start()
    done: list[float] = []
    while failed is None and time.monotonic() < start + seconds:
        failed = load.turn()
        done.append(time.monotonic() - start)
    if failed is not None:
        return CudaError(failed.call, failed.code, f"{failed.detail} after {done[-1] if done else 0:.1f} s")
    counted = load.finish()
    if isinstance(counted, CudaError):
        return counted
    counters, cycles, elapsed_ns = counted
    inside = [at for at in done if RAMP_S <= at <= seconds - RAMP_S]
    rate = (len(inside) - 1) * load.fma_per_launch / (inside[-1] - inside[0]) if len(inside) > 1 else 0.0
    by_second = [
        round(sum(1 for at in done if second <= at < second + 1) * load.fma_per_launch / 1e12, 2)
        for second in range(int(seconds))
    ]
    return {
        "tera_fma_per_s": rate / 1e12,
        "by_second": by_second,
        "sms_reached": sum(1 for blocks in counters if blocks),
        "sms_admitted": card.sm_count,
        "clock_ghz": cycles / elapsed_ns if elapsed_ns else 0.0,
        "launches": load.launches,
    }


def _small(card: CudaCard) -> dict[str, Any] | CudaError:
    load = probe.KernelLoad(card, 1, _SMALL_ROUNDS)
    start, seconds = _wait_for_start()
    failed = load.start(in_flight=1)
    took_us: list[float] = []
    while failed is None and time.monotonic() < start + seconds:
        began = time.perf_counter()
        failed = load.turn()
        took_us.append(1e6 * (time.perf_counter() - began))
    if failed is not None:
        return failed
    took_us.sort()
    return {
        "count": len(took_us),
        "p50_us": took_us[len(took_us) // 2],
        "p99_us": took_us[len(took_us) * 99 // 100],
        "max_us": took_us[-1],
    }


def _memory(card: CudaCard, limit_bytes: int) -> dict[str, Any] | CudaError:
    _wait_for_start()
    found = probe.measure_memory(card, limit_bytes)
    if isinstance(found, CudaError):
        return found
    return {
        "visible_bytes": found.visible_bytes,
        "allocated_bytes": found.allocated_bytes,
        "tried_bytes": found.tried_bytes,
        "refused": found.refused,
    }


def _fault(card: CudaCard) -> dict[str, Any] | CudaError:
    _wait_for_start()
    failed = card.launch(1, _NO_MEMORY, _NO_MEMORY, _NO_MEMORY, 1) or card.synchronize()
    return {"fault": str(failed) if failed is not None else "none"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
