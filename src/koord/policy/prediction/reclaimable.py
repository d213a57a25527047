"""Predict how much of their requests prod pods will not need: the smaller of two predictions from their peaks.

One prediction adds up the peaks of single pods, which never come all at once; the other takes the peak of
all prod pods and of the system together, which ignores individual pods. Models and measurements are left
to others.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

COLD_START_S = 24 * 3600.0
MARGIN_PERCENT = 10


class Amount(msgspec.Struct, frozen=True, gc=False):
    cpu_milli: int = 0
    memory_bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes)

    def less(self, other: Amount) -> Amount:
        """Subtract, never below zero."""
        return Amount(max(0, self.cpu_milli - other.cpu_milli), max(0, self.memory_bytes - other.memory_bytes))

    def smaller(self, other: Amount) -> Amount:
        return Amount(min(self.cpu_milli, other.cpu_milli), min(self.memory_bytes, other.memory_bytes))

    def larger(self, other: Amount) -> Amount:
        return Amount(max(self.cpu_milli, other.cpu_milli), max(self.memory_bytes, other.memory_bytes))

    def with_margin(self, percent: int) -> Amount:
        return Amount(self.cpu_milli * (100 + percent) // 100, self.memory_bytes * (100 + percent) // 100)


NOTHING = Amount()


class ProdPod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One prod pod. `peak` is None while nothing is known of it."""

    uid: str
    request: Amount
    age_s: float
    ending: bool = False  # being deleted, or over
    peak: Amount | None = None


class ReclaimableView(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of the prediction. Peaks are without margin: the 95th percentile of CPU and the 98th of memory."""

    allocatable: Amount | None
    pods: tuple[ProdPod, ...] = ()
    prod_peak: Amount | None = None  # of all prod pods together
    unclassed_peak: Amount | None = None  # of all pods without class, which count as prod
    system_peak: Amount | None = None
    margin_percent: int = MARGIN_PERCENT
    cold_start_s: float = COLD_START_S


class Prediction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    reclaimable: Amount
    peak: Amount


class Reclaimable(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result, and the two predictions that it was made from."""

    result: Prediction
    by_pod: Prediction
    by_priority: Prediction


class Unpredictable(msgspec.Struct, frozen=True):
    why: str

    def __str__(self) -> str:
        return self.why


def decide_reclaimable(seen: ReclaimableView) -> Reclaimable | Unpredictable:
    if seen.allocatable is None:
        return Unpredictable("the node's allocatable is not known")
    repeated = _repeated(seen.pods)
    if repeated is not None:
        return Unpredictable(f"pod {repeated} is listed twice")
    by_priority = by_priority_class(seen, seen.allocatable)
    if isinstance(by_priority, Unpredictable):
        return by_priority
    by_pod = by_single_pods(seen, seen.allocatable)
    result = Prediction(
        reclaimable=by_pod.reclaimable.smaller(by_priority.reclaimable), peak=by_pod.peak.larger(by_priority.peak)
    )
    return Reclaimable(result=result, by_pod=by_pod, by_priority=by_priority)


def by_single_pods(seen: ReclaimableView, allocatable: Amount) -> Prediction:
    """Predict by pod. Pods that are new or unknown may yet need all they requested, and yield nothing."""
    unpredicted, needed, spare = NOTHING, NOTHING, NOTHING
    for pod in seen.pods:
        if pod.age_s <= seen.cold_start_s:
            unpredicted += pod.request
        elif pod.ending:
            continue
        elif pod.peak is None:
            unpredicted += pod.request
        else:
            peak = pod.peak.with_margin(seen.margin_percent)
            needed += peak
            spare += pod.request.less(peak)
    return Prediction(reclaimable=allocatable.less(needed).smaller(spare), peak=needed + unpredicted)


def by_priority_class(seen: ReclaimableView, allocatable: Amount) -> Prediction | Unpredictable:
    if seen.prod_peak is None or seen.unclassed_peak is None or seen.system_peak is None:
        return Unpredictable("prod pods or the system were not observed yet")
    asked = NOTHING
    for pod in seen.pods:
        asked = asked if pod.ending else asked + pod.request
    needed = (seen.system_peak + seen.prod_peak + seen.unclassed_peak).with_margin(seen.margin_percent)
    return Prediction(reclaimable=allocatable.less(needed).smaller(asked.less(needed)), peak=needed)


def _repeated(pods: Sequence[ProdPod]) -> str | None:
    seen: set[str] = set()
    for pod in pods:
        if pod.uid in seen:
            return pod.uid
        seen.add(pod.uid)
    return None
