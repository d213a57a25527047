"""The one loader of YAML: what JSON can hold and no more, within limits on size, depth and aliases.

An alias is a few bytes that stand for a whole subtree, also inside other aliased subtrees: 400 bytes can mean billions
of nodes. PyYAML shares what is aliased, so the bomb goes off later, in whoever walks or encodes the value. Events are
therefore counted before anything is built; libyaml yields them one by one, so that counting stops at the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec
import yaml

from koord.values.json_text import MalformedText

# What PyYAML lets escape from scalars with a wrong explicit tag, beside its own error type.
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError, OverflowError)


class YamlLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_bytes: int = 4 << 20
    max_depth: int = 100
    max_aliased_nodes: int = 100_000  # what all aliases of a text stand for, aliases inside them included
    max_aliased_chars: int = 4 << 20


DEFAULT_LIMITS = YamlLimits()


class JsonYamlLoader(yaml.CSafeLoader):
    """JsonYamlLoader builds what JSON can hold: dates stay text, and there are no sets, bytes, infinities or NaN."""

    def construct_json_float(self, node: yaml.ScalarNode) -> float:
        value: float = self.construct_yaml_float(node)
        if value != value or value in (float("inf"), float("-inf")):
            raise yaml.constructor.ConstructorError(None, None, f"{node.value} is no number in JSON", node.start_mark)
        return value


JsonYamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
JsonYamlLoader.add_constructor("tag:yaml.org,2002:float", JsonYamlLoader.construct_json_float)
# The line above has given the class a table of its own.
for _tag in ("binary", "timestamp", "omap", "pairs", "set"):
    JsonYamlLoader.yaml_constructors[f"tag:yaml.org,2002:{_tag}"] = JsonYamlLoader.construct_undefined


def load_yaml(text: str | bytes, limits: YamlLimits = DEFAULT_LIMITS) -> Any | MalformedText:
    """Return the one document of the text; None for an empty one."""
    found = load_yaml_documents(text, limits)
    if isinstance(found, MalformedText):
        return found
    if len(found) > 1:
        return MalformedText("holds more than one document")
    return found[0] if found else None


def load_yaml_documents(text: str | bytes, limits: YamlLimits = DEFAULT_LIMITS) -> list[Any] | MalformedText:
    exceeded = yaml_limit_exceeded(text, limits)
    if exceeded is not None:
        return exceeded
    try:
        return list(yaml.load_all(text, JsonYamlLoader))
    except _YAML_ERRORS as error:
        return _malformed(error)


def yaml_limit_exceeded(text: str | bytes, limits: YamlLimits = DEFAULT_LIMITS) -> MalformedText | None:
    """Return which limit the text exceeds, or why it is no YAML; None lets a loader have it."""
    if len(text) > limits.max_bytes:
        return MalformedText(f"is too long: {len(text)} bytes, and {limits.max_bytes} are allowed")
    try:
        _Measure(limits).take(yaml.parse(text, yaml.CSafeLoader))
    except _LimitExceeded as exceeded:
        return exceeded.malformed
    except _YAML_ERRORS as error:
        return _malformed(error)
    return None


def _malformed(error: Exception) -> MalformedText:
    mark = getattr(error, "problem_mark", None)
    where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    said = getattr(error, "problem", None) or " ".join(str(error).split()) or type(error).__name__
    return MalformedText(f"is not YAML: {said}{where}", None if mark is None else mark.line + 1)


class _LimitExceeded(Exception):
    def __init__(self, reason: str, event: yaml.Event) -> None:
        self.malformed = MalformedText(reason, event.start_mark.line + 1 if event.start_mark is not None else None)


class _Measure:
    """_Measure counts nodes and characters, those that aliases stand for included."""

    def __init__(self, limits: YamlLimits) -> None:
        self._limits = limits
        self._nodes = self._chars = 0  # so far, with what aliases stand for
        self._aliased_nodes = self._aliased_chars = 0
        self._anchored: dict[str, tuple[int, int] | None] = {}  # nodes and characters; None while it is open
        self._open: list[tuple[str | None, int, int]] = []  # anchor, and the counts where it began

    def take(self, events: Iterator[yaml.Event]) -> None:
        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                self._nodes += 1
                self._chars += len(event.value)
                if event.anchor is not None:
                    self._anchored[event.anchor] = (1, len(event.value))
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._begin(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, nodes, chars = self._open.pop()
                if anchor is not None:
                    self._anchored[anchor] = (self._nodes - nodes, self._chars - chars)
            elif isinstance(event, yaml.DocumentStartEvent):
                self._anchored.clear()

    def _begin(self, event: yaml.CollectionStartEvent) -> None:
        self._open.append((event.anchor, self._nodes, self._chars))
        self._nodes += 1
        if event.anchor is not None:
            self._anchored[event.anchor] = None
        if len(self._open) > self._limits.max_depth:
            self._exceeded(f"is nested too deeply: {self._limits.max_depth} levels are allowed", event)

    def _alias(self, event: yaml.AliasEvent) -> None:
        if event.anchor not in self._anchored:
            return  # the loader names it
        size = self._anchored[event.anchor]
        if size is None:
            self._exceeded(f"holds an alias inside of what it stands for, *{event.anchor}", event)
        nodes, chars = size
        self._nodes, self._chars = self._nodes + nodes, self._chars + chars
        self._aliased_nodes, self._aliased_chars = self._aliased_nodes + nodes, self._aliased_chars + chars
        if self._aliased_nodes > self._limits.max_aliased_nodes or self._aliased_chars > self._limits.max_aliased_chars:
            self._exceeded(
                f"holds aliases that stand for too much: {self._limits.max_aliased_nodes} nodes and "
                f"{self._limits.max_aliased_chars} characters are allowed",
                event,
            )

    def _exceeded(self, reason: str, event: yaml.Event) -> NoReturn:
        raise _LimitExceeded(reason, event)
