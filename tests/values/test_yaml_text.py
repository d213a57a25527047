"""YAML is loaded within limits, and what exceeds them is told with its line."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from koord.values.json_text import MalformedText
from koord.values.yaml_text import YamlLimits, load_yaml, load_yaml_documents, yaml_limit_exceeded

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi")
)
MERGE_BOMB = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 10)}]}}\n" for old, new in zip("abcdefgh", "bcdefghi")
)
LONG_SCALARS = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]\n"


@pytest.mark.parametrize(
    ("text", "told", "line"),
    [
        pytest.param(BOMB, "holds aliases that stand for too much", 5, id="a-billion-nodes"),
        pytest.param(MERGE_BOMB, "holds aliases that stand for too much", 6, id="merge-keys"),
        pytest.param(LONG_SCALARS, "holds aliases that stand for too much", 2, id="one-long-scalar-many-times"),
        pytest.param("a: &a [*a]", "an alias inside of what it stands for, *a", 1, id="a-ring"),
        pytest.param("a: &a {b: {c: *a}}", "an alias inside of what it stands for, *a", 1, id="a-wide-ring"),
        pytest.param("[" * 10_000 + "]" * 10_000, "is nested too deeply: 100 levels", 1, id="10000-levels"),
        pytest.param("[" * 1_000_000, "is nested too deeply: 100 levels", 1, id="1000000-levels"),
        pytest.param("{a: " * 10_000, "is nested too deeply: 100 levels", 1, id="10000-maps"),
        pytest.param("- " * 10_000 + "a", "is nested too deeply: 100 levels", 1, id="10000-levels-in-block-style"),
        pytest.param("? " * 10_000 + "a", "is nested too deeply: 100 levels", 1, id="10000-complex-keys"),
        pytest.param("\n".join(" " * n + "a:" for n in range(2000)), "is nested too deeply", 101, id="2000-indents"),
        pytest.param("x" * (5 << 20), "is too long: 5242880 bytes, and 4194304 are allowed", None, id="too-long"),
        pytest.param("a: 1\nb: *c\n", "is not YAML: found undefined alias, line 2, column 4", 2, id="no-such-anchor"),
        pytest.param("a: 1\n  b: 2\n", "is not YAML: ", 2, id="no-yaml"),
        pytest.param("a: " + "1" * 5000, "is not YAML: Exceeds the limit", None, id="an-integer-of-5000-digits"),
        pytest.param("a: .nan", ".nan is no number in JSON", 1, id="not-a-number"),
        pytest.param("a: -.inf", "-.inf is no number in JSON", 1, id="infinite"),
        pytest.param("a: !!binary aGk=", "is not YAML: could not determine a constructor", 1, id="bytes"),
        pytest.param("a: !!set {b}", "is not YAML: could not determine a constructor", 1, id="a-set"),
        pytest.param(
            "a: !!python/object:os.system x", "is not YAML: could not determine a constructor", 1, id="an-object"
        ),
        pytest.param("? [a]\n: b", "is not YAML: found unhashable key", 1, id="a-list-as-key"),
        pytest.param("a: !!int x", "is not YAML: ", None, id="a-wrong-tag"),
        pytest.param("a: \x00", "is not YAML: ", None, id="a-control-character"),
        pytest.param('a: "\ud800"', "is not YAML: ", None, id="half-a-surrogate-pair"),
        pytest.param(b"a: \xff\xff", "is not YAML: ", None, id="no-utf8"),
        pytest.param("a: 1\n---\nb: 2\n", "holds more than one document", None, id="two-documents"),
    ],
)
def test_what_cannot_be_read_is_told(text: str | bytes, told: str, line: int | None) -> None:
    found = load_yaml(text)
    assert isinstance(found, MalformedText), found
    assert told in found.reason
    assert "\n" not in found.reason
    assert found.line == line


@given(json_values)
def test_what_json_can_hold_is_read_back(value: Any) -> None:
    assert load_yaml(yaml.safe_dump(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("", None, id="nothing"),
        pytest.param("a: 2026-01-01", {"a": "2026-01-01"}, id="a-date-is-text"),
        pytest.param("a: &x [1, 2]\nb: *x\nc: *x\n", {"a": [1, 2], "b": [1, 2], "c": [1, 2]}, id="aliases"),
        pytest.param("a: &x {k: 1}\nb: {<<: *x, l: 2}\n", {"a": {"k": 1}, "b": {"k": 1, "l": 2}}, id="a-merge-key"),
        pytest.param("a: 1\na: 2\n", {"a": 2}, id="the-last-of-two-equal-keys"),
        pytest.param("a: 1e3", {"a": "1e3"}, id="yaml-1.1-wants-a-dot"),
        pytest.param("[" * 100 + "]" * 100, None, id="as-deep-as-is-allowed"),
    ],
)
def test_what_is_read(text: str, value: Any) -> None:
    found = load_yaml(text)
    assert not isinstance(found, MalformedText)
    if value is not None:
        assert found == value


def test_an_anchor_belongs_to_its_document() -> None:
    assert load_yaml_documents("a: &x 1\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]
    found = load_yaml_documents("a: &x 1\n---\nb: *x\n")
    assert isinstance(found, MalformedText)
    assert "undefined alias" in found.reason


def test_a_document_without_aliases_has_no_limit_but_its_size() -> None:
    wide = "\n".join(f"- {{a: {n}}}" for n in range(60_000))
    assert yaml_limit_exceeded(wide) is None


def test_limits_are_the_callers() -> None:
    strict = YamlLimits(max_bytes=20, max_depth=2, max_aliased_nodes=2)
    assert load_yaml("[[1]]", strict) == [[1]]
    assert isinstance(load_yaml("[[[1]]]", strict), MalformedText)
    assert load_yaml("[&a 1, *a, *a]", strict) == [1, 1, 1]
    assert isinstance(load_yaml("[&a 1, *a, *a, *a]", strict), MalformedText)
    assert isinstance(load_yaml("x" * 21, strict), MalformedText)
