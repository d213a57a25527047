"""`koord up --demo colocation` tells what happens as a picture of 80 columns or as JSON lines, and sums it up."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from koord.cli.up.demo import DemoOptions, play_demo
from koord.cli.up.demo_picture import WIDTH, render_view, share_bar, stacked_area_rows
from koord.cli.up.demo_view import DemoJobCounts
from koord.cli.up.up import up

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def test_lines_for_programs_end_in_a_summary_and_repeat_with_their_seed() -> None:
    def run() -> str:
        result = CliRunner().invoke(up, ["--demo", "colocation", "--duration", "52m", "--nodes", "2", "-o", "json"])
        assert result.exit_code == 0, result.output
        return result.output

    first = [json.loads(line) for line in run().splitlines()]
    *lines, last = first
    again = [json.loads(line) for line in run().splitlines()]
    assert again[:-1] == lines
    summary = last["summary"]
    assert (summary["nodes"], summary["cores"]) == (2, 32)
    assert summary["shortCoreSeconds"] == 0
    assert summary["usedPercent"] > summary["servicesPercent"] > 5
    assert lines[0]["batchPercent"] == 0
    assert lines[-1]["batchPercent"] > 10
    assert {"lentMilli", "cpusForBatch", "why"} <= lines[-1]["nodes"][0].keys()
    assert lines[-1]["jobs"]["running"] > 0


def test_the_picture_is_80_columns_wide_and_can_be_kept(tmp_path: Path) -> None:
    shot = tmp_path / "docs" / "demo.svg"
    arguments = ["--demo", "colocation", "--duration", "35m", "--nodes", "2", "--screenshot", str(shot)]
    result = CliRunner().invoke(up, arguments)
    assert result.exit_code == 0, result.output
    lines = [ANSI.sub("", line) for line in result.output.splitlines()]
    assert max(map(len, lines)) == 80
    text = "\n".join(lines)
    for word in (
        "CPU in use",
        "node-0",
        "services + lent to batch",
        "lacked 0.0 core-seconds",
        "summary",
        "without batch",
    ):
        assert word in text
    picture = shot.read_text()
    assert picture.startswith("<svg")
    assert 'url("http' not in picture  # it is looked at where there is no network, too


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(["--speed", "10"], "--speed goes with --demo", id="speed-without-a-demonstration"),
        pytest.param(["--demo", "colocation", "--listen", ":1"], "--listen does not go with --demo", id="listen"),
        pytest.param(["--demo", "colocation", "--set", "a=b"], "--set does not go with --demo", id="set"),
        pytest.param(["--demo", "colocation", "--duration", "a day"], "--duration a day", id="no-duration"),
        pytest.param(["--demo", "colocation", "--duration", "0s"], "must be more than nothing", id="empty-duration"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(up, arguments)
    assert result.exit_code == 1
    assert complaint in result.output


def test_areas_lie_on_top_of_each_other() -> None:
    rows = stacked_area_rows([20.0, 15.0], [20.0, 0.0], [60.0, 60.0], top=80.0, rows=8)
    shown = [row.plain for row in rows]
    assert shown == ["  ", "╌╌", "  ", "  ", "█ ", "█ ", "█▄", "██"]
    with_colour = Console(width=10)
    colours = [with_colour.get_style(str(span.style)).color for span in rows[4].spans]
    assert colours[0] is not None
    assert colours[0].name == "#40b36b"


def test_the_line_of_what_is_lent_is_drawn_over_batch_work_that_is_higher() -> None:
    rows = stacked_area_rows([10.0], [60.0], [35.0], top=80.0, rows=8)
    assert [row.plain for row in rows] == [" ", "█", "█", "█", "╌", "█", "█", "█"]


def test_a_bar_is_as_wide_as_it_is_told() -> None:
    assert share_bar(0.25, 0.5, 8).plain == "██████··"
    assert len(share_bar(0.9, 0.9, 8).plain) == 8


def test_a_small_screen_shows_the_cluster_without_its_nodes() -> None:
    found = play_demo(DemoOptions(hours=0.1, nodes=2))
    assert found is not None
    view = found

    def shown(rows: int | None) -> str:
        console = Console(width=WIDTH, file=io.StringIO(), record=True)
        console.print(render_view(view, rows))
        return console.export_text()

    assert "node-1" in shown(None)
    assert "node-1" in shown(26)
    assert "node-1" not in shown(25)
    assert len(shown(None).splitlines()) == 25  # one is left for the cursor
    assert "what happened" in shown(24)
    jobs = DemoJobCounts(submitted=99_999, done=12_345, failed=0, running=120, waiting=12)
    view = msgspec.structs.replace(view, jobs=jobs, evicted=321)
    assert "321" in shown(None)
    assert len(shown(None).splitlines()) == 25  # numbers grow, lines do not
