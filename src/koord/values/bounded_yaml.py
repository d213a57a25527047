"""YAML from strangers: read as JSON has it, with limits on nesting, on values and on what aliases expand to.

A few hundred bytes of aliases stand for billions of values, and deep nesting overflows the stack of whoever walks it:
both are counted on the parser's events before anything is built. Errors are in the words of Kubernetes' library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

MAX_DEPTH = 256
MAX_VALUES = 500_000
MAX_ALIASED_VALUES = 10_000  # that aliases stand for, all together

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, where PyYAML was built with it


class YamlError(ValueError):
    """Raised for what is not YAML, or too much of it."""


class _JsonLoader(_Loader):  # type: ignore[misc]
    """Loads YAML as JSON has it: what looks like a date stays a string. Keys that occur twice are noted."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.duplicates: list[str] = []

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        self.duplicates.append(f'line {key.start_mark.line + 1}: key "{key.value}" already set in map')
                    seen.add(key.value)
        return super().construct_mapping(node, deep)


_JsonLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml(text: bytes | str, *, max_depth: int = MAX_DEPTH) -> Any:
    """Return the one document of a text. Raises YamlError."""
    return load_yaml_with_duplicates(text, max_depth=max_depth)[0]


def load_yaml_with_duplicates(text: bytes | str, *, max_depth: int = MAX_DEPTH) -> tuple[Any, list[str]]:
    """Return the document, and a line for each key that a map has twice; the last one counts. Raises YamlError."""
    try:
        _check_limits(yaml.parse(text, Loader=_Loader), max_depth)
        loader = _JsonLoader(text)
        try:
            return loader.get_single_data(), loader.duplicates
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        raise YamlError(f"yaml: {where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise YamlError(f"yaml: {error}") from None
    except (RecursionError, UnicodeDecodeError, ValueError, TypeError) as error:
        if isinstance(error, YamlError):
            raise
        raise YamlError(f"yaml: {error}") from None  # a key that is a list, a number that is none


def _check_limits(events: Iterator[Any], max_depth: int) -> None:
    """Raise unless the document is within the limits; `sizes` counts the values in each open collection."""
    anchors: dict[str, int | None] = {}  # None: the collection is still open
    opened: list[str | None] = []
    sizes = [0]
    aliased = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            if len(opened) >= max_depth:
                raise YamlError(f"yaml: exceeded max depth of {max_depth}")
            if event.anchor is not None:
                anchors[event.anchor] = None
            opened.append(event.anchor)
            sizes.append(1)
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            size, anchor = sizes.pop(), opened.pop()
            if anchor is not None:
                anchors[anchor] = size
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
            if event.anchor is not None:
                anchors[event.anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            known = anchors.get(event.anchor or "", 1)  # one that nobody defined is the loader's to report
            if known is None:
                raise YamlError(f"yaml: anchor '{event.anchor}' value contains itself")
            size = known
            aliased += known
            if aliased > MAX_ALIASED_VALUES:
                raise YamlError("yaml: document contains excessive aliasing")
        else:
            continue
        sizes[-1] += size
        if sizes[-1] > MAX_VALUES:
            raise YamlError(f"yaml: document has more than {MAX_VALUES} values")
