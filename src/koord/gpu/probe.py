"""Measure what this process gets of a card: how much memory, how many multiprocessors, how much arithmetic.

Memory is asked for up to a little above the limit and given back at once: where no limit holds, neighbours lose that
little for a moment, and not their memory.

The verdict on the limits of a share follows from what was asked, what was granted and what was measured. Memory holds
where the driver refuses what is above the limit, and gives nearly all that is below it. Cores hold where the
arithmetic that was done, or the multiprocessors that were reached, are the share and no more. All of it is pure.
"""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from koord.gpu import driver as driver_module
from koord.gpu.driver import (
    BLOCKS_PER_SM,
    CLOCK_BYTES,
    COUNTER_BYTES,
    FMA_PER_ROUND,
    ISSUE_SHARE,
    LIBRARY,
    OUT_OF_MEMORY,
    SM_SLOTS,
    THREADS,
    CudaCard,
    CudaDriver,
    CudaError,
    fma_lanes,
)
from koord.gpu.isolation import MPS_PIPE, GpuLimits, without_limits

MEBI = 1 << 20
_FIRST_STEPS = 64  # that the limit is cut into
_SMALLEST_STEP = 2 * MEBI  # the driver's granularity
ABOVE_LIMIT = 0.04  # of the limit, that is asked for above it
_ROUNDS = 40  # of one thread: a full multiprocessor is busy with its blocks for about 90 microseconds
_WAVES = 40  # blocks of one launch for each place on the card, so that the last wave weighs little
_IN_FLIGHT = 4  # launches, so that the card never waits for the host
NVML = "libnvidia-ml.so.1"
_COUNT_S = 60.0  # for a process to load the driver


class MemoryMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """`allocated_bytes` is what could be had, up to `tried_bytes`; `refused` whether the driver then said no."""

    visible_bytes: int  # that the driver says the card has
    allocated_bytes: int
    tried_bytes: int
    refused: bool


class CoreMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """`whole_card_fma_per_s` is the rate of all multiprocessors at the clock that was measured, unless it was given."""

    sms: int  # of the card
    sms_reached: int
    fma_per_s: float
    whole_card_fma_per_s: float
    clock_hz: float
    busy_percent_before: int | None = None  # how busy others kept the card; None where it is not told

    @property
    def core_percent(self) -> float:
        return 100 * self.fma_per_s / self.whole_card_fma_per_s if self.whole_card_fma_per_s else 0.0

    @property
    def sm_percent(self) -> float:
        return 100 * self.sms_reached / self.sms if self.sms else 0.0


class ProbeMeasures(msgspec.Struct, frozen=True, kw_only=True):
    card: str
    cuda_version: int
    memory: MemoryMeasure | None = None
    cores: CoreMeasure | None = None


def measure(
    limits: GpuLimits,
    environment: Mapping[str, str],
    *,
    seconds: float = 2.0,
    whole_card_fma_per_s: float = 0.0,
    library: str = LIBRARY,
) -> ProbeMeasures | CudaError:
    """Measure the first card of this process against its limits; what has no limit is not measured."""
    busy = busy_percent()
    sms = count_all_sms(environment, library) if limits.core_percent is not None else 0
    if isinstance(sms, CudaError):
        return sms
    driver = CudaDriver.open(library)
    if isinstance(driver, CudaError):
        return driver
    version = driver.version()
    if isinstance(version, CudaError):
        return version
    card = CudaCard.open(driver)
    if isinstance(card, CudaError):
        return card
    memory: MemoryMeasure | CudaError | None = None
    cores: CoreMeasure | CudaError | None = None
    if limits.core_percent is not None:  # first: a card full of memory has no room for the kernel's counters
        cores = measure_cores(card, sms, seconds, whole_card_fma_per_s, busy)
    if isinstance(cores, CudaError):
        return cores
    if limits.memory_bytes is not None:
        memory = measure_memory(card, limits.memory_bytes)
    if isinstance(memory, CudaError):
        return memory
    failed = card.close()
    return failed or ProbeMeasures(card=card.name, cuda_version=version, memory=memory, cores=cores)


def measure_memory(card: CudaCard, limit_bytes: int) -> MemoryMeasure | CudaError:
    """Allocate up to the limit and a little beyond, in steps that become smaller where the driver refuses."""
    before = card.memory()
    if isinstance(before, CudaError):
        return before
    tried = int(limit_bytes * (1 + ABOVE_LIMIT)) + _SMALLEST_STEP
    step, held, refused = max(limit_bytes // _FIRST_STEPS, _SMALLEST_STEP), 0, False
    addresses: list[int] = []
    failed: CudaError | None = None
    while held < tried:
        found = card.allocate(min(step, tried - held))
        if isinstance(found, int):
            addresses.append(found)
            held += min(step, tried - held)
        elif found.code != OUT_OF_MEMORY:
            failed = found
            break
        elif step <= _SMALLEST_STEP:
            refused = True
            break
        else:
            step = max(step // 2, _SMALLEST_STEP)
    for address in addresses:
        failed = card.free(address) or failed
    return failed or MemoryMeasure(
        visible_bytes=before.total_bytes, allocated_bytes=held, tried_bytes=tried, refused=refused
    )


class KernelLoad:
    """KernelLoad keeps a card busy with the probe's kernel and counts what it did."""

    def __init__(self, card: CudaCard, blocks: int, rounds: int) -> None:
        self._card = card
        self.blocks = blocks
        self.rounds = rounds
        self._buffers: tuple[int, int, int] = (0, 0, 0)
        self._events: deque[ctypes.c_void_p] = deque()
        self.launches = 0

    @property
    def fma_per_launch(self) -> int:
        return self.blocks * THREADS * self.rounds * FMA_PER_ROUND

    def start(self, in_flight: int = _IN_FLIGHT) -> CudaError | None:
        """Allocate what the kernel writes, and start as many launches as are to be in flight."""
        addresses: list[int] = []
        for size in (COUNTER_BYTES, CLOCK_BYTES, 16):
            address = self._card.allocate(size)
            if isinstance(address, CudaError):
                return address
            addresses.append(address)
            failed = self._card.clear(address, size)
            if failed is not None:
                return failed
        self._buffers = (addresses[0], addresses[1], addresses[2])
        for _ in range(in_flight):
            event = self._card.new_event()
            if isinstance(event, CudaError):
                return event
            failed = self._launch(event)
            if failed is not None:
                return failed
        return None

    def turn(self) -> CudaError | None:
        """Wait for the oldest launch, and start another in its place."""
        event = self._events.popleft()
        failed = self._card.wait(event)
        if failed is not None:
            return failed
        self.launches += 1
        return self._launch(event)

    def run(self, until: Callable[[], bool]) -> CudaError | None:
        while not until():
            failed = self.turn()
            if failed is not None:
                return failed
        return None

    def finish(self) -> tuple[list[int], int, int] | CudaError:
        """Wait for the end; return blocks by multiprocessor, and the cycles and nanoseconds of first blocks."""
        failed = self._card.synchronize()
        if failed is not None:
            return failed
        counters = self._card.read(self._buffers[0], COUNTER_BYTES)
        clock = self._card.read(self._buffers[1], CLOCK_BYTES)
        if isinstance(counters, CudaError):
            return counters
        if isinstance(clock, CudaError):
            return clock
        for address in self._buffers:
            failed = self._card.free(address)
            if failed is not None:
                return failed
        cycles, elapsed_ns = struct.unpack("<QQ", clock)
        return list(struct.unpack(f"<{SM_SLOTS}I", counters)), cycles, elapsed_ns

    def _launch(self, event: ctypes.c_void_p) -> CudaError | None:
        failed = self._card.launch(self.blocks, *self._buffers, self.rounds) or self._card.record(event)
        self._events.append(event)
        return failed


def full_load(card: CudaCard) -> KernelLoad:
    """Return a load that fills the card: many short blocks, so that shares are seen at once."""
    return KernelLoad(card, blocks=max(card.sm_count, 1) * BLOCKS_PER_SM * _WAVES, rounds=_ROUNDS)


def count_all_sms(environment: Mapping[str, str], library: str = LIBRARY) -> int | CudaError:
    """Return the multiprocessors of the card, asked by a process without limits: a client of MPS is told of its share
    alone, by the driver and by the card.
    """
    free = {name: text for name, text in without_limits(environment).items() if name != MPS_PIPE}
    command = [sys.executable, "-m", driver_module.__name__, library]
    try:
        done = subprocess.run(command, env=free, capture_output=True, text=True, timeout=_COUNT_S, check=False)
    except subprocess.TimeoutExpired:
        return CudaError("count", 0, f"the driver did not answer within {_COUNT_S:.0f} s")
    text = done.stdout.strip()
    if done.returncode or not text.isdecimal():
        return CudaError("count", 0, text or done.stderr.strip() or f"status {done.returncode}")
    return int(text)


def measure_cores(
    card: CudaCard, sms: int, seconds: float, whole_card_fma_per_s: float = 0.0, busy: int | None = None
) -> CoreMeasure | CudaError:
    """Run arithmetic for so long; `sms` are the multiprocessors of the card."""
    load = full_load(card)
    failed = load.start()
    if failed is not None:
        return failed
    warm = time.monotonic() + min(0.5, seconds / 4)  # clocks rise within that time, and limiters begin to act
    failed = load.run(lambda: time.monotonic() >= warm)
    started, before = time.monotonic(), load.launches
    failed = failed or load.run(lambda: time.monotonic() - started >= seconds)
    if failed is not None:
        return failed
    took, done = time.monotonic() - started, load.launches - before
    counted = load.finish()
    if isinstance(counted, CudaError):
        return counted
    counters, cycles, elapsed_ns = counted
    clock_hz = 1e9 * cycles / elapsed_ns if elapsed_ns else 0.0
    lanes = fma_lanes(card.capability)
    return CoreMeasure(
        sms=sms,
        sms_reached=sum(1 for blocks in counters if blocks),
        fma_per_s=done * load.fma_per_launch / took,
        whole_card_fma_per_s=whole_card_fma_per_s or sms * lanes * clock_hz * ISSUE_SHARE,
        clock_hz=clock_hz,
        busy_percent_before=busy,
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def busy_percent(library: str = NVML) -> int | None:
    """Return how busy the first card was in the last moments; None where NVML does not tell."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    handle, found = ctypes.c_void_p(), _Utilization()
    told = (
        nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(0), ctypes.byref(handle)) == 0
        and nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(found)) == 0
    )
    nvml.nvmlShutdown()
    return int(found.gpu) if told else None


Verdict = Literal["holds", "does not hold", "cannot tell"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
UNKNOWN: Verdict = "cannot tell"
EXIT_CODES = {HOLDS: 0, FAILS: 1, UNKNOWN: 3}  # 2 is of wrong usage

CONDITION = "koordinator.sh/gpu-isolation-verified"
_CONDITION_STATUS = {HOLDS: ("True", "Holds"), FAILS: ("False", "DoesNotHold"), UNKNOWN: ("Unknown", "CannotTell")}

MEMORY_TOLERANCE = 0.02
# The driver keeps a part of the limit for the process's context and the kernels' code.
CONTEXT_BYTES = 1 << 30
CORE_TOLERANCE = 5.0  # points
_BUSY_PERCENT = 5  # of others, from which a share of time says nothing


class LimitVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One limit. Memory is in bytes, cores in percent; None is no limit, or not measured."""

    resource: Literal["memory", "cores"]
    asked: int | None
    granted: int | None
    measured: float | None
    verdict: Verdict
    reason: str


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts on one card. `verdict` is the worst of them."""

    provider: str
    card: str
    verdict: Verdict
    limits: tuple[LimitVerdict, ...]
    measures: ProbeMeasures | None = None
    sms: int | None = None
    sms_reached: int | None = None

    @property
    def message(self) -> str:
        return "; ".join(f"{one.resource}: {one.verdict}: {one.reason}" for one in self.limits)


class GpuCondition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The condition of a pod that tells the verdict."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str


def condition_of(report: VerifyReport, at: str) -> GpuCondition:
    status, reason = _CONDITION_STATUS[report.verdict]
    return GpuCondition(type=CONDITION, status=status, reason=reason, message=report.message, last_transition_time=at)


def wanted_limits(asked: GpuLimits, granted: GpuLimits) -> GpuLimits:
    """Return what is to be measured: what was asked; what was granted where the asker is not known."""
    return GpuLimits(
        provider=granted.provider,
        memory_bytes=asked.memory_bytes if asked.memory_bytes is not None else granted.memory_bytes,
        core_percent=asked.core_percent if asked.core_percent is not None else granted.core_percent,
    )


def judge(asked: GpuLimits, granted: GpuLimits, measured: ProbeMeasures | str) -> VerifyReport:
    """Compare. Text in place of measures says why nothing could be measured."""
    wanted = wanted_limits(asked, granted)
    if isinstance(measured, str):
        rows = [
            _row("memory", asked.memory_bytes, granted.memory_bytes, None, UNKNOWN, measured),
            _row("cores", asked.core_percent, granted.core_percent, None, UNKNOWN, measured),
        ]
        return _report(granted, "", rows, None)
    rows = [
        judge_memory(asked.memory_bytes, granted.memory_bytes, wanted.memory_bytes, measured.memory),
        judge_cores(asked.core_percent, granted.core_percent, wanted.core_percent, measured.cores),
    ]
    return _report(granted, measured.card, rows, measured)


def judge_memory(
    asked: int | None, granted: int | None, wanted: int | None, found: MemoryMeasure | None
) -> LimitVerdict:
    if wanted is None or found is None:
        return _row("memory", asked, granted, None, UNKNOWN, "no limit was asked for or granted")
    held, room = found.allocated_bytes, wanted * (1 - MEMORY_TOLERANCE) - CONTEXT_BYTES
    if not found.refused or held > wanted * (1 + MEMORY_TOLERANCE):
        why = f"{_gib(held)} could be allocated, {_gib(wanted)} is the limit"
        return _row("memory", asked, granted, held, FAILS, _no_grant(granted, why))
    if held < room:
        if found.visible_bytes < wanted * (1 - MEMORY_TOLERANCE):
            why = f"the card shows {_gib(found.visible_bytes)}, less than the limit of {_gib(wanted)}"
            return _row("memory", asked, granted, held, FAILS, why)
        why = f"refused at {_gib(held)} of {_gib(wanted)}: others may hold the rest of the card"
        return _row("memory", asked, granted, held, UNKNOWN, why)
    return _row("memory", asked, granted, held, HOLDS, f"refused above {_gib(held)}, {_gib(wanted)} is the limit")


def judge_cores(asked: int | None, granted: int | None, wanted: int | None, found: CoreMeasure | None) -> LimitVerdict:
    if wanted is None or found is None:
        return _row("cores", asked, granted, None, UNKNOWN, "no limit was asked for or granted")
    share, spread = found.core_percent, found.sm_percent
    seen = f"{share:.0f} % of the arithmetic, {found.sms_reached} of {found.sms} multiprocessors"
    spatial = spread <= wanted + CORE_TOLERANCE
    if share > wanted + CORE_TOLERANCE and not spatial:
        return _row("cores", asked, granted, share, FAILS, _no_grant(granted, f"{seen}: more than {wanted} %"))
    busy = found.busy_percent_before
    if not spatial and busy is not None and busy > _BUSY_PERCENT:
        why = f"{seen}; others kept the card {busy} % busy, so that a limit and a neighbour look alike"
        return _row("cores", asked, granted, share, UNKNOWN, why)
    if share < wanted - CORE_TOLERANCE:
        why = f"{seen}: less than {wanted} %"
        return _row("cores", asked, granted, share, FAILS, why)
    return _row("cores", asked, granted, share, HOLDS, seen)


def _row(
    resource: Literal["memory", "cores"],
    asked: int | None,
    granted: int | None,
    measured: float | None,
    verdict: Verdict,
    reason: str,
) -> LimitVerdict:
    return LimitVerdict(
        resource=resource, asked=asked, granted=granted, measured=measured, verdict=verdict, reason=reason
    )


def _report(granted: GpuLimits, card: str, rows: list[LimitVerdict], measured: ProbeMeasures | None) -> VerifyReport:
    limited = [one for one in rows if one.asked is not None or one.granted is not None]
    verdicts = [one.verdict for one in limited] or [UNKNOWN]
    worst = FAILS if FAILS in verdicts else UNKNOWN if UNKNOWN in verdicts else HOLDS
    cores = None if measured is None else measured.cores
    return VerifyReport(
        provider=granted.provider,
        card=card,
        verdict=worst,
        limits=tuple(limited or rows),
        measures=measured,
        sms=None if cores is None else cores.sms,
        sms_reached=None if cores is None else cores.sms_reached,
    )


def _no_grant(granted: int | None, why: str) -> str:
    return why if granted is not None else f"{why}, and no provider limits this process"


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 30):.2f} GiB"
