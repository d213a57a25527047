"""This module validates a custom object's values against its schema, in kube-apiserver's words and order.

Structure (unknown fields, defaults) is handled before, and metadata at the root is validated elsewhere.
"""

from __future__ import annotations

import math

_JSON_MAX = (1 << 53) - 1


def go_float(number: float) -> str:
    """Format a number as Go's %v prints it."""
    if isinstance(number, int):
        return str(number)
    if number.is_integer() and abs(number) < 1e21:
        return str(int(number))
    text = repr(number)
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text
    power = int(exponent)
    return f"{mantissa.removesuffix('.0')}e{'-' if power < 0 else '+'}{abs(power):02}"


def integral(number: float) -> bool:
    """Return whether a number is accepted as an integer; floats within rounding distance of one are."""
    if isinstance(number, int):
        return -(1 << 63) <= number < 1 << 63
    if not math.isfinite(number) or abs(number) > _JSON_MAX:
        return False
    near = math.trunc(number)
    return near == number or (near != 0 and abs(number - near) / (abs(number) + abs(near)) < 1e-9)
