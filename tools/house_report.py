"""Measure the shape of the source: sizes, names, docstrings and import cycles.

Run as `python -m tools.house_report [CHECKOUT]`. It reads files and imports nothing, so that any checkout can be
measured and two of them compared.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

SMALL_LINES = 40
LARGE_LINES = 500
# What a question or a fragment begins with where a statement belongs.
QUESTION_WORDS = frozenset(
    {
        "what",
        "who",
        "whom",
        "whose",
        "which",
        "whether",
        "how",
        "why",
        "where",
        "when",
        "is",
        "are",
        "does",
        "may",
        "can",
    }
)


def code_lines(text: str) -> int:
    """Count lines that are neither blank, comment nor docstring."""
    quoted = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return sum(
        1
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#") and number not in quoted
    )


def docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def is_question(docstring: str) -> bool:
    words = docstring.split()
    return words[0].strip("`*,").lower() in QUESTION_WORDS or docstring.split("\n\n")[0].rstrip().endswith("?")


def package_of(path: Path, source: Path) -> str:
    """Return the package of a file, two levels below koord at most: koord.scheduler.queue."""
    return ".".join(path.relative_to(source).parent.parts[:3])


def imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def strongly_connected(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of packages of which each reaches each other: the import cycles."""
    reached = {start: _reachable(edges, start) for start in edges}
    groups = {frozenset({one, *(two for two in reached[one] if one in reached.get(two, ()))}) for one in edges}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reachable(edges: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(edges[start])
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += edges.get(one, ())
    return seen


def report(checkout: Path) -> dict[str, object]:
    """Return the measurements by name."""
    source = checkout / "src"
    texts = {path: path.read_text() for path in sorted((source / "koord").rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    collisions = {name: count for name, count in classes.items() if count > 1}
    documented = [text for tree in trees.values() for text in docstrings(tree)]
    edges: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        own = package_of(path, source)
        for module in imported_modules(tree):
            target = source.joinpath(*module.split("."))
            if (
                module.startswith("koord.")
                and (other := package_of(target / "_" if target.is_dir() else target, source)) != own
            ):
                edges[own].add(other)
                edges.setdefault(other, set())
    # Modules at the root of a package count as a package of their own, in the second count only.
    siblings = {one: {two for two in edges[one] if not _nested(one, two)} for one in edges}
    modules = {path: count for path, count in lines.items() if path.name != "__init__.py"}
    cycles, with_roots = strongly_connected(siblings), strongly_connected(edges)
    return {
        "files": len(texts),
        "lines": sum(lines.values()),
        "code lines": sum(code_lines(text) for text in texts.values()),
        "median lines of a file": int(statistics.median(lines.values())),
        f"files under {SMALL_LINES} lines": sum(count < SMALL_LINES for count in lines.values()),
        f"modules (no __init__) under {SMALL_LINES} lines": sum(count < SMALL_LINES for count in modules.values()),
        f"files over {LARGE_LINES} lines": sum(count > LARGE_LINES for count in lines.values()),
        "public classes": sum(classes.values()),
        "class names used more than once": len(collisions),
        "classes that share a name": sum(collisions.values()),
        "most used class names": ", ".join(f"{name} {count}" for name, count in Counter(collisions).most_common(5))
        or "-",
        "docstrings": len(documented),
        "docstrings that begin as a question": sum(is_question(text) for text in documented),
        "packages in an import cycle": sum(len(group) for group in cycles),
        "packages in one, root modules counted": sum(len(group) for group in with_roots),
        "import cycles": "; ".join(" ".join(name.removeprefix("koord.") for name in group) for group in cycles) or "-",
    }


def _nested(one: str, two: str) -> bool:
    return one.startswith(f"{two}.") or two.startswith(f"{one}.")


def main(arguments: list[str]) -> int:
    for name, value in report(Path(arguments[0] if arguments else ".")).items():
        print(f"{name + ':':<44} {value:,}" if isinstance(value, int) else f"{name + ':':<44} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
