"""`make test-real` runs files at once but for those that are marked `machine`: what writes to the machine is marked."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.real.conftest import LONGEST_FILES

ROOT = Path(__file__).resolve().parents[2]
# Whoever imports these writes to cgroups, network devices or the one containerd that a machine can run.
WRITES_TO_MACHINE = (
    *("koord.host.cgroup", "koord.host.core_sched", "koord.host.tc"),
    *("tools.realnode", "tests.real.container_runtime"),
)


def imported(tree: ast.Module) -> set[str]:
    """Return the dotted names of all that a file imports, and of the packages around it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name.rsplit(".", drop)[0] for name in names for drop in range(name.count(".") + 1)}


def is_marked(tree: ast.Module) -> bool:
    marks = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return any("pytest.mark.machine" in ast.unparse(value) for value in marks)


# tests/real/yarn has a target of its own, which runs one test after another.
FILES = [path for path in sorted(ROOT.glob("tests/real/**/test_*.py")) if path.parent.name != "yarn"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_writes_to_the_machine_is_marked_and_nothing_else(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert is_marked(tree) == bool(imported(tree) & set(WRITES_TO_MACHINE))


def test_files_are_found() -> None:
    marked = [is_marked(ast.parse(path.read_text())) for path in FILES]
    assert True in marked
    assert False in marked


def test_the_longest_files_exist_and_run_beside_others() -> None:
    names = {path.name: path for path in FILES}
    assert [name for name in LONGEST_FILES if is_marked(ast.parse(names[name].read_text()))] == []


def test_make_test_real_runs_both_halves() -> None:
    lines = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pytest tests/real --ignore" in line]
    assert ["-m machine" in line for line in lines] == [False, True]
    assert ['-m "not machine"' in line for line in lines] == [True, False]
    assert all("--ignore=tests/real/yarn" in line and line.count("--ignore") == 1 for line in lines)
