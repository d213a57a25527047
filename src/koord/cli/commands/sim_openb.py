"""This module is `koord sim openb`: the published GPU-sharing experiment, decided by koord's scheduler, beside
the published results.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koord.cli import cluster_access
from koord.cli.printing import plain_table, print_result
from koord.sim.openb.replay import KOORD, POLICIES, ReplayRun, replay
from koord.sim.openb.report import REPORTED_LOADS, ComparedRun, OpenbReport, build_report, compare_run, draw_chart
from koord.sim.openb.trace import TUNED_PERCENT, TraceError, read_order, read_trace

if TYPE_CHECKING:
    from rich.console import Console

_SEED = 42


@click.command()
@click.option(
    "--trace",
    "folder",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The folder with the openb files, which are not part of koord.",
)
@click.option("--variant", "variants", multiple=True, default=("default",), show_default=True, help="May be repeated.")
@click.option("--seed", "seeds", multiple=True, type=int, default=(_SEED,), show_default=True, help="May be repeated.")
@click.option(
    "--policy", "policies", multiple=True, type=click.Choice(POLICIES), default=(KOORD,), show_default=True,
    help="Who ranks nodes: koord, or a published score. May be repeated.",
)  # fmt: skip
@click.option(
    "--load",
    type=click.IntRange(1, TUNED_PERCENT),
    help=f"Stop when pods have asked for this percent of all GPUs. Default: {TUNED_PERCENT}.",
)
@click.option("--plot", metavar="FILE.svg", type=click.Path(path_type=Path), help="Draw allocation by load.")
@cluster_access.output_option
def openb(
    folder: Path,
    variants: tuple[str, ...],
    seeds: tuple[int, ...],
    policies: tuple[str, ...],
    load: int | None,
    plot: Path | None,
    output: str,
) -> None:
    """Replay the openb trace: pods that share GPUs arrive one by one until they have asked for 130 % of all GPUs.

    Seeds with a file in DIR/orders arrive exactly as they did in the published run; others are drawn anew.
    """
    if plot is not None and len(set(variants)) > 1:
        cluster_access.fail("--plot draws one variant; name only one")
    try:
        found = build_report(_replay_all(folder, variants, seeds, policies, load))
    except TraceError as wrong:
        cluster_access.fail(f"--trace: {wrong}")
    if plot is not None:
        try:
            plot.write_text(draw_chart(found, variants[0]))
        except OSError as error:
            cluster_access.fail(f"--plot {plot}: {error.strerror}")
    print_result(found, output, lambda console: _print_openb_report(console, found))


def _replay_all(
    folder: Path, variants: tuple[str, ...], seeds: tuple[int, ...], policies: tuple[str, ...], load: int | None
) -> list[ComparedRun]:
    found = []
    for variant in dict.fromkeys(variants):
        trace = read_trace(folder, variant)
        for seed in dict.fromkeys(seeds):
            order = read_order(folder, trace, seed)
            for policy in dict.fromkeys(policies):
                label = f"{variant} {seed} {policy}"
                with click.progressbar(length=len(order.pods), label=label, file=sys.stderr) as bar:
                    run = replay(trace, order, policy, load, bar.update)
                found.append(compare_run(run, folder))
    return found


def _print_openb_report(console: Console, found: OpenbReport) -> None:
    last = max((load for one in found.runs for load in one.run.allocation), default=0)
    loads = [*(load for load in REPORTED_LOADS if load < last), last]
    table = plain_table(
        "VARIANT", ">SEED", "RANKED BY", *(f">@{load}" for load in loads),
        ">IDLE GPUS", ">PLACED", ">PODS/S")  # fmt: skip
    for runs in _by_seed(found.runs):
        for one in runs:
            run = one.run
            table.add_row(
                run.variant, str(run.seed), _policy(one), *(_percent(run.allocation_at(load)) for load in loads),
                f"{run.unallocated_gpus:.0f}", f"{run.placed} of {run.arrived}", _rate(run),
            )  # fmt: skip
        for name, curve in runs[0].published.items():
            figures = (_percent(curve.get(load)) for load in loads)
            table.add_row(runs[0].run.variant, str(runs[0].run.seed), f"{name}, published", *figures)
    for mean in found.means:
        if len(mean.seeds) > 1:
            table.add_row(mean.variant, "mean", mean.policy, *(_percent(mean.allocation.get(load)) for load in loads))
    console.print(table)
    console.print("@100: percent of all GPUs that are allocated when pods have asked for 100 % of them.")


def _by_seed(runs: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    found: dict[tuple[str, int], list[ComparedRun]] = {}
    for one in runs:
        found.setdefault((one.run.variant, one.run.seed), []).append(one)
    return list(found.values())


def _policy(one: ComparedRun) -> str:
    if one.largest_gap is None:
        return one.run.policy
    return f"{one.run.policy} (at most {one.largest_gap:.2f} from the published run)"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _rate(run: ReplayRun) -> str:
    return f"{run.arrived / run.seconds:.0f}" if run.seconds else ""
