"""Field selectors ("metadata.name=x,spec.nodeName!=y"): their text, its escapes, and matching over field values.

Which fields a kind offers is known to the server; here a field is a name with a text value, empty when absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from koord.values.selector import SelectorError

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
        return _parsed(text)

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


EVERYTHING = FieldSelector()


def escape(value: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", value)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> FieldSelector:
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
