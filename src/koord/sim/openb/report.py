"""Compare runs with what was published of the same seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

import msgspec

from koord.sim.openb.chart import Curve, chart
from koord.sim.openb.replay import KOORD, Run
from koord.sim.openb.trace import read_published

LOADS = (80, 95, 100, 130)
PUBLISHED = ("BestFit", "FGD")


class Compared(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A run beside published curves of the same seed by policy.

    `largest_gap` is to the published run of the same policy, over all loads; None where there is none, or the
    order is not the published one.
    """

    run: Run
    published: Mapping[str, Mapping[int, float]]
    largest_gap: float | None = None


class Mean(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    policy: str
    variant: str
    seeds: tuple[int, ...]
    allocation: Mapping[int, float]
    spread: float | None  # standard deviation at the last load
    published: Mapping[str, Mapping[int, float]]  # means over the same seeds


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    runs: tuple[Compared, ...]
    means: tuple[Mean, ...]


def compared(run: Run, folder: Path) -> Compared:
    published = {name: read_published(folder, run.variant, name, run.seed) for name in PUBLISHED}
    if not run.published_order:
        return Compared(run=run, published={})
    same = published.get(run.policy, {})
    gaps = [abs(same[load] - percent) for load, percent in run.allocation.items() if load in same]
    kept = {name: curve for name, curve in published.items() if curve}
    return Compared(run=run, published=kept, largest_gap=round(max(gaps), 2) if gaps else None)


def report(runs: Iterable[Compared]) -> Report:
    runs = tuple(runs)
    groups: dict[tuple[str, str], list[Compared]] = {}
    for one in runs:
        groups.setdefault((one.run.variant, one.run.policy), []).append(one)
    return Report(runs=runs, means=tuple(_mean(group) for group in groups.values()))


def _mean(group: Sequence[Compared]) -> Mean:
    curves = [one.run.allocation for one in group]
    last = max(_common(curves), default=None)
    ends = [curve[last] for curve in curves] if last is not None else []
    names = [name for name in PUBLISHED if all(name in one.published for one in group)]
    return Mean(
        policy=group[0].run.policy,
        variant=group[0].run.variant,
        seeds=tuple(one.run.seed for one in group),
        allocation=_averaged(curves),
        spread=round(stdev(ends), 3) if len(ends) > 1 else None,
        published={name: _averaged([one.published[name] for one in group]) for name in names},
    )


def _common(curves: Sequence[Mapping[int, float]]) -> list[int]:
    return sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []


def _averaged(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    return {load: round(fmean(curve[load] for curve in curves), 3) for load in _common(curves)}


def drawn(found: Report, variant: str) -> str:
    """Draw runs as lines and published curves as dashed lines."""
    means = [mean for mean in found.means if mean.variant == variant]
    seeds = len({seed for mean in means for seed in mean.seeds})
    curves = [Curve(_name(mean.policy), mean.allocation) for mean in means]
    published = {name: curve for mean in means for name, curve in mean.published.items()}
    curves += [Curve(f"{name}, published", curve, dashed=True) for name, curve in published.items()]
    title = f"openb {variant}: GPU allocation, mean of {seeds} seed{'s' if seeds != 1 else ''}"
    return chart(title, curves, "GPUs asked for so far, % of all", "GPUs allocated, % of all")


def _name(policy: str) -> str:
    return "koord, FragmentationAware" if policy == KOORD else f"{policy}, replayed"
