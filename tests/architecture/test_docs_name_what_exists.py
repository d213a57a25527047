"""Documents name modules, tests and files that exist, so that a rename cannot leave them behind."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("src/**/README.md"),
        *ROOT.glob("bench/**/*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    ]
)
IDS = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
# The name of the program's state directory and of labels begin like a module and are none.
DOTTED = re.compile(r"(?<![\w./-])koord(?:\.[A-Za-z_][A-Za-z_0-9]*)+(?![\w/-])")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
QUOTED = re.compile(r"`([^`]+)`")
TEST = re.compile(r"(?P<path>(?:tests|bench|tools|src)/[\w./-]+)?(?P<names>(?:::\w+)+)?(?:\[[^\]]*\])?")


@cache
def definitions(path: Path) -> frozenset[str]:
    """Return the names that a file defines: at its top and in its classes."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return frozenset(found)


def names_something(dotted: str) -> bool:
    """Return whether a dotted name is a module, a package, or a definition in one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        place = ROOT.joinpath("src", *parts[:length])
        rest = parts[length:]
        if place.is_dir():
            source = place / "__init__.py"
            return not rest or (source.exists() and rest[0] in definitions(source))
        if place.with_suffix(".py").exists():
            return not rest or all(name in definitions(place.with_suffix(".py")) for name in rest)
    return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_modules_exist(document: Path) -> None:
    assert [name for name in DOTTED.findall(document.read_text()) if not names_something(name)] == []


def test_programs_name_documents_that_exist() -> None:
    sources = [path for kind in ("py", "js") for path in ROOT.glob(f"src/koord/**/*.{kind}")]
    named = {name for path in sources for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text())}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_links_lead_somewhere(document: Path) -> None:
    links = [link for link in LINK.findall(document.read_text()) if link and not link.startswith("mailto")]
    assert [link for link in links if not (document.parent / link).exists()] == []


def cited_tests(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what is quoted, and the path and names that it means: `::name` belongs to the path before it."""
    for line in text.splitlines():
        path = ""
        for quoted in QUOTED.findall(line):
            found = TEST.fullmatch(quoted)
            if found is None or not (found["path"] or found["names"]):
                continue
            path = found["path"] or path
            yield quoted, path, (found["names"] or "").split("::")[1:]


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_files_and_tests_exist(document: Path) -> None:
    wrong = []
    for quoted, path, names in cited_tests(document.read_text()):
        place = ROOT / path
        if not path or not place.exists() or (names and not (place.is_file() and set(names) <= definitions(place))):
            wrong.append(quoted)
    assert wrong == []


@pytest.mark.parametrize("document", [one for one in DOCUMENTS if one.is_relative_to(ROOT / "src")], ids=str)
def test_files_of_a_feature_lie_beside_its_readme(document: Path) -> None:
    files = re.findall(r"`(\w+\.py)`", document.read_text())
    assert files
    assert [file for file in files if not (document.parent / file).exists()] == []


def test_quirks_cite_tests_by_their_path() -> None:
    """A bare file name cannot be checked, and not found by one who reads."""
    text = (ROOT / "docs" / "compat" / "quirks.md").read_text()
    assert re.findall(r"(?<=`)test_\w+\.py::\w+", text) == []


def glossary() -> list[tuple[str, str, list[str]]]:
    rows = re.findall(r"^\| (?!term |---)(.*?) \| (.*) \| (.*?) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.M)
    return [(term, meaning, QUOTED.findall(where)) for term, meaning, where in rows]


def test_terms_of_the_glossary_live_where_it_says() -> None:
    wrong = []
    for term, _, modules in glossary():
        exist = modules and all(importlib.util.find_spec(module) for module in modules)
        is_class = term.startswith("`")
        if not exist or (is_class and not any(names_something(f"{module}.{term.strip('`')}") for module in modules)):
            wrong.append(term)
    assert wrong == []


def test_the_glossary_has_each_term_once() -> None:
    terms = [term.strip("`").lower() for term, _, _ in glossary()]
    assert sorted(terms) == sorted(set(terms))
    assert len(terms) > 200
