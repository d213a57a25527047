"""Go servers write null where a list, map, string or struct is empty: reading must not notice."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from koord.api.koordinator.custom_kinds import ALL_KINDS
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert, decode

Path = tuple[str | int, ...]


def filled(kind: inspect.Type) -> Any:
    """A JSON value with every modelled field present and none equal to its default."""
    match kind:
        case inspect.Metadata():
            return filled(kind.type)
        case inspect.UnionType():
            return filled(next(t for t in kind.types if not isinstance(t, inspect.NoneType)))
        case inspect.StructType():
            return {f.encode_name: filled(f.type) for f in kind.fields}
        case inspect.VarTupleType() | inspect.ListType():
            return [filled(kind.item_type)]
        case inspect.DictType():
            return {"key": filled(kind.value_type)}
        case inspect.StrType():
            return "text"
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 7
        case inspect.FloatType():
            return 0.5
        case inspect.DateTimeType():
            return "2026-01-02T03:04:05Z"
        case inspect.AnyType():
            return {"free": [1, "x"]}
    raise AssertionError(f"no example for {kind}")


def optional_paths(kind: inspect.Type, at: Path = ()) -> list[Path]:
    """Where in `filled(kind)` a field with a default sits."""
    match kind:
        case inspect.Metadata():
            return optional_paths(kind.type, at)
        case inspect.UnionType():
            return optional_paths(next(t for t in kind.types if not isinstance(t, inspect.NoneType)), at)
        case inspect.StructType():
            paths = [(*at, f.encode_name) for f in kind.fields if not f.required]
            return paths + [p for f in kind.fields for p in optional_paths(f.type, (*at, f.encode_name))]
        case inspect.VarTupleType() | inspect.ListType():
            return optional_paths(kind.item_type, (*at, 0))
        case inspect.DictType():
            return optional_paths(kind.value_type, (*at, "key"))
    return []


def _parent(obj: Any, path: Path) -> Any:
    for step in path[:-1]:
        obj = obj[step]
    return obj


@pytest.mark.parametrize("resource", ALL_KINDS, ids=lambda r: f"{r.kind}-{r.group or 'core'}-{r.version}")
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_null_reads_as_absent(resource: Resource[Any], data: st.DataObject) -> None:
    kind = inspect.type_info(resource.model)
    full = filled(kind)
    chosen = data.draw(st.sets(st.sampled_from(optional_paths(kind)), min_size=1, max_size=12))
    nulled, without = copy.deepcopy(full), copy.deepcopy(full)
    for path in sorted(chosen, key=len, reverse=True):  # the deepest first, while the way there exists
        _parent(nulled, path)[path[-1]] = None
        del _parent(without, path)[path[-1]]
    expected = decode(json.dumps(without).encode(), resource.model)
    assert decode(json.dumps(nulled).encode(), resource.model) == expected
    assert convert(nulled, resource.model) == expected


@pytest.mark.parametrize("resource", ALL_KINDS, ids=lambda r: f"{r.kind}-{r.group or 'core'}-{r.version}")
def test_every_field_can_be_filled_and_none_is_lost(resource: Resource[Any]) -> None:
    full = filled(inspect.type_info(resource.model))
    typed = decode(json.dumps(full).encode(), resource.model)
    assert msgspec.json.decode(msgspec.json.encode(typed)) == full


@pytest.mark.parametrize("resource", ALL_KINDS, ids=lambda r: f"{r.kind}-{r.group or 'core'}-{r.version}")
def test_the_smallest_object_reads(resource: Resource[Any]) -> None:
    typed = decode(b'{"metadata":{"name":"x"},"spec":null,"status":null}', resource.model)
    assert typed.metadata.name == "x"


def test_a_wrong_type_is_still_refused_with_its_path() -> None:
    (pods,) = (r for r in ALL_KINDS if r.kind == "Pod")
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec\.containers\[0\]\.name"):
        decode(b'{"spec":{"tolerations":null,"containers":[{"name":5}]}}', pods.model)
