"""Compare runs with what was published of the same seeds: per run, on average by policy and variant; with a chart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean, stdev

import msgspec

from koord.sim.openb.replay import KOORD, ReplayRun
from koord.sim.openb.trace import read_published

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 20, 44, 52
_COLOURS = ("#d9822b", "#3b82c4", "#7a8a99", "#40a368", "#a05fc0", "#c0504d")
_STYLE = """
  text { font: 13px sans-serif; fill: #333 }
  .title { font-size: 15px; font-weight: bold }
  .grid { stroke: #ddd; stroke-width: 1 }
  .line { fill: none; stroke-width: 2.2; stroke-linejoin: round }
  .paper { fill: #fff }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } .grid { stroke: #444 } .paper { fill: #16191d }
  }
"""


class Curve(msgspec.Struct, frozen=True):
    name: str
    points: Mapping[int, float]
    dashed: bool = False


def render_chart(title: str, curves: Sequence[Curve], across: str, up: str) -> str:
    """Render the curves as SVG, from 50 % of load on if there is that much: below, every policy places everything."""
    loads = [load for curve in curves for load in curve.points]
    if not loads:
        raise ValueError("there is nothing to draw")
    low, high = (50 if max(loads) > 60 else min(loads)), max(loads)
    shown = [curve.points[load] for curve in curves for load in curve.points if load >= low]
    bottom, top = 5 * int(min(shown) // 5), min(100, 5 * (int(max(shown) // 5) + 1))
    frame = _Frame(low, max(high, low + 1), bottom, max(top, bottom + 5))
    middle = f'x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle"'
    body = [
        f'<text class="title" x="{_LEFT}" y="24">{escape(title)}</text>',
        *frame.grid(),
        *(frame.line(curve, _COLOURS[place % len(_COLOURS)]) for place, curve in enumerate(curves)),
        *_legend(curves),
        f"<text {middle}>{escape(across)}</text>",
        f'<text transform="translate(16 {_HEIGHT / 2:.0f}) rotate(-90)" text-anchor="middle">{escape(up)}</text>',
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
    paper = f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>'
    return "\n".join((head, f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>", paper, *body, "</svg>\n"))


class _Frame(msgspec.Struct, frozen=True):
    low: float
    high: float
    bottom: float
    top: float

    def place(self, load: float, percent: float) -> tuple[float, float]:
        across = (load - self.low) / (self.high - self.low)
        up = (percent - self.bottom) / (self.top - self.bottom)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> list[str]:
        found = []
        for percent in range(int(self.bottom), int(self.top) + 1, 5 if self.top - self.bottom <= 60 else 10):
            (x1, y), (x2, _) = self.place(self.low, percent), self.place(self.high, percent)
            found.append(f'<line class="grid" x1="{x1:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y:.1f}"/>')
            found.append(f'<text x="{x1 - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{percent}</text>')
        first = -(-int(self.low) // 10) * 10
        for load in range(first, int(self.high) + 1, 10):
            x, y = self.place(load, self.bottom)
            found.append(f'<text x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle">{load}</text>')
        return found

    def line(self, curve: Curve, colour: str) -> str:
        points = (self.place(load, percent) for load, percent in sorted(curve.points.items()) if load >= self.low)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
        return f'<polyline class="line" stroke="{colour}"{dash} points="{path}"/>'


def _legend(curves: Sequence[Curve]) -> Iterator[str]:
    for place, curve in enumerate(curves):
        y = _HEIGHT - _BOTTOM - 16 - 20 * (len(curves) - 1 - place)
        x = _WIDTH - _RIGHT - 250
        dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
        colour = _COLOURS[place % len(_COLOURS)]
        yield f'<line x1="{x}" y1="{y}" x2="{x + 28}" y2="{y}" stroke="{colour}" stroke-width="2.2"{dash}/>'
        yield f'<text x="{x + 36}" y="{y + 4}">{escape(curve.name)}</text>'


REPORTED_LOADS = (80, 95, 100, 130)
PUBLISHED_POLICIES = ("BestFit", "FGD")


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A run beside published curves of the same seed by policy.

    `largest_gap` is to the published run of the same policy, over all loads; None where there is none, or the
    order is not the published one.
    """

    run: ReplayRun
    published: Mapping[str, Mapping[int, float]]
    largest_gap: float | None = None


class PolicyMean(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    policy: str
    variant: str
    seeds: tuple[int, ...]
    allocation: Mapping[int, float]
    spread: float | None  # standard deviation at the last load
    published: Mapping[str, Mapping[int, float]]  # means over the same seeds


class OpenbReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    runs: tuple[ComparedRun, ...]
    means: tuple[PolicyMean, ...]


def compare_run(run: ReplayRun, folder: Path) -> ComparedRun:
    published = {name: read_published(folder, run.variant, name, run.seed) for name in PUBLISHED_POLICIES}
    if not run.published_order:
        return ComparedRun(run=run, published={})
    same = published.get(run.policy, {})
    gaps = [abs(same[load] - percent) for load, percent in run.allocation.items() if load in same]
    kept = {name: curve for name, curve in published.items() if curve}
    return ComparedRun(run=run, published=kept, largest_gap=round(max(gaps), 2) if gaps else None)


def build_report(runs: Iterable[ComparedRun]) -> OpenbReport:
    runs = tuple(runs)
    groups: dict[tuple[str, str], list[ComparedRun]] = {}
    for one in runs:
        groups.setdefault((one.run.variant, one.run.policy), []).append(one)
    return OpenbReport(runs=runs, means=tuple(_mean(group) for group in groups.values()))


def _mean(group: Sequence[ComparedRun]) -> PolicyMean:
    curves = [one.run.allocation for one in group]
    last = max(_common_loads(curves), default=None)
    ends = [curve[last] for curve in curves] if last is not None else []
    names = [name for name in PUBLISHED_POLICIES if all(name in one.published for one in group)]
    return PolicyMean(
        policy=group[0].run.policy,
        variant=group[0].run.variant,
        seeds=tuple(one.run.seed for one in group),
        allocation=_mean_curve(curves),
        spread=round(stdev(ends), 3) if len(ends) > 1 else None,
        published={name: _mean_curve([one.published[name] for one in group]) for name in names},
    )


def _common_loads(curves: Sequence[Mapping[int, float]]) -> list[int]:
    return sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []


def _mean_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    return {load: round(fmean(curve[load] for curve in curves), 3) for load in _common_loads(curves)}


def draw_chart(found: OpenbReport, variant: str) -> str:
    """Draw runs as lines and published curves as dashed lines."""
    means = [mean for mean in found.means if mean.variant == variant]
    seeds = len({seed for mean in means for seed in mean.seeds})
    curves = [Curve(_policy_label(mean.policy), mean.allocation) for mean in means]
    published = {name: curve for mean in means for name, curve in mean.published.items()}
    curves += [Curve(f"{name}, published", curve, dashed=True) for name, curve in published.items()]
    title = f"openb {variant}: GPU allocation, mean of {seeds} seed{'s' if seeds != 1 else ''}"
    return render_chart(title, curves, "GPUs asked for so far, % of all", "GPUs allocated, % of all")


def _policy_label(policy: str) -> str:
    return "koord, FragmentationAware" if policy == KOORD else f"{policy}, replayed"
