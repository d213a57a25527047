"""Each metric that a program declares is recorded somewhere: a series that stays empty for ever tells operators a lie.

A metric is an attribute that `__init__` takes from a registry, or a MetricDeclaration. Only who uses the attribute
counts, or who calls the method that does; a method that nothing calls records nothing.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREES = {path: ast.parse(path.read_text()) for path in sorted(ROOT.glob("src/koord/**/*.py"))}
Readers = dict[str, set[int]]  # attribute -> the functions that have it, by id
FACTORIES = {"counter", "gauge", "histogram"}


def declared(method: ast.FunctionDef) -> set[str]:
    """Return the attributes of self that a method sets to families of metrics, or to series of them."""
    return {
        target.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and makes_family(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }


def makes_family(value: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Attribute) and node.func.attr in FACTORIES)
            or (isinstance(node.func, ast.Name) and node.func.id in FACTORIES)
        )
        and node.args
        and isinstance(node.args[0], ast.JoinedStr | ast.Constant)
        for node in ast.walk(value)
    )


def attributes_used(tree: ast.AST) -> set[str]:
    """Return the attributes that are called or handed on, and not only looked into."""
    looked_into = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    return {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and id(n) not in looked_into}


def attributes_read(tree: ast.AST) -> set[str]:
    return {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}


def unrecorded() -> dict[str, set[str]]:
    """Return by file the attributes that are declared and never recorded."""
    read_in: Readers = defaultdict(set)
    used_in: Readers = defaultdict(set)
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for name in attributes_read(node):
                    read_in[name].add(id(node))
                for name in attributes_used(node):
                    used_in[name].add(id(node))
    found: dict[str, set[str]] = {}
    for path, tree in TREES.items():
        for made in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
            methods = [n for n in made.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
            init = next((m for m in methods if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None)
            names = declared(init) if init is not None else set()
            idle = {name for name in names if not is_recorded(name, made, methods, read_in, used_in)}
            if idle:
                found[str(path.relative_to(ROOT))] = idle
    return found


def is_recorded(
    name: str,
    made: ast.ClassDef,
    methods: list[ast.FunctionDef | ast.AsyncFunctionDef],
    read_in: Readers,
    used_in: Readers,
) -> bool:
    own = {id(n) for n in ast.walk(made)}
    if read_in[name] - own:
        return True  # somebody else uses it
    recorders = {m.name for m in methods if m.name != "__init__" and name in attributes_read(m)}
    recorders |= {m.name for m in methods if attributes_read(m) & recorders}  # one method may serve another
    if any(recorder.startswith("__") for recorder in recorders):
        return True
    return any(used_in[recorder] - own for recorder in recorders)


def test_each_declared_metric_has_a_recorder() -> None:
    assert unrecorded() == {}


def test_each_declared_reading_is_read() -> None:
    names = {
        target.id
        for tree in TREES.values()
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "MetricDeclaration"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    used = {
        name.id
        for tree in TREES.values()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for name in ast.walk(function)
        if isinstance(name, ast.Name) and name.id in names
    }
    assert names
    assert names - used == set(), "a list of declarations alone reads nothing"
