"""The report on the source counts what it says it counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import house_report


def test_a_checkout_is_measured(tmp_path: Path) -> None:
    package = tmp_path / "src" / "koord"
    for name, text in {
        "a/one.py": '"""What is this?"""\nfrom koord.b.two import Two\n\nclass Plan:\n    """Hold a plan."""\n',
        "b/two.py": "from koord.a.one import Plan\n\n# why\nclass Two: ...\n\nclass Plan2: ...\n",
        "c/three.py": "class Plan: ...\n",
    }.items():
        path = package / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    found = house_report.report(tmp_path)
    assert found["files"] == 3
    assert found["lines"] == 12
    assert found["code lines"] == 6
    assert found["class names used more than once"] == 1
    assert found["docstrings that begin as a question"] == 1
    assert found["import cycles"] == "a b"


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("Who waits.", True), ("Return whether it waits.", False), ("Is it due?", True), ("The queue of pods.", False)],
)
def test_questions(text: str, is_one: bool) -> None:
    assert house_report.is_question(text) == is_one
