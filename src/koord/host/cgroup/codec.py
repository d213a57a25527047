"""How one value sits in one kernel file: check and encode it, find it in the file's text, compare, and write it.

Two languages meet here. A *value* is what strategies speak: version 1's terms (shares, `-1` for no limit). A *field*
is what stands in the file (`max`, a weight, one column of cpu.max). Comparisons are made between fields, since
shares -> weight loses digits and a compare of values would rewrite a file for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from koord.host.cgroup.conversion import (
    MAX_INT64,
    MAX_SHARES,
    MIN_SHARES,
    V1_UNLIMITED_BYTES,
    shares_of_weight,
    weight_of_shares,
)
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.quotation import integer

MAX = "max"
Check = Callable[[str], bool]


def anything(value: str) -> bool:
    """Accept any value that is not empty."""
    return bool(value)


def between(low: int, high: int) -> Check:
    """Return a check for integers of a range; `max` is the largest integer."""

    def check(value: str) -> bool:
        number = MAX_INT64 if value == MAX else integer(value)
        return number is not None and low <= number <= high

    return check


class Codec:
    """The codec of a file that holds one value, written as it is."""

    needs_text = False  # whether `line` must see the file's text of this very moment

    def __init__(self, check: Check = anything) -> None:
        self.check = check

    def key(self, value: str) -> str:
        """Return the part of the file that the value is about: "" where the file holds one value."""
        return ""

    def encode(self, value: str) -> str | None:
        """Return the field of a value, or None when the kernel would refuse it."""
        return value if self.check(value) else None

    def decode(self, field: str) -> str:
        """Return the value of a field."""
        return field

    def pick(self, text: str, key: str) -> str | None:
        """Return the field in the file's text; None when the text is not what this file should hold."""
        return text.strip()

    def line(self, text: str, key: str, field: str) -> str:
        """Return what to write so that the field changes and the rest of the file stays."""
        return field

    def same(self, one: str, other: str) -> bool:
        """Return whether two fields mean the same."""
        return one == other


class Weight(Codec):
    """cpu.weight, with values in shares."""

    def encode(self, value: str) -> str | None:
        shares = integer(value)
        weight = None if shares is None else weight_of_shares(shares)
        return None if weight is None else str(weight)

    def decode(self, field: str) -> str:
        shares = shares_of_weight(int(field)) if field.isdecimal() else None
        return field if shares is None else str(shares)


class Shares(Codec):
    def __init__(self) -> None:
        super().__init__(between(MIN_SHARES, MAX_SHARES))


class Amount(Codec):
    """A number in which `max` (v2) or the largest integer stands for no limit: memory.min, memory.high, ..."""

    def same(self, one: str, other: str) -> bool:
        return one == other or _amount(one) == _amount(other)


class Bytes(Codec):
    """A memory limit. The kernel rounds down to pages, so fields are equal when their pages are."""

    def __init__(self, unlimited: str, page_bytes: int = 4096) -> None:
        super().__init__()
        self._unlimited = unlimited
        self._page = page_bytes

    def encode(self, value: str) -> str | None:
        number = MAX_INT64 if value == MAX else integer(value)
        if number is None or number < -1:
            return None
        return self._unlimited if number == -1 or number >= V1_UNLIMITED_BYTES else str(number)

    def decode(self, field: str) -> str:
        return "-1" if self._pages(field) is None else field

    def same(self, one: str, other: str) -> bool:
        return self._pages(one) == self._pages(other)

    def _pages(self, field: str) -> int | str | None:
        number = -1 if field == MAX else integer(field)
        if number is None:
            return field
        return None if number == -1 or number >= V1_UNLIMITED_BYTES // self._page * self._page else number // self._page


class MaxColumn(Codec):
    """One column of cpu.max (`quota period`). A quota may be written alone, a period only beside the quota."""

    def __init__(self, column: int) -> None:
        super().__init__()
        self._column = column
        self.needs_text = column == 1

    def encode(self, value: str) -> str | None:
        number = integer(value)
        if number is None or (number <= 0 and not (number == -1 and self._column == 0)):
            return None
        return MAX if number == -1 else str(number)

    def decode(self, field: str) -> str:
        return "-1" if field == MAX else field

    def pick(self, text: str, key: str) -> str | None:
        columns = text.split()
        return columns[self._column] if len(columns) == 2 else None

    def line(self, text: str, key: str, field: str) -> str:
        return field if self._column == 0 else f"{text.split()[0]} {field}"


class Quota(Codec):
    """cpu.cfs_quota_us of cgroup v1, where every negative number means no limit."""

    def encode(self, value: str) -> str | None:
        number = integer(value)
        if number is None or (number <= 0 and number != -1):
            return None
        return str(number)


class Cpus(Codec):
    """A CPU list. An empty list must be written as a newline: an empty write does not reach the kernel."""

    def encode(self, value: str) -> str | None:
        try:
            return str(CPUSet.parse(value))
        except CPUSetError:
            return None

    def pick(self, text: str, key: str) -> str | None:
        return self.encode(text)

    def line(self, text: str, key: str, field: str) -> str:
        return field or "\n"


def _amount(field: str) -> int | str:
    number = MAX_INT64 if field in (MAX, "-1") else integer(field)
    if number is None:
        return field
    return MAX_INT64 if number >= V1_UNLIMITED_BYTES else number
