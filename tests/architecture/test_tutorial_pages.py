"""Tutorials have a form that tests/real can paste: a cluster, commands, what they print, and an end that cleans up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.real.tutorial_page import TUTORIALS, matches, read_page, tutorial_paths

PAGES = tutorial_paths()
COUNT = 31


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_starts_shows_explains_and_cleans_up(path: Path) -> None:
    page = read_page(path)
    text = path.read_text()
    assert page.start.split()[:2] == ["koord", "up"]
    assert any(step.output for step in page.steps), "it shows nothing"
    assert text.index("\n## Why") < text.index("\n## Clean up")
    assert re.search(r"kubectl (delete|patch)", page.steps[-1].commands)
    assert not re.search(r"\bsleep \d", "".join(step.commands for step in page.steps)), "a wait has a condition"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_an_output_says_more_than_that_there_is_one(path: Path) -> None:
    shown = [step.output for step in read_page(path).steps if step.output is not None]
    assert [text for text in shown if not text.replace("...", "").strip()] == []


def test_every_tutorial_has_a_page_and_a_row_of_the_index() -> None:
    named = {number for path in PAGES for number in re.findall(r"T(\d\d)", path.read_text().splitlines()[0])}
    index = (TUTORIALS / "README.md").read_text()
    assert named == {f"{number:02d}" for number in range(1, COUNT + 1)}
    assert [path.name for path in PAGES if f"({path.name})" not in index] == []
    assert set(re.findall(r"T(\d\d)", "".join(re.findall(r"^\| \[(.*?)\]", index, re.MULTILINE)))) == named


@pytest.mark.parametrize(
    ("expected", "printed", "is_so"),
    [
        pytest.param("a  b\n", "a b\n", True, id="blanks"),
        pytest.param("...\nb\n", "x\ny\nb\n", True, id="any-lines"),
        pytest.param("...\nb\n", "b\n", True, id="no-lines"),
        pytest.param("a\n...\n", "b\n", False, id="another-line"),
        pytest.param("pod-... is up\n", "pod-x7 is up\n", True, id="any-text"),
        pytest.param("pod-... is up\n", "pod-x7 is down\n", False, id="other-text"),
        pytest.param("a\n", "a\nb\n", False, id="more-lines"),
        pytest.param("a (b)\n", "a b\n", False, id="signs-are-signs"),
    ],
)
def test_outputs_are_compared_but_for_what_they_leave_open(expected: str, printed: str, is_so: bool) -> None:
    assert matches(expected, printed) is is_so
