"""These tests check the cells of printer columns against a real server's, and more paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from koord.embedded.apiserver.crd.resources import JsonPathError, parse_jsonpath, printer_columns
from koord.values import timestamp

PROBES = json.loads(Path(__file__).with_name("column_probes.json").read_text())
OBJECT = {"metadata": {"name": "one", "creationTimestamp": "2026-11-15T06:21:12Z"}, "spec": PROBES["spec"]}
NOW = timestamp.parse("2026-11-15T06:21:12Z").timestamp()


@pytest.mark.parametrize(("path", "kind"), [(path, kind) for path, cells in PROBES["cells"].items() for kind in cells])
def test_cell(path: str, kind: str) -> None:
    (column,) = printer_columns([{"name": "X", "type": kind, "jsonPath": path}])
    cell = column.cell(OBJECT, NOW)
    assert cell == PROBES["cells"][path][kind]
    assert isinstance(cell, bool) == isinstance(PROBES["cells"][path][kind], bool)


def test_age_is_the_column_of_those_that_name_none() -> None:
    (column,) = printer_columns([])
    assert (column.heading["name"], column.heading["type"]) == ("Age", "date")
    assert column.cell(OBJECT, NOW + 300) == "5m"


def test_a_path_that_cannot_be_read_is_an_empty_column() -> None:
    (column,) = printer_columns([{"name": "X", "type": "string", "jsonPath": ".a["}])
    assert column.cell({"a": [1]}, NOW) is None


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        pytest.param(".a[1:]", {"a": [1, 2, 3]}, [2, 3], id="open-range"),
        pytest.param(".a[::2]", {"a": [1, 2, 3]}, [1, 3], id="step"),
        pytest.param(".a['b']", {"a": {"b": 1}}, [1], id="quoted-key"),
        pytest.param(".a['b\\.c']", {"a": {"b.c": 1}}, [1], id="quoted-key-with-a-dot"),
        pytest.param('.a[?(@.b!="x")].c', {"a": [{"b": "x", "c": 1}, {"b": "y", "c": 2}]}, [2], id="unequal"),
        pytest.param(".a[?(@.b<=2)].b", {"a": [{"b": 1}, {"b": 2}, {"b": 3}]}, [1, 2], id="at-most"),
        pytest.param(".a[?(@.b==true)].c", {"a": [{"b": True, "c": 1}, {"b": 1, "c": 2}]}, [1], id="truth"),
        pytest.param(".a[*].b[0]", {"a": [{"b": [1, 2]}, {"b": []}, {}]}, [1], id="through-gaps"),
        pytest.param("..b", {"a": {"b": 1, "c": [{"b": 2}]}}, [1, 2], id="anywhere"),
    ],
)
def test_paths(path: str, value: Any, found: list[Any]) -> None:
    assert parse_jsonpath(path).find(value) == found


@pytest.mark.parametrize("path", [".a[", ".a['b", "a", ".a[?(@.b==c)]", ".a b", ".a[x]"])
def test_bad_paths(path: str) -> None:
    with pytest.raises(JsonPathError):
        parse_jsonpath(path)
