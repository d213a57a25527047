"""Label selectors: from the text of a request, from a LabelSelector or from node affinity, to one `matches`.

Selectors over fields of an object are in `koord.values.field_selector`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from koord.values import names
from koord.values.quotation import in_json, quoted
from koord.values.requirement import Operator, Requirement, SelectorError

__all__ = ["EVERYTHING", "NOTHING", "Expression", "Operator", "Requirement", "Selector", "SelectorError"]

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
    nothing: bool = False

    @staticmethod
    def parse(text: str) -> Selector:
        """Parse a `labelSelector` parameter. Raises SelectorError."""
        return _parsed(text)

    @staticmethod
    def of_labels(labels: Mapping[str, str]) -> Selector:
        """Build a plain map selector (a Service's, a node selector's) of exactly these labels; not validated."""
        return _sorted(Requirement(key, Operator.EQUALS, (value,)) for key, value in labels.items())

    @staticmethod
    def of(match_labels: Mapping[str, str] | None, match_expressions: Iterable[Expression] | None = None) -> Selector:
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
    def of_node_expressions(expressions: Iterable[Expression]) -> Selector:
        """Build the selector of one node selector term; a term without expressions matches nothing. Raises
        SelectorError.
        """
        requirements = []
        for key, operator, values in expressions:
            known = _NODE_OPERATORS.get(operator)
            if known is None:
                supported = ", ".join(quoted(name) for name in _NODE_OPERATORS)
                raise SelectorError(f"operator: Unsupported value: {in_json(operator)}: supported values: {supported}")
            requirements.append(Requirement.checked(key, known, values or None))
        return _sorted(requirements) if requirements else NOTHING

    def matches(self, labels: Mapping[str, str]) -> bool:
        return not self.nothing and all(requirement.matches(labels) for requirement in self.requirements)

    def is_everything(self) -> bool:
        return not self.nothing and not self.requirements

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
NOTHING = Selector(nothing=True)


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
