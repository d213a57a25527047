"""Exact Kubernetes quantities: an integer times a power of ten, with the suffix family it is written in.

Text is left to `koord.values.quantity_syntax`. Integer views (`value`, `milli_value`) round away from zero as
Kubernetes does, and saturate at the ends of int64, where Kubernetes wraps around or answers zero.
"""

from __future__ import annotations

import math
from functools import lru_cache

from koord.values.quantity_syntax import MAX_INT64, Format, QuantityError, divide_away, format_literal, parse_literal

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
