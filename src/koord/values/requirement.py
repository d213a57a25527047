"""Label selectors: parsed from the text of a request, a LabelSelector or node affinity, to one `matches`.

Selectors over fields of an object are in `koord.values.field_selector`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from koord.values import names
from koord.values.quotation import in_json, integer, quoted


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
_SIGNS = {
    Operator.IN: " in ",
    Operator.NOT_IN: " notin ",
    Operator.GREATER_THAN: ">",
    Operator.LESS_THAN: "<",
}


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
            raise SelectorError(reasons[0] if len(reasons) == 1 else f"[{', '.join(reasons)}]")
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
        mine = integer(value) if value is not None else None
        bound = integer(self.values[0]) if len(self.values) == 1 else None
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
            if integer(value) is None
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
