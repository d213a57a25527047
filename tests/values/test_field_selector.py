"""Field selectors are parsed, escaped and matched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.values.selector import FieldSelector, FieldTerm, SelectorError, escape


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        pytest.param("", "", id="empty"),
        pytest.param(",,", "", id="commas"),
        pytest.param("metadata.name=x", "metadata.name=x", id="equal"),
        pytest.param("metadata.name==x", "metadata.name=x", id="double-equal"),
        pytest.param("spec.nodeName!=y", "spec.nodeName!=y", id="not-equal"),
        pytest.param("z=1,a=2", "a=2,z=1", id="sorted"),
        pytest.param("a=b,,c=d", "a=b,c=d", id="empty-term"),
        pytest.param("a=", "a=", id="empty-value"),
        pytest.param("=b", "=b", id="empty-field"),
        pytest.param("=", "", id="lone-sign"),
        pytest.param("!=", "", id="lone-unequal-sign"),
        pytest.param(r"a=\,b", r"a=\,b", id="escaped-comma"),
        pytest.param(r"a=\=\\", r"a=\=\\", id="escaped-sign-and-backslash"),
    ],
)
def test_text(text: str, canonical: str) -> None:
    assert str(FieldSelector.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "invalid selector: 'a'; can't understand 'a'"),
        ("b=1,!a", "invalid selector: 'b=1,!a'; can't understand '!a'"),
        ("a=b=c", "invalid field selector: unescaped character in value: 61"),
        (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
        ("a=b\\", "invalid field selector: invalid escape sequence: \\"),
    ],
)
def test_malformed_text_is_refused_in_kubernetes_words(text: str, message: str) -> None:
    with pytest.raises(SelectorError) as refusal:
        FieldSelector.parse(text)
    assert str(refusal.value) == message


def test_matching_takes_absent_for_empty() -> None:
    selector = FieldSelector.parse("metadata.name=x,spec.nodeName!=y")
    assert selector.matches({"metadata.name": "x"})
    assert selector.matches({"metadata.name": "x", "spec.nodeName": "z"})
    assert not selector.matches({"metadata.name": "x", "spec.nodeName": "y"})
    assert not selector.matches({"spec.nodeName": "z"})
    assert FieldSelector.parse("spec.nodeName=").matches({})
    assert FieldSelector().matches({})


def test_terms_compare_for_equality_unless_told() -> None:
    assert FieldSelector.parse("a=b").terms == (FieldTerm("a", "b"),)


def test_what_a_server_asks_of_it() -> None:
    selector = FieldSelector.parse("metadata.name=x,spec.nodeName!=y")
    assert selector.fields() == ["metadata.name", "spec.nodeName"]
    assert selector.exact_value("metadata.name") == "x"
    assert selector.exact_value("spec.nodeName") is None
    assert selector.exact_value("status.phase") is None


values = st.text(st.sampled_from("ab,=\\é!"), max_size=6)
terms = st.builds(FieldTerm, st.sampled_from(["metadata.name", "spec.nodeName", "a"]), values, st.booleans())


@given(st.lists(terms, max_size=4))
def test_text_round_trip(chosen: list[FieldTerm]) -> None:
    text = ",".join(map(str, chosen))
    assert sorted(map(str, FieldSelector.parse(text).terms)) == sorted(map(str, chosen))


@given(st.lists(terms, max_size=4), st.dictionaries(st.sampled_from(["metadata.name", "a"]), values))
def test_all_terms_must_hold(chosen: list[FieldTerm], fields: dict[str, str]) -> None:
    wanted = all((fields.get(term.field, "") == term.value) == term.equal for term in chosen)
    assert FieldSelector.parse(",".join(map(str, chosen))).matches(fields) == wanted


@given(values)
def test_escaped_value_matches_itself(value: str) -> None:
    assert FieldSelector.parse(f"a={escape(value)}").exact_value("a") == value
