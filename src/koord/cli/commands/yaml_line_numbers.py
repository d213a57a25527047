"""This module finds the line of a setting in a YAML file, also inside the JSON text that a ConfigMap carries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

_SEGMENT = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")


def compose_documents(text: str) -> list[tuple[yaml.Node, Any]]:
    """Return the documents of a file: the node tree with line numbers, and the content. Raise yaml.YAMLError."""
    loader = yaml.SafeLoader(text)
    found = []
    while loader.check_node():
        node = loader.get_node()
        if node is not None:
            found.append((node, loader.construct_document(node)))
    return found


def child_node(node: yaml.Node | None, name: str) -> yaml.Node | None:
    """Return the value under a key, ignoring case where no key matches exactly; or the item of a list."""
    if isinstance(node, yaml.MappingNode):
        pairs = [(key.value, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
        exact = next((value for key, value in pairs if key == name), None)
        return exact or next((value for key, value in pairs if str(key).lower() == name.lower()), None)
    if isinstance(node, yaml.SequenceNode) and name.isdigit() and int(name) < len(node.value):
        found: yaml.Node = node.value[int(name)]
        return found
    return None


def line_of_path(node: yaml.Node, path: str) -> int:
    """Return the line, counted from 1, of the deepest part of `path` that exists."""
    line: int = node.start_mark.line + 1
    for name in _path_segments(path):
        inner = child_node(node, name)
        if inner is None:
            break
        node = inner
        line = int(node.start_mark.line) + 1
    return line


def line_in_text(node: yaml.Node, path: str, broken: int | None = None) -> int:
    """Return the line of a path in the JSON or YAML text that the scalar `node` holds, or of its line `broken`."""
    line: int = node.start_mark.line + 1
    if not isinstance(node, yaml.ScalarNode) or node.style not in ("|", ">"):
        return line  # quoted text is on one line, or folded beyond recognition
    if broken is not None:
        return line + broken
    try:
        inside = yaml.compose(node.value, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        return line if mark is None else line + int(mark.line) + 1
    return line if inside is None else line + line_of_path(inside, path)


def duplicate_keys(node: yaml.Node) -> list[tuple[str, int]]:
    """Return the path and line of each key that a map has again, as readers silently take the last."""
    found: list[tuple[str, int]] = []
    _collect_duplicate_keys(node, "", set(), found)
    return found


def duplicate_keys_in_text(node: yaml.Node) -> list[tuple[str, int]]:
    """Return the duplicate keys inside the text that the scalar `node` holds."""
    try:
        inside = yaml.compose(node.value, Loader=yaml.SafeLoader) if isinstance(node, yaml.ScalarNode) else None
    except yaml.YAMLError:
        return []
    line = int(node.start_mark.line) + 1
    block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    return [] if inside is None else [(path, line + at if block else line) for path, at in duplicate_keys(inside)]


def _collect_duplicate_keys(node: yaml.Node, path: str, met: set[int], found: list[tuple[str, int]]) -> None:
    if id(node) in met:  # an alias may lead back to where we are
        return
    met.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            here = f"{path}.{name}" if path else name
            if name in seen:
                found.append((here, int(key.start_mark.line) + 1))
            seen.add(name)
            _collect_duplicate_keys(value, here, met, found)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect_duplicate_keys(item, f"{path}[{index}]", met, found)


def _path_segments(path: str) -> Iterator[str]:
    for match in _SEGMENT.finditer(path):
        yield match.group(1) if match.group(1) is not None else match.group(2)
