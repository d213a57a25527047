"""Label selectors: parsed from the text of a request, a LabelSelector or node affinity, to one `matches`.

Field selectors ("metadata.name=x,spec.nodeName!=y") have their text, its escapes, and matching over field values.
Which fields a kind offers is known to the server; here a field is a name with a text value, empty when absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from koord.values import names
from koord.values.go_format import in_json, join_errors, parse_decimal_int, quoted


class SelectorError(ValueError):
    """The selector is one that no API server accepts. The message is Kubernetes'."""


class Operator(StrEnum):
    """Operators by their names in selector text, in the order in which refusals list them."""

    IN = "in"
    NOT_IN = "notin"
    EQUALS = "="
    DOUBLE_EQUALS = "=="
    NOT_EQUALS = "!="
    GREATER_THAN = "gt"
    LESS_THAN = "lt"
    EXISTS = "exists"
    DOES_NOT_EXIST = "!"


_SETS = frozenset({Operator.IN, Operator.NOT_IN})
_EXACT = frozenset({Operator.EQUALS, Operator.DOUBLE_EQUALS, Operator.NOT_EQUALS})
_POSITIVE = frozenset({Operator.IN, Operator.EQUALS, Operator.DOUBLE_EQUALS})
_NEGATIVE = frozenset({Operator.NOT_IN, Operator.NOT_EQUALS})
_PRESENCE = frozenset({Operator.EXISTS, Operator.DOES_NOT_EXIST})
_SIGNS = {Operator.IN: " in ", Operator.NOT_IN: " notin ", Operator.GREATER_THAN: ">", Operator.LESS_THAN: "<"}


class Requirement(msgspec.Struct, frozen=True):
    """One requirement on labels, not validated; user input goes through `checked`."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    @staticmethod
    def checked(key: str, operator: str, values: Sequence[str] | None = ()) -> Requirement:
        """Build a validated requirement. Raises SelectorError when the key, the operator or the values are invalid."""
        reasons = _refusals(key, operator, values)
        if reasons:
            raise SelectorError(join_errors(reasons))
        return Requirement(key, Operator(operator), tuple(values or ()))

    def matches(self, labels: Mapping[str, str]) -> bool:
        operator = self.operator
        value = labels.get(self.key)
        if operator in _POSITIVE:
            return value is not None and value in self.values
        if operator in _NEGATIVE:
            return value is None or value not in self.values
        if operator is Operator.EXISTS:
            return value is not None
        if operator is Operator.DOES_NOT_EXIST:
            return value is None
        return self._matches_number(value)

    def _matches_number(self, value: str | None) -> bool:
        mine = parse_decimal_int(value) if value is not None else None
        bound = parse_decimal_int(self.values[0]) if len(self.values) == 1 else None
        if mine is None or bound is None:
            return False
        return mine > bound if self.operator is Operator.GREATER_THAN else mine < bound

    def __str__(self) -> str:
        if self.operator in _PRESENCE:
            return f"!{self.key}" if self.operator is Operator.DOES_NOT_EXIST else self.key
        shown = ",".join(sorted(self.values))
        if self.operator in _SETS:
            shown = f"({shown})"
        return f"{self.key}{_SIGNS.get(self.operator, self.operator)}{shown}"


def _refusals(key: str, operator: str, values: Sequence[str] | None) -> list[str]:
    reasons = []
    key_reasons = names.qualified_name(key)
    if key_reasons:
        reasons.append(f"key: Invalid value: {quoted(key)}: {'; '.join(key_reasons)}")
    given = values or ()
    if rule := _broken_rule(operator, len(given)):
        reasons.append(rule if rule.startswith("operator:") else f"values: Invalid value: {in_json(values)}: {rule}")
    if operator in (Operator.GREATER_THAN, Operator.LESS_THAN):
        reasons += [
            f"values[{i}]: Invalid value: {quoted(value)}: for 'Gt', 'Lt' operators, the value must be an integer"
            for i, value in enumerate(given)
            if parse_decimal_int(value) is None
        ]
    for i, value in enumerate(given):
        if value_reasons := names.label_value(value):
            reasons.append(f"values[{i}][{key}]: Invalid value: {quoted(value)}: {'; '.join(value_reasons)}")
    return reasons


def _broken_rule(operator: str, count: int) -> str | None:
    """Return what is wrong with an operator that is given this many values."""
    if operator in _SETS:
        return None if count else "for 'in', 'notin' operators, values set can't be empty"
    if operator in _EXACT:
        return None if count == 1 else "exact-match compatibility requires one single value"
    if operator in _PRESENCE:
        return None if count == 0 else "values set must be empty for exists and does not exist"
    if operator in (Operator.GREATER_THAN, Operator.LESS_THAN):
        return None if count == 1 else "for 'Gt', 'Lt' operators, exactly one value is required"
    supported = ", ".join(quoted(known) for known in Operator)
    return f"operator: Unsupported value: {in_json(operator)}: supported values: {supported}"


__all__ = [
    "EVERYTHING",
    "NOTHING",
    "Expression",
    "FieldSelector",
    "FieldTerm",
    "Operator",
    "Requirement",
    "Selector",
    "SelectorError",
]

# (key, operator as written in an object, values)
Expression = tuple[str, str, Sequence[str]]

_LABEL_OPERATORS = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.DOES_NOT_EXIST,
}
_NODE_OPERATORS = {**_LABEL_OPERATORS, "Gt": Operator.GREATER_THAN, "Lt": Operator.LESS_THAN}


class Selector(msgspec.Struct, frozen=True):
    """A label selector: all requirements must hold. With `matches_nothing` set it matches no labels."""

    requirements: tuple[Requirement, ...] = ()
    matches_nothing: bool = False

    @staticmethod
    def parse(text: str) -> Selector:
        """Parse a `labelSelector` parameter. Raises SelectorError."""
        return _parsed(text)

    @staticmethod
    def from_labels(labels: Mapping[str, str]) -> Selector:
        """Build a plain map selector (a Service's, a node selector's) of exactly these labels; not validated."""
        return _sorted(Requirement(key, Operator.EQUALS, (value,)) for key, value in labels.items())

    @staticmethod
    def from_label_selector(
        match_labels: Mapping[str, str] | None, match_expressions: Iterable[Expression] | None = None
    ) -> Selector:
        """Build the selector of a LabelSelector that is present; an absent one is NOTHING. Raises SelectorError."""
        requirements = [
            Requirement.checked(key, Operator.EQUALS, (value,)) for key, value in (match_labels or {}).items()
        ]
        for key, operator, values in match_expressions or ():
            known = _LABEL_OPERATORS.get(operator)
            if known is None:
                raise SelectorError(f"{quoted(operator)} is not a valid label selector operator")
            requirements.append(Requirement.checked(key, known, values or None))
        return _sorted(requirements)

    @staticmethod
    def from_unstructured(stated: Mapping[str, Any]) -> Selector:
        """Build the selector of a LabelSelector as it is on the wire. Raises SelectorError."""
        return Selector.from_label_selector(
            stated.get("matchLabels"),
            [
                (e.get("key", ""), e.get("operator", ""), e.get("values") or ())
                for e in stated.get("matchExpressions") or ()
            ],
        )

    @staticmethod
    def from_node_expressions(expressions: Iterable[Expression]) -> Selector:
        """Build the selector of one node selector term; an empty one matches nothing. Raises SelectorError."""
        requirements = []
        for key, operator, values in expressions:
            known = _NODE_OPERATORS.get(operator)
            if known is None:
                supported = ", ".join(quoted(name) for name in _NODE_OPERATORS)
                raise SelectorError(f"operator: Unsupported value: {in_json(operator)}: supported values: {supported}")
            requirements.append(Requirement.checked(key, known, values or None))
        return _sorted(requirements) if requirements else NOTHING

    def matches(self, labels: Mapping[str, str]) -> bool:
        return not self.matches_nothing and all(requirement.matches(labels) for requirement in self.requirements)

    def is_everything(self) -> bool:
        return not self.matches_nothing and not self.requirements

    def exact_value(self, key: str) -> str | None:
        """Return the only value of the label that can match, when the selector pins it to one."""
        for requirement in self.requirements:
            if requirement.key == key:
                pins = requirement.operator in (Operator.EQUALS, Operator.DOUBLE_EQUALS, Operator.IN)
                return requirement.values[0] if pins and len(requirement.values) == 1 else None
        return None

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


EVERYTHING = Selector()
NOTHING = Selector(matches_nothing=True)


def _sorted(requirements: Iterable[Requirement]) -> Selector:
    return Selector(tuple(sorted(requirements, key=lambda requirement: requirement.key)))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Selector:
    return _sorted(_Reader(text).requirements())


# A NUL byte ends the text where a token could start, and is skipped right after one.
_TOKEN = re.compile(r"[ \t\r\n]*(?:(==|!=|[=!(),<>])|([^=!(),<> \t\r\n\0]+))\0?")
_OPERATORS = {
    "in": Operator.IN,
    "notin": Operator.NOT_IN,
    "=": Operator.EQUALS,
    "==": Operator.DOUBLE_EQUALS,
    "!=": Operator.NOT_EQUALS,
    ">": Operator.GREATER_THAN,
    "<": Operator.LESS_THAN,
}


class _Reader:
    """Parses the tokens of one selector text. The end of the text is the token "" that is no word."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, bool]] = []  # (text, whether it may stand as key or value)
        at = 0
        while token := _TOKEN.match(text, at):
            self._tokens.append((token[1] or token[2], token[1] is None))
            at = token.end()
        self._tokens.append(("", False))
        self._at = 0

    def requirements(self) -> list[Requirement]:
        found: list[Requirement] = []
        token, is_word = self._peek()
        if token == "" and not is_word:
            return found
        if not is_word and token != "!":
            raise SelectorError(f"found '{token}', expected: !, identifier, or 'end of string'")
        while True:
            try:
                found.append(self._requirement())
            except SelectorError as error:
                raise SelectorError(f"unable to parse requirement: {error}") from None
            token, is_word = self._take()
            if token == "" and not is_word:
                return found
            if token != ",":
                raise SelectorError(f"found '{token}', expected: ',' or 'end of string'")
            token, is_word = self._peek()
            if not is_word and token != "!":
                raise SelectorError(f"found '{token}', expected: identifier after ','")

    def _requirement(self) -> Requirement:
        key, is_word = self._take()
        negated = not is_word and key == "!"
        if negated:
            key, is_word = self._take()
        if not is_word:
            raise SelectorError(f"found '{key}', expected: identifier")
        if reasons := names.qualified_name(key):
            raise SelectorError(f"<nil>: Invalid value: {quoted(key)}: {'; '.join(reasons)}")
        if negated:
            return Requirement(key, Operator.DOES_NOT_EXIST)
        if self._at_end_of_requirement():
            return Requirement(key, Operator.EXISTS)
        sign, _ = self._take()
        operator = _OPERATORS.get(sign)
        if operator is None:
            raise SelectorError(f"found '{sign}', expected: in, notin, =, ==, !=, gt, lt")
        values = self._set() if operator in (Operator.IN, Operator.NOT_IN) else {self._exact()}
        return Requirement.checked(key, operator, sorted(values))

    def _exact(self) -> str:
        if self._at_end_of_requirement():
            return ""
        token, is_word = self._take()
        if not is_word:
            raise SelectorError(f"found '{token}', expected: identifier")
        return token

    def _set(self) -> set[str]:
        token, _ = self._take()
        if token != "(":
            raise SelectorError(f"found '{token}' expected: '('")
        token, is_word = self._peek()
        if not is_word and token not in (",", ")"):
            raise SelectorError(f"found '{token}', expected: ',', ')' or identifier")
        values: set[str] = set()
        before = "("  # an empty value stands wherever two of "(", "," and ")" meet
        while True:
            token, is_word = self._take()
            if is_word:
                values.add(token)
                after, _ = self._peek()
                if after not in (",", ")"):
                    raise SelectorError(f"found '{after}', expected: ',' or ')'")
            elif token in (",", ")"):
                if before in ("(", ","):
                    values.add("")
                if token == ")":
                    return values
            else:
                raise SelectorError(f"found '{token}', expected: ',', or identifier")
            before = "" if is_word else token

    def _at_end_of_requirement(self) -> bool:
        return self._peek() in (("", False), (",", False))

    def _peek(self) -> tuple[str, bool]:
        return self._tokens[self._at]

    def _take(self) -> tuple[str, bool]:
        token = self._tokens[self._at]
        self._at += 1
        return token


_TERM = re.compile(r"(.*?)(!=|==|=)(.*)", re.DOTALL)
_SPECIAL = re.compile(r"[\\,=]")


class FieldTerm(msgspec.Struct, frozen=True):
    """One comparison; `equal` is False for !=."""

    field: str
    value: str
    equal: bool = True

    def __str__(self) -> str:
        return f"{self.field}{'=' if self.equal else '!='}{escape(self.value)}"


class FieldSelector(msgspec.Struct, frozen=True):
    """All terms must hold; without terms everything matches."""

    terms: tuple[FieldTerm, ...] = ()

    @staticmethod
    def parse(text: str) -> FieldSelector:
        """Parse a `fieldSelector` parameter. Raises SelectorError."""
        return _parsed_fields(text)

    def matches(self, fields: Mapping[str, str]) -> bool:
        return all((fields.get(term.field, "") == term.value) is term.equal for term in self.terms)

    def fields(self) -> list[str]:
        """Return the field names, for a server to refuse those it does not know."""
        return [term.field for term in self.terms]

    def exact_value(self, field: str) -> str | None:
        """Return the only value of the field that can match, when the selector pins it to one."""
        return next((term.value for term in self.terms if term.field == field and term.equal), None)

    def __str__(self) -> str:
        return ",".join(map(str, self.terms))


def escape(value: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", value)


@lru_cache(maxsize=4096)
def _parsed_fields(text: str) -> FieldSelector:
    terms = []
    for part in sorted(_parts(text)):
        if not part:
            continue
        match = _TERM.fullmatch(part)
        if match is None:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{part}'")
        field, sign, value = match.groups()
        term = FieldTerm(field, _unescape(value), sign != "!=")
        if field or term.value:  # a lone sign asks about nothing, and "!=" must not exclude everything
            terms.append(term)
    return FieldSelector(tuple(terms))


def _parts(text: str) -> list[str]:
    """Split at every comma that no backslash escapes."""
    parts, start, escaped = [], 0, False
    for at, char in enumerate(text):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == ",":
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return parts


def _unescape(value: str) -> str:
    if not _SPECIAL.search(value):
        return value
    plain = []
    chars = iter(value)
    for char in chars:
        if char == "\\":
            follower = next(chars, "")
            if not follower or follower not in "\\,=":
                raise SelectorError(f"invalid field selector: invalid escape sequence: \\{follower}")
            plain.append(follower)
        elif char in ",=":
            raise SelectorError(f"invalid field selector: unescaped character in value: {ord(char)}")
        else:
            plain.append(char)
    return "".join(plain)
