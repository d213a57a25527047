"""The source keeps the rules that `python -m tools.house_report` counts: names, docstrings and sizes of files."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tools.house_report import LARGE_LINES, docstrings, is_question

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.glob("src/koord/**/*.py"))}
TREES = {path: ast.parse(text) for path, text in SOURCES.items()}
# Kinds of Kubernetes: Event is of two API groups, and the scheduler has its own compact view of a Pod.
KINDS = {"Event", "Pod"}


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in KINDS} == {}


def test_docstrings_are_statements() -> None:
    written = [(path, text) for path, tree in TREES.items() for text in docstrings(tree)]
    assert [(path, text) for path, text in written if is_question(text)] == []


def test_no_file_is_too_long_to_read() -> None:
    assert [path for path, text in SOURCES.items() if len(text.splitlines()) > LARGE_LINES] == []
