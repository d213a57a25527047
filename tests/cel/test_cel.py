"""CEL expressions have the values that the language gives them, or an error that says why not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cel.evaluation import evaluate, unknown_names
from koord.cel.syntax import CelError, parse

OBJECT = {"spec": {"replicas": 3, "ports": [80, 443], "labels": {"app": "web"}, "ratio": 0.5, "none": None}}


def value(text: str, **variables: Any) -> Any:
    node = parse(text)
    assert not isinstance(node, CelError), node.message
    return evaluate(node, {"object": OBJECT, **variables})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 / -2", -3),
        ("-7 % 3", -1),
        ("10 - 3 - 2", 5),
        ("0x10 + 1", 17),
        ("2u + 3u == 5u", True),
        ("1 == 1.0", True),
        ("'a' + \"b\"", "ab"),
        (r"'tab\t\x41\u0042'", "tab\tAB"),
        (r"r'\d+'", "\\d+"),
        ('"""two\nlines"""', "two\nlines"),
        ("b'x'", b"x"),
        ("[1, 2] + [3]", [1, 2, 3]),
        ("{'a': 1}.a", 1),
        ("object.spec.replicas > 1 && object.spec.replicas <= 3", True),
        ("object['spec'].ports[1]", 443),
        ("443 in object.spec.ports", True),
        ("'app' in object.spec.labels", True),
        ("has(object.spec.labels) && !has(object.spec.nothing)", True),
        ("object.spec.none == null", True),
        ("true ? 'yes' : 'no'", "yes"),
        ("object.spec.ports.all(p, p > 50)", True),
        ("object.spec.ports.exists(p, p == 80)", True),
        ("object.spec.ports.exists_one(p, p > 0)", False),
        ("object.spec.ports.map(p, p * 2)", [160, 886]),
        ("object.spec.ports.map(p, p > 100, p + 1)", [444]),
        ("object.spec.labels.filter(k, k.startsWith('a'))", ["app"]),
        ("size(object.spec.ports) == object.spec.ports.size()", True),
        ("'web-1'.matches('^[a-z]+-[0-9]$')", True),
        ("'a,b'.split(',').join('-')", "a-b"),
        ("'Hello'.lowerAscii().substring(1, 3)", "el"),
        ("[3, 1].min() + [1, 2].sum()", 4),
        ("[1, 2, 2].isSorted()", True),
        ("int('12') + int(2.9)", 14),
        ("string(1) + string(true)", "1true"),
        ("double('1.5') + 0.5", 2.0),
        ("type(1) == int && type('') != int", True),
        ("duration('90s') == duration('1m30s')", True),
        ("timestamp('2026-01-01T00:00:00Z') + duration('1h') > timestamp('2026-01-01T00:30:00Z')", True),
        ("quantity('1Gi').isGreaterThan(quantity('1G'))", True),
        ("1 < 2 // a comment", True),
    ],
)
def test_values(text: str, expected: Any) -> None:
    found = value(text)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1 + 1.0", "no such overload: _+_(int, double)"),
        ("'n' + object.spec.replicas", "no such overload: _+_(string, int)"),
        ("object.spec.missing > 1", "no such key: missing"),
        ("object.spec.ports[2]", "index out of bounds: 2"),
        ("1 / 0", "division by zero"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("1u - 2u", "unsigned integer overflow"),
        ("!1", "no such overload: !_(int)"),
        ("1 ? 2 : 3", "no such overload"),
        ("int('x')", "type conversion error from string to int"),
        ("'a'.matches('(')", "invalid regular expression"),
    ],
)
def test_faults(text: str, why: str) -> None:
    found = value(text)
    assert isinstance(found, CelError)
    assert found.message.startswith(why)


@pytest.mark.parametrize(
    "text", ["true || object.spec.missing", "object.spec.missing || true", "!(object.spec.missing && false)"]
)
def test_one_side_is_enough(text: str) -> None:
    assert value(text) is True


def test_an_error_that_decides_is_told() -> None:
    assert isinstance(value("object.spec.missing || false"), CelError)
    assert value("[1, 2].exists(x, x == 2 || x.y)") is True
    assert isinstance(value("[1].all(x, x.y)"), CelError)


@pytest.mark.parametrize(
    "text", ["", "1 +", "a b", "'open", "f(", "[1", "a.", "has(a)", "x.all(1, true)", "if", "1 @ 2"]
)
def test_what_is_no_expression(text: str) -> None:
    assert isinstance(parse(text), CelError)


def test_names_are_checked_beforehand() -> None:
    def unknown(text: str) -> list[str]:
        node = parse(text)
        assert not isinstance(node, CelError)
        return unknown_names(node, frozenset({"object"}))

    assert unknown("object.items.all(x, x.name != '' && size(x) > 0)") == []
    assert unknown("objects.a + f(x)") == [
        "undeclared reference to 'objects' (in container '')",
        "undeclared reference to 'f' (in container '')",
        "undeclared reference to 'x' (in container '')",
    ]


def test_no_expression_runs_for_long() -> None:
    rows = list(range(400))
    found = value("rows.all(a, rows.all(b, rows.all(c, a + b + c >= 0)))", rows=rows)
    assert found == CelError("operation cancelled: actual cost limit exceeded")
    assert isinstance(parse("(" * 1000 + "1" + ")" * 1000), CelError)


@given(st.text(alphabet="ab1.+-*/%()[]{}'\"<>=!&|?:, \\u", max_size=30))
def test_any_text_is_a_tree_or_an_error(text: str) -> None:
    node = parse(text)
    if not isinstance(node, CelError) and not unknown_names(node, frozenset({"a", "b"})):
        evaluate(node, {"a": 1, "b": [1, "x"]})


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6).filter(bool))
def test_division_and_rest_belong_together(a: int, b: int) -> None:
    quotient, rest = value("x / y", x=a, y=b), value("x % y", x=a, y=b)
    assert quotient * b + rest == a
    assert abs(rest) < abs(b)
