"""Usage models compute the CPU and memory that a simulated pod uses at a moment: pure functions of time,
or traces from CSV files.

A model is written as JSON in the annotation `sim.koord.sh/usage`, for example
    {"model": "daily", "cpu": ["200m", "3"], "memory": "2Gi", "peakHour": 14, "noise": 0.1}
Wherever an amount stands, a percentage of the pod's request may stand instead ("60%"). Two amounts are
the lowest and
the highest; one amount is both. Noise comes from a hash of the pod and the minute, so asking twice
gives one answer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY, MID_CPU, MID_MEMORY
from koord.api.model import decode_text
from koord.embedded.kubelet.pod_behaviour import seeded_uniform
from koord.values.json_text import MalformedText
from koord.values.quantity import Quantity, QuantityError

DAY_S = 86_400.0
NOISE_PERIOD_S = 60.0  # how long one draw of the noise holds

Amount: TypeAlias = str | int | float
Span: TypeAlias = Amount | tuple[Amount, Amount]


class _UsageModel(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="model"
):
    cpu: Span = "50%"
    memory: Span = "80%"
    noise: float = 0.0  # the share by which noise moves an amount up or down; never out of the span of a moving model


class Constant(_UsageModel, frozen=True, kw_only=True, tag="constant"):
    """Constant usage: the middle of its span at all times."""


class Daily(_UsageModel, frozen=True, kw_only=True, tag="daily"):
    """A cosine over the day (UTC), highest at the peak hour and lowest twelve hours later."""

    peak_hour: float = 14.0


class Burst(_UsageModel, frozen=True, kw_only=True, tag="burst"):
    """High for `on_s`, low for `off_s`, repeated; a hash of the pod decides where in the cycle it begins."""

    on_s: float = msgspec.field(default=60.0, name="onSeconds")
    off_s: float = msgspec.field(default=240.0, name="offSeconds")


class Ramp(_UsageModel, frozen=True, kw_only=True, tag="ramp"):
    """Usage that grows from low to high in `over_s` after the start, then stays: a leak, or a cache that fills."""

    over_s: float = msgspec.field(default=3600.0, name="overSeconds")


class Trace(_UsageModel, frozen=True, kw_only=True, tag="trace"):
    """Recorded usage: the points of a trace that the fleet was given by name, counted from the pod's start."""

    name: str
    loop: bool = True


UsageModel: TypeAlias = Constant | Daily | Burst | Ramp | Trace


class SimulatedUsage(msgspec.Struct, frozen=True, gc=False):
    cpu_milli: int
    memory_bytes: int

    def plus(self, other: SimulatedUsage) -> SimulatedUsage:
        return SimulatedUsage(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes)


ZERO_USAGE = SimulatedUsage(0, 0)


class UsageTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace: rising times in seconds from 0, and the usage from each of them until the next."""

    times: tuple[float, ...]
    usages: tuple[SimulatedUsage, ...]

    def at(self, age_s: float, loop: bool) -> SimulatedUsage:
        if loop and self.times[-1] > 0:
            age_s %= self.times[-1] + (self.times[-1] - self.times[-2] if len(self.times) > 1 else 0.0)
        low, high = 0, len(self.times)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.times[middle] <= age_s else (low, middle)
        return self.usages[low]


class AmountRange(msgspec.Struct, frozen=True, gc=False):
    low: int
    high: int

    def at(self, share: float) -> int:
        return self.low + round((self.high - self.low) * share)


class PodLoad(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A usage model with its amounts in units, for one pod."""

    model: UsageModel
    cpu: AmountRange
    memory: AmountRange
    points: UsageTrace | None = None


class InvalidUsageModel(msgspec.Struct, frozen=True):
    rule: str


@functools.lru_cache(maxsize=4096)
def parse_usage_model(text: str) -> UsageModel | InvalidUsageModel:
    model: UsageModel | MalformedText = decode_text(text, UsageModel)  # type: ignore[arg-type]  # a union
    if isinstance(model, MalformedText):
        return InvalidUsageModel(f"is no usage model: {model}")
    return usage_model_error(model) or model


def usage_model_error(model: UsageModel) -> InvalidUsageModel | None:
    if not 0 <= model.noise < 1:
        return InvalidUsageModel("noise must be 0 or more and less than 1")
    if isinstance(model, Daily) and not 0 <= model.peak_hour < 24:
        return InvalidUsageModel("peakHour must be 0 or more and less than 24")
    if isinstance(model, Burst) and (model.on_s <= 0 or model.off_s < 0):
        return InvalidUsageModel("onSeconds must be more than 0, offSeconds 0 or more")
    if isinstance(model, Ramp) and model.over_s <= 0:
        return InvalidUsageModel("overSeconds must be more than 0")
    return None


def resolve_load(
    model: UsageModel, requests: Mapping[str, int], limits: Mapping[str, int], traces: Mapping[str, UsageTrace]
) -> PodLoad | InvalidUsageModel:
    """Resolve a model to units. A percentage is one of the request, in whichever tier it is made, else of the limit."""
    try:
        cpu = _range(model.cpu, CPU, _requested((CPU, BATCH_CPU, MID_CPU), requests, limits))
        memory = _range(model.memory, MEMORY, _requested((MEMORY, BATCH_MEMORY, MID_MEMORY), requests, limits))
    except (QuantityError, ValueError, OverflowError) as error:
        return InvalidUsageModel(str(error))
    points = None
    if isinstance(model, Trace):
        points = traces.get(model.name)
        if points is None:
            return InvalidUsageModel(f"there is no trace {model.name!r}")
    return PodLoad(model=model, cpu=cpu, memory=memory, points=points)


def _requested(names: tuple[str, ...], requests: Mapping[str, int], limits: Mapping[str, int]) -> int:
    """Return the first request or limit of `names`. Batch and mid CPU are in milli-cores like CPU, so one
    number serves all tiers.
    """
    return next((found for name in names if (found := requests.get(name) or limits.get(name))), 0)


def _range(span: Span, resource: str, request: int) -> AmountRange:
    low, high = span if isinstance(span, tuple) else (span, span)
    found = AmountRange(_units(low, resource, request), _units(high, resource, request))
    if not 0 <= found.low <= found.high:
        raise ValueError(f"{resource}: the lowest amount must be 0 or more, the highest not below it")
    return found


def _units(amount: Amount, resource: str, request: int) -> int:
    if isinstance(amount, str) and amount.endswith("%"):
        return round(request * float(amount[:-1]) / 100)
    parsed = Quantity.parse(amount)
    return parsed.milli_value() if resource == CPU else parsed.value()


def usage_at(load: PodLoad, t: float, *, started: float, seed: int, pod: str) -> SimulatedUsage:
    """Return what the pod uses at `t`, given that it started at `started`; `pod` seeds its noise."""
    model, age = load.model, t - started
    if age < 0:
        return ZERO_USAGE
    if load.points is not None and isinstance(model, Trace):
        return load.points.at(age, model.loop)
    share = _position(model, t, age, seed, pod)
    return SimulatedUsage(
        _with_noise(load.cpu, share, model, t, seed, f"{pod}/cpu"),
        _with_noise(load.memory, share, model, t, seed, f"{pod}/memory"),
    )


def _position(model: UsageModel, t: float, age: float, seed: int, pod: str) -> float:
    """Return where between lowest (0) and highest (1) the model stands."""
    match model:
        case Daily():
            return (1 + math.cos(2 * math.pi * (t / DAY_S - model.peak_hour / 24))) / 2
        case Burst():
            cycle = model.on_s + model.off_s
            return 1.0 if (age + seeded_uniform(seed, f"{pod}/phase") * cycle) % cycle < model.on_s else 0.0
        case Ramp():
            return min(1.0, age / model.over_s)
        case _:
            return 0.5


def _with_noise(span: AmountRange, share: float, model: UsageModel, t: float, seed: int, key: str) -> int:
    amount = span.at(share)
    if not model.noise:
        return amount
    draw = 2 * seeded_uniform(seed, f"{key}/{int(t // NOISE_PERIOD_S)}") - 1
    moved = round(amount * (1 + model.noise * draw))
    return moved if span.low == span.high else min(max(moved, span.low), span.high)


def max_min_fair_share(wanted: Mapping[str, SimulatedUsage], cpu_milli: int) -> dict[str, SimulatedUsage]:
    """Share CPU max-min fairly: small demands are met in full and the rest is split evenly.

    Memory is left as it is, because a node out of memory kills rather than shares. Models that know cgroups
    replace this function.
    """
    if sum(usage.cpu_milli for usage in wanted.values()) <= cpu_milli:
        return dict(wanted)
    left, granted = cpu_milli, {}
    waiting = sorted(wanted, key=lambda key: (wanted[key].cpu_milli, key))
    for position, key in enumerate(waiting):
        part = min(wanted[key].cpu_milli, left // (len(waiting) - position))
        granted[key] = SimulatedUsage(part, wanted[key].memory_bytes)
        left -= part
    return granted
