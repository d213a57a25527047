"""Every story of `koord up --demo` holds what it claims, fits 80 columns, and fails where its claim does not hold."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from koord.cli.up.demo import COLOCATION, DEMOS, YARN
from koord.cli.up.demo_stories import STORIES
from koord.cli.up.demo_story import Stage, Story, StoryFailed, play_story
from koord.cli.up.up import up


def test_the_option_knows_every_story() -> None:
    assert (COLOCATION, *STORIES, YARN) == DEMOS
    refused = CliRunner().invoke(up, ["--demo", "nothing"])
    assert refused.exit_code == 2
    assert all(name in refused.output for name in DEMOS)


@pytest.mark.parametrize("name", list(STORIES))
def test_a_story_holds_its_claim_and_fits_80_columns(name: str) -> None:
    done = CliRunner().invoke(up, ["--demo", name])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[-1].startswith("The claim holds, after ")
    assert [line for line in lines if len(line) > 80 or line != line.rstrip()] == []


def test_lines_for_programs_end_in_a_summary() -> None:
    done = CliRunner().invoke(up, ["--demo", "gpu", "-o", "json"])
    assert done.exit_code == 0, done.output
    *lines, last = [json.loads(line) for line in done.output.splitlines()]
    assert last["summary"]["claim"] == STORIES["gpu"].claim
    [table] = [line["table"] for line in lines if "table" in line]
    assert {row["DEVICE"] for row in table} == {"gpu 0", "gpu 1", "-"}


def test_a_claim_that_does_not_hold_is_an_error() -> None:
    async def tell(stage: Stage) -> None:
        stage.check((await stage.pods()) != [], "pods come from nowhere")

    def ignore(line: dict[str, Any]) -> None:
        """Nobody looks at the lines."""

    story: Story = msgspec.structs.replace(STORIES["gpu"], tell=tell)
    with pytest.raises(StoryFailed, match="this does not hold: pods come from nowhere"):
        play_story(story, 1, ignore)


def test_what_does_not_go_with_a_story_is_refused() -> None:
    for option in (["--nodes", "5"], ["--speed", "10"], ["--duration", "1h"], ["--listen", ":1"]):
        refused = CliRunner().invoke(up, ["--demo", "gang", *option])
        assert refused.exit_code == 1
        assert f"{option[0]} does not go with --demo gang" in refused.output
