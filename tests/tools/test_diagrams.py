"""The pictures of docs/architecture.md name what exists and show the imports of today."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import diagrams

DESCRIPTIONS = sorted(diagrams.FOLDER.glob("*.toml"))


@pytest.mark.parametrize("path", DESCRIPTIONS, ids=[path.stem for path in DESCRIPTIONS])
def test_pictures_are_up_to_date(path: Path) -> None:
    """`make diagrams` draws them again; a name that moved is mended in the description first."""
    assert path.with_suffix(".svg").read_text() == diagrams.draw(diagrams.load(path))


def test_each_picture_is_shown_in_the_architecture() -> None:
    text = (diagrams.ROOT / "docs" / "architecture.md").read_text()
    assert [path.stem for path in DESCRIPTIONS if f"(diagrams/{path.stem}.svg)" not in text] == []


@pytest.mark.parametrize("code", ["koord.nothing:run", "koord.scheduler.schedule_one:Nothing", "koord.cli.main:run.no"])
def test_a_name_that_does_not_exist_is_refused(code: str) -> None:
    with pytest.raises(diagrams.DiagramError, match=code):
        diagrams.resolve(code)


def test_arrows_leave_out_what_follows_from_others() -> None:
    direct = {"cli": {"api", "values"}, "api": {"values"}, "values": set[str]()}
    assert diagrams.transitive_reduction(direct) == {"cli": {"api"}, "api": {"values"}, "values": set()}
