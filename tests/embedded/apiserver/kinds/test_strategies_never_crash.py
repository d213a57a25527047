"""These tests check that no object that fits its schema, however odd, crashes a strategy."""

from __future__ import annotations

import random
from typing import Any

import pytest

from koord.embedded.apiserver.kinds.registry import STRATEGIES
from koord.embedded.apiserver.rest.object_metadata import deep_copy
from koord.embedded.apiserver.schema.builtin_decoding import decode_builtin
from koord.embedded.apiserver.schema.builtin_types import MICRO_TIME, builtin_types
from koord.embedded.apiserver.schema.schema_node import SchemaNode

TURNS = 60
_TEXTS = (
    "",
    "a",
    "x.y",
    "-",
    "é\n",
    "0",
    "*/5 * * * *",
    "hugepages-",
    "hugepages-x",
    "example.com/gpu",
    "cpu",
    "memory",
)
_MORE_TEXTS = (
    "Always",
    "In",
    "Exists",
    "None",
    "::1",
    "10.0.0.0/8",
    "1%",
    "metadata.labels['",
    "LoadBalancer",
    "RollingUpdate",
)
_WORDS = (*_TEXTS, *_MORE_TEXTS, "Indexed", "Never", "kubernetes.io/tls", "storage", "Localhost", "DoNotSchedule")
_NUMBERS = (-1, 0, 1, 80, 2**31 - 1)
_QUANTITIES = ("0", "-1", "1", "1500m", "1Gi", "1e3")


def _value(node: SchemaNode, chance: random.Random, depth: int) -> Any:
    if node.kind == "object":
        if depth > 9:
            return {}
        odds = 0.5 if depth < 4 else 0.3
        return {key: _value(field, chance, depth + 1) for key, field in node.fields.items() if chance.random() < odds}
    if node.kind == "list":
        assert node.items is not None
        return [_value(node.items, chance, depth + 1) for _ in range(chance.choice((0, 1, 2)))]
    if node.kind == "map":
        assert node.values is not None
        return {chance.choice(_WORDS): _value(node.values, chance, depth + 1) for _ in range(chance.choice((0, 1, 2)))}
    if node.kind == "string":
        if node.format == "date-time":
            whole = "2026-01-01T00:00:00"
            return chance.choice((None, f"{whole}.000000Z" if node.go_type == MICRO_TIME else f"{whole}Z"))
        return "AAEC" if node.format == "byte" else chance.choice(_WORDS)
    if node.kind == "quantity":
        return chance.choice(_QUANTITIES)
    if node.kind == "boolean":
        return chance.random() < 0.5
    if node.kind == "int-or-string":
        return chance.choice((*_NUMBERS, *_WORDS))
    return chance.choice(_NUMBERS) if node.kind in ("integer", "number") else {"any": "thing"}


def _object(group: str, kind: str, chance: random.Random) -> dict[str, Any]:
    versions = [row.version for row in builtin_types().resources() if (row.group, row.kind) == (group, kind)]
    version = chance.choice(versions)
    node = builtin_types().node_for(group, version, kind)
    assert node is not None
    made = {key: _value(field, chance, 1) for key, field in node.fields.items() if key != "metadata"}
    api_version = f"{group}/{version}" if group else version
    found = decode_builtin({**made, "apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}}, node)
    assert found.error == ""
    value: dict[str, Any] = found.value
    meta = {"namespace": "ns", "uid": "0-1-2", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
    value["metadata"].update(meta)
    return value


@pytest.mark.parametrize(
    ("group", "kind"), [pytest.param(*key, id=".".join(filter(None, key[::-1]))) for key in STRATEGIES]
)
def test_survives_odd_objects(group: str, kind: str) -> None:
    chance = random.Random(f"{group}/{kind}")
    strategy = STRATEGIES[group, kind]
    before: dict[str, Any] | None = None
    for _ in range(TURNS):
        obj = _object(group, kind, chance)
        strategy.default(obj)
        made = deep_copy(obj)
        strategy.prepare_create(made)
        for error in strategy.validate_create(made):
            assert error.message
        for read in strategy.selectable_fields.values():
            assert isinstance(read(made), str)
        if before is not None:
            changed = deep_copy(obj)
            strategy.prepare_update(changed, before)
            strategy.validate_update(changed, before)
            status = deep_copy(made)
            strategy.prepare_status(status, before)
            strategy.validate_status(status, before)
        before = made
