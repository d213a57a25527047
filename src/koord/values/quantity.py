"""Exact Kubernetes quantities: an integer times a power of ten, with the suffix family it is written in; parsed from a
literal, and formatted as the canonical one.

Text is left to `koord.values.quantity`. Integer views (`value`, `milli_value`) round away from zero as
Kubernetes does, and saturate at the ends of int64, where Kubernetes wraps around or answers zero.

It does no arithmetic; `koord.values.quantity` holds the number and decides when text is needed.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

MAX_INT64 = 2**63 - 1
NANO = -9

# Text longer than this is an attack on the parser's time, not a number: Kubernetes itself has no limit here.
_MAX_DIGITS = 1000
_INT32 = 2**31

_FORMAT_WRONG = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"  # as Kubernetes says
)
_NUMERIC_WRONG = "unable to parse numeric part of quantity"
_SUFFIX_WRONG = "unable to parse quantity's suffix"


class QuantityError(ValueError):
    """The text is not a quantity. The message is the one an API server gives."""


class Format(StrEnum):
    """The family of suffixes that a quantity is written with. Values keep the family they were parsed in."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


class QuantityLiteral(NamedTuple):
    """A parsed literal: unscaled x 10^scale. `text` is set when the literal is shown as it was written."""

    unscaled: int
    scale: int
    format: Format
    text: str | None


# The published expression asks for a digit; the code behind it does not, so "", "m" and "." (all zero) must pass too.
_SHAPE = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)")
_EXPONENT = re.compile(r"[eE]([-+]?[0-9]+)")
_DECIMAL_EXPONENT = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_EXPONENT = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENT.items()}
_BINARY_SUFFIX = ("", *_BINARY_EXPONENT)


def parse_literal(text: str) -> QuantityLiteral:
    """Parse a literal. Raises QuantityError."""
    shape = _SHAPE.fullmatch(text) if text else None
    if shape is None:
        raise QuantityError(_FORMAT_WRONG)
    sign, whole, fraction, suffix = shape.groups("")
    digits = (whole.lstrip("0") or "0") + fraction
    if len(digits) > _MAX_DIGITS:
        raise QuantityError(_NUMERIC_WRONG)
    unscaled = -int(digits) if sign == "-" else int(digits)
    bits = _BINARY_EXPONENT.get(suffix)
    if bits is not None:
        if not fraction and len(digits) + bits * 3 // 10 <= 14:
            kept = unscaled & 7 != 0  # 8 Ki and more may be a step towards the next suffix, so those are written anew
            return QuantityLiteral(unscaled << bits, 0, Format.BINARY_SI, text if kept else None)
        _need_digits(whole, fraction)
        return _binary(unscaled << bits, -len(fraction))
    exponent = _DECIMAL_EXPONENT.get(suffix)
    if exponent is not None:
        format = Format.DECIMAL_SI
    else:
        exponent, format = _power(suffix), Format.DECIMAL_EXPONENT
    scale = exponent - len(fraction)
    if len(digits) <= 18 and scale >= NANO:
        # Kubernetes shows such a literal unchanged ("1.234", "+5") when it looks canonical at a glance, even if it
        # is not; other programs compare these texts, so the same glance is taken here.
        kept = scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
        return QuantityLiteral(unscaled, scale, format, text if kept else None)
    _need_digits(whole, fraction)
    unscaled, scale = _at_nano(unscaled, scale)
    return QuantityLiteral(unscaled, scale, format, None)


def _power(suffix: str) -> int:
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is None or len(suffix) > 24:
        raise QuantityError(_SUFFIX_WRONG)
    power = int(exponent[1])
    if not -_INT32 <= power < _INT32:  # Kubernetes wraps around here, and may then compute for minutes
        raise QuantityError(_SUFFIX_WRONG)
    return power


def _need_digits(whole: str, fraction: str) -> None:
    """Refuse a long literal without digits; in Kubernetes only short ones without digits are zero."""
    if not whole and not fraction:
        raise QuantityError(_NUMERIC_WRONG)


def _binary(unscaled: int, scale: int) -> QuantityLiteral:
    unscaled, scale = _at_nano(unscaled, scale)
    one = 10**-scale
    if abs(unscaled) > MAX_INT64 * one:
        return QuantityLiteral(MAX_INT64 if unscaled > 0 else -MAX_INT64, 0, Format.BINARY_SI, None)
    below_one = 0 < abs(unscaled) < one
    return QuantityLiteral(unscaled, scale, Format.DECIMAL_SI if below_one else Format.BINARY_SI, None)


def _at_nano(unscaled: int, scale: int) -> tuple[int, int]:
    """Round away from zero to nanos, so that a tiny request does not become nothing."""
    if scale >= NANO or unscaled == 0:
        return unscaled, scale if unscaled else 0
    excess = NANO - scale
    if excess > 2 * _MAX_DIGITS:
        return (1 if unscaled > 0 else -1), NANO
    return divide_away(unscaled, 10**excess), NANO


def divide_away(value: int, divisor: int) -> int:
    """Divide integers, rounded away from zero."""
    return -(-value // divisor) if value > 0 else value // divisor


def format_literal(unscaled: int, scale: int, format: Format) -> str:
    """Format the canonical literal: no fraction digits, the largest suffix that keeps it exact."""
    if unscaled == 0:
        return "0"
    if format is Format.BINARY_SI and (whole := _whole(unscaled, scale)) is not None and not -1024 < whole < 1024:
        power = ((whole & -whole).bit_length() - 1) // 10
        if power < len(_BINARY_SUFFIX):
            return f"{whole >> 10 * power}{_BINARY_SUFFIX[power]}"
    while unscaled % 1000 == 0:
        unscaled //= 1000
        scale += 3
    while unscaled % 10 == 0:
        unscaled //= 10
        scale += 1
    shift = scale % 3
    if shift:
        unscaled *= 10**shift
        scale -= shift
    suffix = _DECIMAL_SUFFIX.get(scale) if format is not Format.DECIMAL_EXPONENT else None
    if suffix is None:
        # Also what no suffix can say: Kubernetes drops the power there and writes 1000E as "1".
        suffix = f"e{scale}" if scale else ""
    return f"{unscaled}{suffix}"


def _whole(unscaled: int, scale: int) -> int | None:
    """Return the integer value, or None when there is a fraction or the number is beyond any binary suffix."""
    if scale >= 0:
        return unscaled * 10**scale if scale <= 30 else None
    whole, rest = divmod(unscaled, 10**-scale)
    return whole if rest == 0 else None


__all__ = ["ZERO", "Format", "Quantity", "QuantityError"]

MILLI = -3

# What Go's strings.TrimSpace removes; Python's own idea of white space is wider.
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))

# Numbers whose powers of ten lie further apart than this are not added digit by digit: the smaller one is lost in any
# use, and a hostile "1e2000000000" would cost gigabytes.
_MAX_GAP = 1000


class Quantity:
    """An immutable amount. Equal amounts are equal and hash alike whatever their format."""

    __slots__ = ("_format", "_scale", "_text", "_unscaled")

    def __init__(self, unscaled: int, scale: int, format: Format, text: str | None = None) -> None:
        self._unscaled = unscaled
        self._scale = scale
        self._format = format
        self._text = text

    @staticmethod
    def parse(value: str | int | float) -> Quantity:
        """Parse a JSON string or number. Raises QuantityError with an API server's message."""
        if isinstance(value, str):
            return _parsed(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise QuantityError(f"a quantity is text or a number, not {type(value).__name__}")
        if isinstance(value, int) and -MAX_INT64 <= value <= MAX_INT64:
            return Quantity(value, 0, Format.DECIMAL_SI)
        return _parsed(repr(value))

    @staticmethod
    def from_value(value: int, format: Format = Format.DECIMAL_SI) -> Quantity:
        return Quantity(value, 0, format)

    @staticmethod
    def from_milli(milli: int, format: Format = Format.DECIMAL_SI) -> Quantity:
        return Quantity(milli, MILLI, format)

    @staticmethod
    def from_scaled(value: int, scale: int, format: Format = Format.DECIMAL_SI) -> Quantity:
        """Return value x 10^scale."""
        return Quantity(value, scale, format)

    @property
    def format(self) -> Format:
        return self._format

    def value(self) -> int:
        """Return whole units, rounded away from zero, within int64."""
        amount = self._unscaled
        if self._scale == 0 and -MAX_INT64 <= amount <= MAX_INT64:
            return amount
        return self.scaled_value(0)

    def milli_value(self) -> int:
        """Return thousandths, rounded away from zero, within int64."""
        amount = self._unscaled
        if self._scale == MILLI and -MAX_INT64 <= amount <= MAX_INT64:
            return amount
        return self.scaled_value(MILLI)

    def scaled_value(self, scale: int) -> int:
        """Return units of 10^scale, rounded away from zero, within int64."""
        shift = self._scale - scale
        amount = self._unscaled
        if shift < 0:
            amount = divide_away(amount, 10**-shift)
        elif shift > 19 and amount:
            return MAX_INT64 if amount > 0 else -MAX_INT64
        elif shift:
            amount *= 10**shift
        return min(max(amount, -MAX_INT64), MAX_INT64)

    def is_zero(self) -> bool:
        return self._unscaled == 0

    def sign(self) -> int:
        return (self._unscaled > 0) - (self._unscaled < 0)

    def __float__(self) -> float:
        """Return the nearest float; infinite when there is none."""
        if self._scale > 400:
            return math.copysign(math.inf, self._unscaled) if self._unscaled else 0.0
        try:
            return (
                float(self._unscaled / 10**-self._scale) if self._scale < 0 else float(self._unscaled * 10**self._scale)
            )
        except OverflowError:
            return math.copysign(math.inf, self._unscaled)

    def __str__(self) -> str:
        """Return the canonical literal, as an API server shows it."""
        text = self._text
        if text is None:
            text = self._text = format_literal(self._unscaled, self._scale, self._format)
        return text

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    # Arithmetic. The result is written like the left operand, unless that one is zero and so has no say.

    def __add__(self, other: Quantity) -> Quantity:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self._plus(other._unscaled, other)

    def __sub__(self, other: Quantity) -> Quantity:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self._plus(-other._unscaled, other)

    def _plus(self, addend: int, other: Quantity) -> Quantity:
        mine, gap = self._unscaled, self._scale - other._scale
        format = self._format if mine else other._format
        if gap == 0:
            return Quantity(mine + addend, self._scale, format)
        if mine == 0:
            return Quantity(addend, other._scale, format)
        if addend == 0:
            return Quantity(mine, self._scale, format)
        if gap > _MAX_GAP or gap < -_MAX_GAP:
            if _compare(abs(mine), self._scale, abs(addend), other._scale) >= 0:
                return Quantity(mine, self._scale, format)
            return Quantity(addend, other._scale, format)
        if gap > 0:
            return Quantity(mine * 10**gap + addend, other._scale, format)
        return Quantity(mine + addend * 10**-gap, self._scale, format)

    def __mul__(self, factor: int) -> Quantity:
        if not isinstance(factor, int):
            return NotImplemented
        return Quantity(self._unscaled * factor, self._scale, self._format)

    __rmul__ = __mul__

    def __neg__(self) -> Quantity:
        return Quantity(-self._unscaled, self._scale, self._format)

    # Comparison by amount alone.

    def compare(self, other: Quantity) -> int:
        """Return -1, 0 or 1."""
        return _compare(self._unscaled, self._scale, other._unscaled, other._scale)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return _compare(self._unscaled, self._scale, other._unscaled, other._scale) == 0

    def __lt__(self, other: Quantity) -> bool:
        return _compare(self._unscaled, self._scale, other._unscaled, other._scale) < 0

    def __le__(self, other: Quantity) -> bool:
        return _compare(self._unscaled, self._scale, other._unscaled, other._scale) <= 0

    def __gt__(self, other: Quantity) -> bool:
        return _compare(self._unscaled, self._scale, other._unscaled, other._scale) > 0

    def __ge__(self, other: Quantity) -> bool:
        return _compare(self._unscaled, self._scale, other._unscaled, other._scale) >= 0

    def __hash__(self) -> int:
        unscaled, scale = self._unscaled, self._scale
        if unscaled == 0:
            return hash((0, 0))
        while unscaled % 10 == 0:
            unscaled //= 10
            scale += 1
        return hash((unscaled, scale))


@lru_cache(maxsize=1 << 15)
def _parsed(text: str) -> Quantity:
    return Quantity(*parse_literal(text.strip(_SPACE)))


def _compare(left: int, left_scale: int, right: int, right_scale: int) -> int:
    gap = left_scale - right_scale
    if gap and left and right and (left > 0) == (right > 0):
        if abs(gap) > _MAX_GAP:
            # Decide by magnitude first; only numbers of nearly equal magnitude are worth writing out.
            order = len(str(abs(left))) + left_scale - len(str(abs(right))) - right_scale
            if order:
                return 1 if (order > 0) == (left > 0) else -1
        if gap > 0:
            left *= 10**gap
        else:
            right *= 10**-gap
    return (left > right) - (left < right)


ZERO = Quantity(0, 0, Format.DECIMAL_SI, "0")
