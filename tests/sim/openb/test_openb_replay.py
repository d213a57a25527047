"""The openb experiment is replayed on a small trace, and on the published one where it is available."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from koord.sim.openb.replay import BEST_FIT, FGD, KOORD, POLICIES, replay
from koord.sim.openb.report import Curve, build_report, compare_run, draw_chart, render_chart
from koord.sim.openb.trace import (
    ALLOCATION,
    NODES,
    OpenbTrace,
    TraceError,
    random_order,
    read_order,
    read_published,
    read_trace,
    variants_in,
)
from tests.sim.openb.openb_trace import plain_placements, write_order, write_trace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_trace(tmp_path)
    return tmp_path


@pytest.fixture
def trace(folder: Path) -> OpenbTrace:
    return read_trace(folder, "small")


# The trace ---------------------------------------------------------------------------------------------------------


def test_nodes_and_pods_are_read_in_the_order_of_their_names(trace: OpenbTrace) -> None:
    assert [node.name for node in trace.nodes] == sorted(node.name for node in trace.nodes)
    assert len(trace.pods) == 60
    assert trace.capacity_milli == 1000 * sum(node.gpus for node in trace.nodes)
    assert any(pod.models == ("T4", "G2") for pod in trace.pods)


def test_lists_without_models_are_read(tmp_path: Path) -> None:
    write_trace(tmp_path, models=False)
    assert all(pod.models == () for pod in read_trace(tmp_path, "small").pods)


def test_an_order_of_our_own_asks_for_what_it_should(folder: Path) -> None:
    write_trace(folder, nodes=16)  # more than the pods ask for
    trace = read_trace(folder, "small")
    order = random_order(trace, 5)
    asked = sum(trace.pods[index].total_milli for index in order.pods)
    largest = max(pod.total_milli for pod in trace.pods)
    assert asked <= 1.3 * trace.capacity_milli + largest
    assert asked > 1.3 * trace.capacity_milli - largest
    assert set(order.pods[: len(trace.pods)]) == set(range(len(trace.pods)))
    assert sorted(order.node_rank) == list(range(len(trace.nodes)))
    assert order == random_order(trace, 5)
    assert order != random_order(trace, 6)


def test_too_many_pods_are_left_out_at_random(trace: OpenbTrace) -> None:
    order = random_order(trace, 5, percent=50)
    assert len(order.pods) < len(trace.pods)


def test_a_published_order_is_taken_as_it_is(folder: Path, trace: OpenbTrace) -> None:
    written = random_order(trace, 5)
    write_order(folder, written)
    found = read_order(folder, trace, 5)
    assert found.published
    assert (found.pods, found.node_rank) == (written.pods, written.node_rank)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        pytest.param(lambda folder: (folder / NODES).unlink(), "is not there", id="no-nodes"),
        pytest.param(lambda folder: (folder / NODES).write_text("a,b\n1,2\n"), "has no column sn", id="other-columns"),
        pytest.param(lambda folder: (folder / NODES).write_text(""), "or no rows", id="empty"),
    ],
)
def test_what_is_wrong_with_a_trace_is_told(folder: Path, broken: object, words: str) -> None:
    broken(folder)  # type: ignore[operator]
    with pytest.raises(TraceError, match=words):
        read_trace(folder, "small")


def test_a_variant_that_is_not_there_names_those_that_are(folder: Path) -> None:
    assert variants_in(folder) == ["small"]
    with pytest.raises(TraceError, match="the variants there are small"):
        read_trace(folder, "large")


def test_an_order_of_another_trace_is_refused(folder: Path, trace: OpenbTrace) -> None:
    order = random_order(trace, 5)
    write_trace(folder, nodes=3)
    write_order(folder, order)
    with pytest.raises(TraceError, match="order of another trace"):
        read_order(folder, read_trace(folder, "small"), 5)


# Replays -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [BEST_FIT, FGD])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_engine_places_as_the_plain_way_does(trace: OpenbTrace, policy: str, seed: int) -> None:
    order = random_order(trace, seed)
    run = replay(trace, order, policy)
    right = plain_placements(trace, order, policy)
    placed = [trace.pods[index] for index, node in zip(order.pods, right, strict=True) if node]
    assert run.placed == len(placed)
    left = trace.capacity_milli - sum(pod.total_milli for pod in placed)
    assert run.unallocated_gpus == left / 1000


@pytest.mark.parametrize("policy", POLICIES)
def test_allocation_never_falls_and_never_exceeds_what_was_asked(trace: OpenbTrace, policy: str) -> None:
    run = replay(trace, random_order(trace, 1), policy)
    values = list(run.allocation.values())
    assert values == sorted(values)
    assert all(percent <= load + 1 for load, percent in run.allocation.items())
    assert 0 < run.placed < run.arrived


def test_the_same_seed_gives_the_same_run(trace: OpenbTrace) -> None:
    first, second = (replay(trace, random_order(trace, 4), KOORD) for _ in range(2))
    assert first.allocation == second.allocation


def test_a_run_ends_at_the_load_it_is_told(trace: OpenbTrace) -> None:
    run = replay(trace, random_order(trace, 1), KOORD, up_to=40)
    assert max(run.allocation) <= 40
    whole = replay(trace, random_order(trace, 1), KOORD)
    assert all(whole.allocation[load] == percent for load, percent in run.allocation.items())


# Reports -------------------------------------------------------------------------------------------------------------


def published_row(folder: Path, curve: dict[int, float], policy: str, seed: int) -> None:
    header = ",".join(("workload", "sc_policy", "tune", "seed", "total_gpus", *map(str, curve)))
    row = ",".join(("openb_pod_list_small", f"06-{policy}", "1.3", str(seed), "1", *map(str, curve.values())))
    (folder / ALLOCATION).write_text(f"{header}\n{row}\n")


def test_gaps_are_to_the_published_run_of_the_same_seed(folder: Path, trace: OpenbTrace) -> None:
    write_order(folder, random_order(trace, 5))
    run = replay(trace, read_order(folder, trace, 5), FGD)
    last = max(run.allocation)
    published_row(folder, {**run.allocation, last: run.allocation[last] + 0.25}, "FGD", 5)
    assert read_published(folder, "small", "FGD", 6) == {}
    one = compare_run(run, folder)
    assert one.largest_gap == 0.25
    found = build_report([one])
    assert found.means[0].published["FGD"][last] == run.allocation[last] + 0.25
    drawing = draw_chart(found, "small")
    ElementTree.fromstring(drawing)
    assert "FGD, published" in drawing


def test_orders_of_our_own_are_compared_with_nothing(folder: Path, trace: OpenbTrace) -> None:
    run = replay(trace, random_order(trace, 5), FGD)
    published_row(folder, dict(run.allocation), "FGD", 5)
    assert compare_run(run, folder).largest_gap is None


def test_a_chart_is_wellformed_and_the_same_each_time() -> None:
    curves = [Curve("a <b>", {50: 49.0, 100: 90.0, 130: 95.0}), Curve("c", {50: 48.0, 130: 93.0}, dashed=True)]
    first = render_chart("a title", curves, "across", "up")
    assert first == render_chart("a title", curves, "across", "up")
    lines = ElementTree.fromstring(first).findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 2]


def test_nothing_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        render_chart("a title", [], "across", "up")


# The published trace -------------------------------------------------------------------------------------------------

OPENB = Path(os.environ.get("OPENB") or Path(__file__).resolve().parents[4] / "shared" / "data" / "openb")


@pytest.mark.skipif(not OPENB.is_dir(), reason=f"the openb trace is not part of koord; OPENB names its folder: {OPENB}")
@pytest.mark.parametrize("policy", [BEST_FIT, FGD])
def test_published_runs_are_met_at_every_load(policy: str) -> None:
    folder = OPENB
    trace = read_trace(folder, "default")
    found = compare_run(replay(trace, read_order(folder, trace, 42), policy, up_to=98), folder)
    assert found.largest_gap is not None
    assert found.largest_gap <= 0.01


@pytest.mark.skipif(not OPENB.is_dir(), reason=f"the openb trace is not part of koord; OPENB names its folder: {OPENB}")
def test_ours_packs_more_than_the_published_scores() -> None:
    folder = OPENB
    trace = read_trace(folder, "default")
    found = compare_run(replay(trace, read_order(folder, trace, 42), KOORD, up_to=102), folder)
    ours = found.run.allocation_at(102)
    assert ours is not None
    assert ours > max(curve[102] for curve in found.published.values())
