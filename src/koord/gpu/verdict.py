"""The verdict on the limits of a share, from what was asked, what was granted and what was measured.

Memory holds where the driver refuses what is above the limit, and gives nearly all that is below it. Cores hold where
the arithmetic that was done, or the multiprocessors that were reached, are the share and no more. All of it is pure.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from koord.gpu.isolation import GpuLimits
from koord.gpu.probe import CoreMeasure, MemoryMeasure, ProbeMeasures

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
