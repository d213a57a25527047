"""These tests check the rejection of CRD schemas against the real server's, and the rules of this server."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.embedded.apiserver.schema.crd_validation import SHARED_SCHEMA_PATH, crd_schema_errors, crd_schema_warnings
from koord.embedded.apiserver.schema.schema_node import compile_schema
from koord.values import go_regexp

PROBES = json.loads((Path(__file__).parent / "structural_probes.json").read_text())
PREFIX = SHARED_SCHEMA_PATH.removesuffix("openAPIV3Schema")


@pytest.mark.parametrize(
    ("schema", "causes"), [pytest.param(p["schema"], p["causes"], id=n) for n, p in PROBES.items()]
)
def test_schema_is_judged_in_the_servers_words(schema: dict[str, Any], causes: Any) -> None:
    found = [[e.field.removeprefix(PREFIX), e.reason, e.message] for e in crd_schema_errors(schema)]
    assert found == ([] if causes == 201 else causes)


def test_rules_in_cel_are_checked() -> None:
    schema = {"type": "object", "x-kubernetes-validations": [{"rule": "self.a > 1"}, {"rule": " "}]}
    assert [str(e) for e in crd_schema_errors(schema, "s")] == [
        "s.x-kubernetes-validations[0].rule: Invalid value: \"self.a > 1\": compilation failed: undefined field 'a'",
        "s.x-kubernetes-validations[1].rule: Required value: rule is not specified",
    ]


def test_status_subresource_limits_the_root() -> None:
    schema = {"type": "object", "minProperties": 1, "properties": {"spec": {"type": "object"}}}
    assert crd_schema_errors(schema) == []
    (error,) = crd_schema_errors(schema, status=True)
    assert error.field == SHARED_SCHEMA_PATH
    assert error.message.endswith("fields are allowed at the root of the schema if the status subresource is enabled")


def test_unknown_formats_are_warned_of() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "bogus"}, "b": {"format": "uri"}}}
    assert crd_schema_warnings(schema) == ['unrecognized format "bogus"']


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("^[a-z]+$", "abc", True),
        ("^[a-z]+$", "abc\n", False),
        ("b", "abc", True),
        (r"^\d+$", "٣", False),
        (r"^[[:alpha:]_-]+$", "a_B-c", True),
        (r"^\p{L}+$", "é", True),
        ("(?i)^ABC$", "abc", True),
        ("a|(?i)b|c", "C", True),
        ("((?i)a)b", "AB", False),
        (r"^\Qa.b\E$", "a.b", True),
        (r"^\Qa.b\E$", "axb", False),
        (r"\Aab\z", "ab", True),
        (r"^(?P<x>a)(?<y>b)$", "ab", True),
        (r"^a{2,3}$", "aaa", True),
        (r"^[^]a]$", "b", True),
        (r"^[\w.-]+$", "a.b-c", True),
        (r"^x{,2}$", "x{,2}", True),
        (r"^\x41\x{42}$", "AB", True),
    ],
)
def test_patterns_mean_what_go_means(pattern: str, text: str, fits: bool) -> None:
    assert (go_regexp.compile_regexp(pattern).search(text) is not None) == fits


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab([{}])*+?|^$\\.-:=<>dpQ1,", max_size=10))
def test_any_pattern_compiles_or_is_refused(pattern: str) -> None:
    complaint = go_regexp.regexp_error(pattern)
    assert complaint == "" or complaint.startswith("error parsing regexp: ")


TYPES = st.sampled_from(["object", "array", "string", "integer", "", "odd"])


def schemas(depth: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    parts: dict[str, st.SearchStrategy[Any]] = {
        "default": st.none() | st.text(max_size=2) | st.integers() | st.just({"a": 1}),
        "pattern": st.text(alphabet="a(b*", max_size=3),
        "x-kubernetes-list-type": st.sampled_from(["map", "set", "odd"]),
        "x-kubernetes-list-map-keys": st.lists(st.sampled_from("ab"), max_size=2),
        "x-kubernetes-embedded-resource": st.booleans(),
    }
    if depth:
        below = schemas(depth - 1)
        parts |= {
            "properties": st.dictionaries(st.sampled_from("abc"), below, max_size=2),
            "items": below,
            "additionalProperties": below | st.booleans(),
            "anyOf": st.lists(below, max_size=2),
            "not": below,
        }
    return st.fixed_dictionaries({"type": TYPES}, optional=parts)


@settings(max_examples=150, deadline=None)
@given(schemas())
def test_any_schema_can_be_judged_and_compiled(schema: dict[str, Any]) -> None:
    crd_schema_errors(schema, status=True)
    crd_schema_warnings(schema)
    compile_schema(schema)
