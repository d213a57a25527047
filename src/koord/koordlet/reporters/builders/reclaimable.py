"""Predict how much of their requests prod pods will not need: the smaller of two predictions from their peaks.

One prediction adds up the peaks of single pods, which never come all at once; the other takes the peak of
all prod pods and of the system together, which ignores individual pods. Models and measurements are left
to others.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.koordinator.slo import ResourceMap
from koord.api.model import ResourceList
from koord.koordlet.series.store import LARGEST_VALUE
from koord.values.quantity import Format, Quantity

COLD_START_S = 24 * 3600.0
MARGIN_PERCENT = 10


class ResourceAmount(msgspec.Struct, frozen=True, gc=False):
    cpu_milli: int = 0
    memory_bytes: int = 0

    def __add__(self, other: ResourceAmount) -> ResourceAmount:
        return ResourceAmount(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes)

    def minus_floor_zero(self, other: ResourceAmount) -> ResourceAmount:
        return ResourceAmount(max(0, self.cpu_milli - other.cpu_milli), max(0, self.memory_bytes - other.memory_bytes))

    def minimum(self, other: ResourceAmount) -> ResourceAmount:
        return ResourceAmount(min(self.cpu_milli, other.cpu_milli), min(self.memory_bytes, other.memory_bytes))

    def maximum(self, other: ResourceAmount) -> ResourceAmount:
        return ResourceAmount(max(self.cpu_milli, other.cpu_milli), max(self.memory_bytes, other.memory_bytes))

    def with_margin(self, percent: int) -> ResourceAmount:
        return ResourceAmount(self.cpu_milli * (100 + percent) // 100, self.memory_bytes * (100 + percent) // 100)


NO_RESOURCES = ResourceAmount()


class ProdPod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One prod pod. `peak` is None while nothing is known of it."""

    uid: str
    request: ResourceAmount
    age_s: float
    ending: bool = False  # being deleted, or over
    peak: ResourceAmount | None = None


class ReclaimableView(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of the prediction. Peaks are without margin: the 95th percentile of CPU and the 98th of memory."""

    allocatable: ResourceAmount | None
    pods: tuple[ProdPod, ...] = ()
    prod_peak: ResourceAmount | None = None  # of all prod pods together
    unclassed_peak: ResourceAmount | None = None  # of all pods without class, which count as prod
    system_peak: ResourceAmount | None = None
    margin_percent: int = MARGIN_PERCENT
    cold_start_s: float = COLD_START_S


class PeakPrediction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    reclaimable: ResourceAmount
    peak: ResourceAmount


class Reclaimable(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result, and the two predictions that it was made from."""

    result: PeakPrediction
    by_pod: PeakPrediction
    by_priority: PeakPrediction


class Unpredictable(msgspec.Struct, frozen=True):
    why: str

    def __str__(self) -> str:
        return self.why


def decide_reclaimable(seen: ReclaimableView) -> Reclaimable | Unpredictable:
    if seen.allocatable is None:
        return Unpredictable("the node's allocatable is not known")
    repeated = _duplicate_uid(seen.pods)
    if repeated is not None:
        return Unpredictable(f"pod {repeated} is listed twice")
    by_priority = predict_by_priority(seen, seen.allocatable)
    if isinstance(by_priority, Unpredictable):
        return by_priority
    by_pod = predict_by_pod(seen, seen.allocatable)
    result = PeakPrediction(
        reclaimable=by_pod.reclaimable.minimum(by_priority.reclaimable), peak=by_pod.peak.maximum(by_priority.peak)
    )
    return Reclaimable(result=result, by_pod=by_pod, by_priority=by_priority)


def predict_by_pod(seen: ReclaimableView, allocatable: ResourceAmount) -> PeakPrediction:
    """Predict by pod. Pods that are new or unknown may yet need all they requested, and yield nothing."""
    unpredicted, needed, spare = NO_RESOURCES, NO_RESOURCES, NO_RESOURCES
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
            spare += pod.request.minus_floor_zero(peak)
    return PeakPrediction(reclaimable=allocatable.minus_floor_zero(needed).minimum(spare), peak=needed + unpredicted)


def predict_by_priority(seen: ReclaimableView, allocatable: ResourceAmount) -> PeakPrediction | Unpredictable:
    if seen.prod_peak is None or seen.unclassed_peak is None or seen.system_peak is None:
        return Unpredictable("prod pods or the system were not observed yet")
    asked = NO_RESOURCES
    for pod in seen.pods:
        asked = asked if pod.ending else asked + pod.request
    needed = (seen.system_peak + seen.prod_peak + seen.unclassed_peak).with_margin(seen.margin_percent)
    return PeakPrediction(
        reclaimable=allocatable.minus_floor_zero(needed).minimum(asked.minus_floor_zero(needed)), peak=needed
    )


def _duplicate_uid(pods: Sequence[ProdPod]) -> str | None:
    seen: set[str] = set()
    for pod in pods:
        if pod.uid in seen:
            return pod.uid
        seen.add(pod.uid)
    return None


def is_usable(value: float | None) -> bool:
    return value is not None and 0 <= value <= LARGEST_VALUE


def resource_list(cores: float, memory_bytes: float) -> ResourceList:
    return {CPU: milli_quantity(int(cores * 1000)), MEMORY: bytes_quantity(int(memory_bytes))}


def usage_map(cores: float | None, memory_bytes: float | None) -> ResourceMap | None:
    """Return the usage, or None unless both numbers are usable: half a report would be read as a whole one."""
    if cores is None or memory_bytes is None or not (is_usable(cores) and is_usable(memory_bytes)):
        return None
    return ResourceMap(resources=resource_list(cores, memory_bytes))


def resource_map_of_amount(amount: ResourceAmount) -> ResourceMap:
    return ResourceMap(resources={CPU: milli_quantity(amount.cpu_milli), MEMORY: bytes_quantity(amount.memory_bytes)})


def milli_quantity(milli: int) -> str:
    return str(Quantity.from_milli(milli))


def bytes_quantity(count: int) -> str:
    return str(Quantity.from_value(count, Format.BINARY_SI))
