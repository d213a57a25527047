"""This module builds an object of a kind with a value in every field, from the kind's schema.

No value is a default.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from koord.embedded.apiserver.schema.builtin_types import JSON_SCHEMA, META_V1, SCHEMA_UNIONS, builtin_types
from koord.embedded.apiserver.schema.schema_node import SchemaNode

# Large types that many kinds share are filled in one of them.
FILLED_ONCE = {"io.k8s.api.core.v1.PodTemplateSpec"}
POSTED = [("policy", "v1", "Eviction"), ("autoscaling", "v1", "Scale"), ("", "v1", "DeleteOptions")]


def kinds() -> list[tuple[str, str, str]]:
    """Return every kind that has a body, once for each group-version."""
    served = [(row.group, row.version, row.kind) for row in builtin_types().resources()]
    # ComponentStatus and the like are only ever answers, but they are messages too.
    return list(dict.fromkeys([*served, *POSTED]))


def name_of(group: str, version: str, kind: str) -> str:
    return f"{group or 'core'}/{version} {kind}"


def objects(*, zero: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield an object of every kind.

    `zero` sets pointers to zero values (0, "", false, {}), which differ from no pointer.
    """
    for group, version, kind in kinds():
        node = builtin_types().node_for(group, version, kind)
        assert node is not None, kind
        obj = _Filler(zero).object(node)
        yield name_of(group, version, kind), {**obj, "apiVersion": f"{group}/{version}".strip("/"), "kind": kind}


class _Filler:
    def __init__(self, zero: bool) -> None:
        self._zero = zero
        self._count = itertools.count(1)
        self._inside: list[str] = []

    def object(self, node: SchemaNode) -> dict[str, Any]:
        if node.go_type in FILLED_ONCE or self._inside.count(node.go_type) > 1:
            return {}
        self._inside.append(node.go_type)
        found = {key: self.value(field) for key, field in node.fields.items()}
        self._inside.pop()
        return {key: value for key, value in found.items() if value is not None}

    def value(self, node: SchemaNode) -> Any:
        number = next(self._count)
        if node.kind == "object":
            return self.object(node)
        if node.kind == "list":
            assert node.items is not None
            return [] if self._zero else [self.value(node.items), self.value(node.items)][: 2 - number % 2]
        if node.kind == "map":
            assert node.values is not None
            return {} if self._zero else {f"key-{number}": self.value(node.values)}
        if node.kind == "any":
            return self.free(node, number)
        if node.kind == "string":
            return self.string(node, number)
        if self._zero:
            return {"boolean": False, "quantity": "0"}.get(node.kind, 0)
        return {
            "integer": number if number % 3 else -number,
            "number": number + 0.5 if number % 2 else float(number),
            "boolean": True,
            "quantity": f"{number}m",
            "int-or-string": number if number % 2 else f"{number}%",
        }[node.kind]

    def string(self, node: SchemaNode, number: int) -> Any:
        if node.go_type == META_V1 + "MicroTime":
            return None if self._zero else f"2024-02-29T12:34:56.{number % 1_000_000:06d}Z"
        if node.go_type:
            return None if self._zero else f"2024-02-29T12:{number % 60:02d}:56Z"
        if node.format == "byte":
            return "" if self._zero else "AP8gaGk="
        return "" if self._zero else f"é {number}"

    def free(self, node: SchemaNode, number: int) -> Any:
        """Return a value for a field without a schema: JSON inside bytes, and schema unions."""
        if self._zero:
            return None
        if node.go_type in SCHEMA_UNIONS:
            schema = self.object(builtin_types().definition_node(JSON_SCHEMA))
            plain = {"OrArray": [schema, schema], "OrBool": True, "OrStringArray": [f"a{number}", "b"]}
            return schema if number % 2 else plain[node.go_type.removeprefix(JSON_SCHEMA)]
        return {"f:a": {}, "kind": "Free", "n": [1, 2.5, "x", None, True]}
