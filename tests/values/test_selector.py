"""Label selectors are parsed from text and objects, and matching agrees with a plain restatement."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.values.selector import EVERYTHING, NOTHING, Expression, Operator, Requirement, Selector, SelectorError

OPERATORS_EXPECTED = "expected: in, notin, =, ==, !=, gt, lt"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("  ", ""),
        ("a", "a"),
        ("!a", "!a"),
        ("! a", "!a"),
        ("a=b", "a=b"),
        ("a == b", "a==b"),
        ("a!=b", "a!=b"),
        ("a in (y,x)", "a in (x,y)"),
        ("a notin (x)", "a notin (x)"),
        ("a in ()", "a in ()"),
        ("a in (,)", "a in ()"),
        ("a in (a,,b)", "a in (,a,b)"),
        ("a in (b,)", "a in (,b)"),
        ("a in (x,x)", "a in (x)"),
        ("a>5", "a>5"),
        ("a<-5", None),
        ("a=", "a="),
        ("a=,b", "a=,b"),
        ("in", "in"),
        ("in in (in,notin)", "in in (in,notin)"),
        ("z=1,a=2", "a=2,z=1"),
        ("x=a,y=b,\tz in (1 ,2)", "x=a,y=b,z in (1,2)"),
        ("koordinator.sh/qosClass=BE", "koordinator.sh/qosClass=BE"),
    ],
)
def test_text(text: str, canonical: str | None) -> None:
    if canonical is None:
        with pytest.raises(SelectorError, match="a valid label must be"):
            Selector.parse(text)
    else:
        assert str(Selector.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,", "found '', expected: identifier after ','"),
        ("a,,b", "found ',', expected: identifier after ','"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
        ("=a", "found '=', expected: !, identifier, or 'end of string'"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("!a in (x)", "found 'in', expected: ',' or 'end of string'"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("!!a", "unable to parse requirement: found '!', expected: identifier"),
        ("a b", f"unable to parse requirement: found 'b', {OPERATORS_EXPECTED}"),
        ("a=(", "unable to parse requirement: found '(', expected: identifier"),
        ("a in", "unable to parse requirement: found '' expected: '('"),
        ("a in x", "unable to parse requirement: found 'x' expected: '('"),
        ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
        ("a in (a b)", "unable to parse requirement: found 'b', expected: ',' or ')'"),
        ("a in (a,", "unable to parse requirement: found '', expected: ',', or identifier"),
        (
            "a>x",
            'unable to parse requirement: values[0]: Invalid value: "x": '
            "for 'Gt', 'Lt' operators, the value must be an integer",
        ),
        (
            "-a=b",
            'unable to parse requirement: <nil>: Invalid value: "-a": name part must consist of alphanumeric '
            "characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or "
            "'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ),
        (
            "a=-b",
            'unable to parse requirement: values[0][a]: Invalid value: "-b": a valid label must be an empty string or '
            "consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
            "character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
            "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
        ),
    ],
)
def test_malformed_text_is_refused_in_kubernetes_words(text: str, message: str) -> None:
    with pytest.raises(SelectorError) as refusal:
        Selector.parse(text)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("key", "operator", "values", "message"),
    [
        ("k", "in", [], "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"),
        ("k", "in", None, "values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty"),
        ("k", "=", ["a", "b"], 'values: Invalid value: ["a","b"]: exact-match compatibility requires one single value'),
        ("k", "!", ["x"], 'values: Invalid value: ["x"]: values set must be empty for exists and does not exist'),
        (
            "k",
            "gt",
            ["1", "2"],
            "values: Invalid value: [\"1\",\"2\"]: for 'Gt', 'Lt' operators, exactly one value is required",
        ),
        (
            "k",
            "foo<",
            [],
            'operator: Unsupported value: "foo\\u003c": supported values: '
            '"in", "notin", "=", "==", "!=", "gt", "lt", "exists", "!"',
        ),
        (
            "k",
            "lt",
            ["x", "y"],
            "[values: Invalid value: [\"x\",\"y\"]: for 'Gt', 'Lt' operators, exactly one value is required, "
            "values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer, "
            "values[1]: Invalid value: \"y\": for 'Gt', 'Lt' operators, the value must be an integer]",
        ),
    ],
)
def test_requirements_are_checked(key: str, operator: str, values: list[str] | None, message: str) -> None:
    with pytest.raises(SelectorError) as refusal:
        Requirement.checked(key, operator, values)
    assert str(refusal.value) == message


def test_absent_matches_nothing_and_empty_everything() -> None:
    for labels in ({}, {"a": "b"}):
        assert not NOTHING.matches(labels)
        assert EVERYTHING.matches(labels)
    assert (
        Selector.from_label_selector({}, []) == Selector.from_label_selector(None) == Selector.parse("") == EVERYTHING
    )
    assert EVERYTHING.is_everything()
    assert not NOTHING.is_everything()


def test_object_form_joins_labels_and_expressions() -> None:
    selector = Selector.from_label_selector({"b": "1", "a": "2"}, [("aa", "In", ["z", "y"])])
    assert str(selector) == "a=2,aa in (y,z),b=1"
    assert selector.matches({"b": "1", "a": "2", "aa": "z", "other": "x"})
    assert not selector.matches({"b": "1", "a": "2"})


@pytest.mark.parametrize("operator", ["in", "Gt", "", "Equals"])
def test_object_form_has_its_own_operators(operator: str) -> None:
    with pytest.raises(SelectorError) as refusal:
        Selector.from_label_selector({}, [("a", operator, ["1"])])
    assert str(refusal.value) == f'"{operator}" is not a valid label selector operator'


@pytest.mark.parametrize(
    ("expression", "zone", "matches"),
    [
        pytest.param(("zone", "In", ["a", "b"]), "b", True, id="in"),
        pytest.param(("zone", "In", ["a"]), None, False, id="in-absent"),
        pytest.param(("zone", "NotIn", ["a"]), "b", True, id="not-in"),
        pytest.param(("zone", "NotIn", ["a"]), None, True, id="not-in-absent"),
        pytest.param(("zone", "Exists", []), "", True, id="exists-empty"),
        pytest.param(("zone", "Exists", []), None, False, id="exists-absent"),
        pytest.param(("zone", "DoesNotExist", []), None, True, id="does-not-exist"),
        pytest.param(("zone", "Gt", ["5"]), "6", True, id="greater"),
        pytest.param(("zone", "Gt", ["5"]), "5", False, id="not-greater"),
        pytest.param(("zone", "Gt", ["5"]), "six", False, id="greater-than-a-word"),
        pytest.param(("zone", "Lt", ["5"]), "4", True, id="less"),
        pytest.param(("zone", "Lt", ["5"]), "5", False, id="not-less"),
        pytest.param(("zone", "Lt", ["5"]), "1_0", False, id="number-in-python-only"),
        pytest.param(("zone", "Lt", ["5"]), None, False, id="less-absent"),
        pytest.param(("zone", "Gt", ["5"]), "9223372036854775808", False, id="beyond-int64"),
    ],
)
def test_node_expressions(expression: Expression, zone: str | None, matches: bool) -> None:
    labels = {} if zone is None else {"zone": zone}
    assert Selector.from_node_expressions([expression]).matches(labels) is matches


def test_node_term_without_expressions_matches_nothing() -> None:
    assert Selector.from_node_expressions([]) == NOTHING


def test_node_operator_is_checked() -> None:
    with pytest.raises(SelectorError) as refusal:
        Selector.from_node_expressions([("a", "Near", ["1"])])
    assert str(refusal.value) == (
        'operator: Unsupported value: "Near": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"'
    )


def test_exact_value() -> None:
    selector = Selector.parse("a=1,b in (2),c in (3,4),d!=5,e")
    assert [selector.exact_value(key) for key in "abcdef"] == ["1", "2", None, None, None, None]


def test_plain_map() -> None:
    assert Selector.from_labels({"b": "2", "a": "1"}) == Selector.parse("a=1,b=2")


keys = st.sampled_from(["a", "b", "in", "notin", "x.io/y"])
words = st.sampled_from(["", "1", "5", "7", "x", "in", "notin"])
requirements = st.one_of(
    st.builds(
        Requirement, keys, st.sampled_from([Operator.IN, Operator.NOT_IN]), st.sets(words, min_size=1).map(tuple)
    ),
    st.builds(
        Requirement,
        keys,
        st.sampled_from([Operator.EQUALS, Operator.DOUBLE_EQUALS, Operator.NOT_EQUALS]),
        words.map(lambda word: (word,)),
    ),
    st.builds(Requirement, keys, st.sampled_from([Operator.EXISTS, Operator.DOES_NOT_EXIST])),
    st.builds(
        Requirement,
        keys,
        st.sampled_from([Operator.GREATER_THAN, Operator.LESS_THAN]),
        st.integers(0, 9).map(lambda n: (str(n),)),
    ),
)
labels = st.dictionaries(keys, words)
blanks = st.sampled_from(["", " ", "\t", "  "])


def holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """What each operator means, said once more."""
    present = requirement.key in labels
    value = labels.get(requirement.key, "")
    among = present and value in requirement.values
    number = int(value) if value.isdigit() else None
    return {
        Operator.IN: lambda: among,
        Operator.EQUALS: lambda: among,
        Operator.DOUBLE_EQUALS: lambda: among,
        Operator.NOT_IN: lambda: not among,
        Operator.NOT_EQUALS: lambda: not among,
        Operator.EXISTS: lambda: present,
        Operator.DOES_NOT_EXIST: lambda: not present,
        Operator.GREATER_THAN: lambda: number is not None and number > int(requirement.values[0]),
        Operator.LESS_THAN: lambda: number is not None and number < int(requirement.values[0]),
    }[requirement.operator]()


@given(st.lists(requirements, max_size=4), labels, blanks)
def test_text_of_requirements_means_all_of_them(chosen: list[Requirement], labels: dict[str, str], blank: str) -> None:
    selector = Selector.parse(f"{blank},{blank}".join(map(str, chosen)))
    assert selector.matches(labels) == all(holds(requirement, labels) for requirement in chosen)
    assert Selector.parse(str(selector)) == selector


@given(st.text("ab=!(),<> \tin", max_size=12), labels)
def test_any_text_is_read_or_refused(text: str, labels: dict[str, str]) -> None:
    try:
        selector = Selector.parse(text)
    except SelectorError:
        return
    again = Selector.parse(str(selector))
    assert again == selector
    assert again.matches(labels) == selector.matches(labels)
