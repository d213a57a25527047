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

from koord.api.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY, MID_CPU, MID_MEMORY
from koord.embedded.kubelet.behaviour import chance
from koord.values.quantity import Quantity, QuantityError

DAY_S = 86_400.0
NOISE_S = 60.0  # how long one draw of the noise holds

Amount: TypeAlias = str | int | float
Span: TypeAlias = Amount | tuple[Amount, Amount]


class _Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="model"):
    cpu: Span = "50%"
    memory: Span = "80%"
    noise: float = 0.0  # the share by which noise moves an amount up or down; never out of the span of a moving model


class Constant(_Model, frozen=True, kw_only=True, tag="constant"):
    """Constant usage: the middle of its span at all times."""


class Daily(_Model, frozen=True, kw_only=True, tag="daily"):
    """A cosine over the day (UTC), highest at the peak hour and lowest twelve hours later."""

    peak_hour: float = 14.0


class Burst(_Model, frozen=True, kw_only=True, tag="burst"):
    """High for `on_s`, low for `off_s`, repeated; a hash of the pod decides where in the cycle it begins."""

    on_s: float = msgspec.field(default=60.0, name="onSeconds")
    off_s: float = msgspec.field(default=240.0, name="offSeconds")


class Ramp(_Model, frozen=True, kw_only=True, tag="ramp"):
    """Usage that grows from low to high in `over_s` after the pod started, then stays high: a leak, or a cache
    that fills.
    """

    over_s: float = msgspec.field(default=3600.0, name="overSeconds")


class Trace(_Model, frozen=True, kw_only=True, tag="trace"):
    """Recorded usage: the points of a trace that the fleet was given by name, counted from the pod's start."""

    name: str
    loop: bool = True


Model: TypeAlias = Constant | Daily | Burst | Ramp | Trace


class Usage(msgspec.Struct, frozen=True, gc=False):
    cpu_milli: int
    memory_bytes: int

    def plus(self, other: Usage) -> Usage:
        return Usage(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes)


NOTHING = Usage(0, 0)


class Points(msgspec.Struct, frozen=True, kw_only=True):
    """A trace: rising times in seconds from 0, and the usage from each of them until the next."""

    times: tuple[float, ...]
    usages: tuple[Usage, ...]

    def at(self, age_s: float, loop: bool) -> Usage:
        if loop and self.times[-1] > 0:
            age_s %= self.times[-1] + (self.times[-1] - self.times[-2] if len(self.times) > 1 else 0.0)
        low, high = 0, len(self.times)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.times[middle] <= age_s else (low, middle)
        return self.usages[low]


class Range(msgspec.Struct, frozen=True, gc=False):
    low: int
    high: int

    def at(self, share: float) -> int:
        return self.low + round((self.high - self.low) * share)


class Load(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A usage model with its amounts in units, for one pod."""

    model: Model
    cpu: Range
    memory: Range
    points: Points | None = None


class BadUsage(msgspec.Struct, frozen=True):
    rule: str


_DECODER: msgspec.json.Decoder[Model] = msgspec.json.Decoder(Model)


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Model | BadUsage:
    try:
        model = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        return BadUsage(f"is no usage model: {error}")
    return nonsense(model) or model


def nonsense(model: Model) -> BadUsage | None:
    if not 0 <= model.noise < 1:
        return BadUsage("noise must be 0 or more and less than 1")
    if isinstance(model, Daily) and not 0 <= model.peak_hour < 24:
        return BadUsage("peakHour must be 0 or more and less than 24")
    if isinstance(model, Burst) and (model.on_s <= 0 or model.off_s < 0):
        return BadUsage("onSeconds must be more than 0, offSeconds 0 or more")
    if isinstance(model, Ramp) and model.over_s <= 0:
        return BadUsage("overSeconds must be more than 0")
    return None


def load_of(
    model: Model, requests: Mapping[str, int], limits: Mapping[str, int], traces: Mapping[str, Points]
) -> Load | BadUsage:
    """Resolve a model to units. A percentage is one of the request, in whichever tier it is made, else of the
    limit.
    """
    try:
        cpu = _range(model.cpu, CPU, _asked((CPU, BATCH_CPU, MID_CPU), requests, limits))
        memory = _range(model.memory, MEMORY, _asked((MEMORY, BATCH_MEMORY, MID_MEMORY), requests, limits))
    except (QuantityError, ValueError, OverflowError) as error:
        return BadUsage(str(error))
    points = None
    if isinstance(model, Trace):
        points = traces.get(model.name)
        if points is None:
            return BadUsage(f"there is no trace {model.name!r}")
    return Load(model=model, cpu=cpu, memory=memory, points=points)


def _asked(names: tuple[str, ...], requests: Mapping[str, int], limits: Mapping[str, int]) -> int:
    """Return the first request or limit of `names`. Batch and mid CPU are in milli-cores like CPU, so one
    number serves all tiers.
    """
    return next((found for name in names if (found := requests.get(name) or limits.get(name))), 0)


def _range(span: Span, resource: str, request: int) -> Range:
    low, high = span if isinstance(span, tuple) else (span, span)
    found = Range(_units(low, resource, request), _units(high, resource, request))
    if not 0 <= found.low <= found.high:
        raise ValueError(f"{resource}: the lowest amount must be 0 or more, the highest not below it")
    return found


def _units(amount: Amount, resource: str, request: int) -> int:
    if isinstance(amount, str) and amount.endswith("%"):
        return round(request * float(amount[:-1]) / 100)
    parsed = Quantity.parse(amount)
    return parsed.milli_value() if resource == CPU else parsed.value()


def usage_at(load: Load, t: float, *, started: float, seed: int, pod: str) -> Usage:
    """Return what the pod uses at `t`, given that it started at `started`; `pod` seeds its noise."""
    model, age = load.model, t - started
    if age < 0:
        return NOTHING
    if load.points is not None and isinstance(model, Trace):
        return load.points.at(age, model.loop)
    share = _share(model, t, age, seed, pod)
    return Usage(
        _noisy(load.cpu, share, model, t, seed, f"{pod}/cpu"),
        _noisy(load.memory, share, model, t, seed, f"{pod}/memory"),
    )


def _share(model: Model, t: float, age: float, seed: int, pod: str) -> float:
    """Return where between lowest (0) and highest (1) the model stands."""
    match model:
        case Daily():
            return (1 + math.cos(2 * math.pi * (t / DAY_S - model.peak_hour / 24))) / 2
        case Burst():
            cycle = model.on_s + model.off_s
            return 1.0 if (age + chance(seed, f"{pod}/phase") * cycle) % cycle < model.on_s else 0.0
        case Ramp():
            return min(1.0, age / model.over_s)
        case _:
            return 0.5


def _noisy(span: Range, share: float, model: Model, t: float, seed: int, key: str) -> int:
    amount = span.at(share)
    if not model.noise:
        return amount
    draw = 2 * chance(seed, f"{key}/{int(t // NOISE_S)}") - 1
    moved = round(amount * (1 + model.noise * draw))
    return moved if span.low == span.high else min(max(moved, span.low), span.high)


def fair_share(wanted: Mapping[str, Usage], cpu_milli: int) -> dict[str, Usage]:
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
        granted[key] = Usage(part, wanted[key].memory_bytes)
        left -= part
    return granted
