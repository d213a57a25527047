"""JSON text is measured before it is decoded: its length and how deeply it nests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.values.json_text import MalformedText, json_limit_exceeded

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(alphabet='[]{}"\\\n a'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[]{}"\\'), inner),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict | list):
        return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)
    return 0


@given(json_values, st.integers(0, 8))
def test_the_depth_is_that_of_the_value(value: Any, allowed: int) -> None:
    exceeded = json_limit_exceeded(json.dumps(value).encode(), max_depth=allowed)
    assert (exceeded is not None) == (depth_of(value) > allowed)


DEEP, LONG = "is nested too deeply: 100 levels are allowed", "is too long: {} bytes, and 4194304 are allowed"


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        pytest.param(b"[" * 100 + b"]" * 100, None, id="as-deep-as-is-allowed"),
        pytest.param(b"[" * 101 + b"]" * 101, MalformedText(DEEP, 1), id="deep"),
        pytest.param(b"[\n" * 10_000, MalformedText(DEEP, 101), id="10000"),
        pytest.param(b'{"a":' * 1_000_000, MalformedText(LONG.format(5000000)), id="long"),
        pytest.param(b"[" * 1_000_000, MalformedText(DEEP, 1), id="1000000"),
        pytest.param(b"[]" + b",[]" * 500, None, id="many-side-by-side"),
        pytest.param(b'"' + b"[" * 5000 + b'"', None, id="brackets-in-a-string"),
        pytest.param(b'"' + b'\\"[' * 5000 + b'"', None, id="escaped-quotes"),
        pytest.param(b'"' + b"[" * 5000, None, id="a-string-without-end-is-the-decoders-matter"),
        pytest.param(
            b'"' + b"a" * (4 << 20) + b'"',
            MalformedText(LONG.format(4194306)),
            id="huge-string",
        ),
    ],
)
def test_limits(raw: bytes, told: MalformedText | None) -> None:
    assert json_limit_exceeded(raw) == told
