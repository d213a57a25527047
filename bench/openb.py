"""The published openb experiment on the engine: how much of all GPUs is allocated, and how fast that is decided.

Needs the trace, which is not part of koord: its folder is named by the environment variable OPENB. Draws
docs/images/openb.svg from the runs on the default trace.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from koord.sim.openb.replay import BEST_FIT, FGD, KOORD, replay
from koord.sim.openb.report import ComparedRun, PolicyMean, build_report, compare_run, draw_chart
from koord.sim.openb.trace import read_order, read_trace, variants_in

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "openb.svg"
SEEDS = {"default": (42, 43, 44, 45, 46)}
OTHER_SEEDS = (42, 43)
LOADS = (95, 100, 130)


def run() -> dict[str, Any]:
    named = os.environ.get("OPENB")
    if not named:
        sys.exit("set OPENB to the folder with the openb files; they are not part of koord")
    folder = Path(named)
    found: list[ComparedRun] = []
    for variant in variants_in(folder):
        trace = read_trace(folder, variant)
        for seed in SEEDS.get(variant, OTHER_SEEDS):
            order = read_order(folder, trace, seed)
            for policy in (KOORD, BEST_FIT, FGD) if variant in SEEDS else (KOORD,):
                one = compare_run(replay(trace, order, policy), folder)
                found.append(one)
                print(variant, seed, policy, one.run.allocation_at(130), one.largest_gap, file=sys.stderr, flush=True)
    told = build_report(found)
    PICTURE.write_text(draw_chart(told, "default"))
    return {
        "variants": {mean.variant: _figures(mean) for mean in told.means if mean.policy == KOORD},
        "largest_gap_to_published_runs": {
            policy: max((one.largest_gap or 0.0) for one in found if one.run.policy == policy)
            for policy in (BEST_FIT, FGD)
        },
        "by_seed_at_130": {
            f"{one.run.variant} {one.run.seed}": f"{one.run.allocation[130]:.2f}"
            for one in found
            if one.run.policy == KOORD
        },
        "pods_per_second": {
            policy: _rate([one for one in found if one.run.policy == policy]) for policy in (KOORD, BEST_FIT, FGD)
        },
        "seconds_of_the_slowest_run": max(one.run.seconds for one in found),
    }


def _figures(mean: PolicyMean) -> dict[str, Any]:
    published = {f"{name}, published": _at(curve) for name, curve in mean.published.items()}
    return {"seeds": len(mean.seeds), "koord": _at(mean.allocation), **published}


def _at(curve: Any) -> dict[str, str]:
    """As words: two figures behind the point matter here."""
    return {f"@{load}": f"{curve[load]:.2f}" for load in LOADS if load in curve}


def _rate(runs: list[ComparedRun]) -> float:
    return sum(one.run.arrived for one in runs) / sum(one.run.seconds for one in runs)
