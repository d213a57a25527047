"""Encode one value in one kernel file: check it, find it in the file's text, compare it, and render what to write.

A *value* is what strategies use: cgroup v1's terms (shares, `-1` for no limit). A *field* is what stands in the file
(`max`, a weight, one column of cpu.max). Fields are compared, not values: shares -> weight loses digits, and comparing
values would rewrite a file for ever.

Files with several values by key have codecs too: one line per block device (`8:0 ...`), sched_features, schemata.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable

from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.go_format import parse_decimal_int

MIN_SHARES, MAX_SHARES = 2, 262_144
MIN_WEIGHT, MAX_WEIGHT = 1, 10_000
CFS_PERIOD_US = 100_000
MIN_QUOTA_US = 1_000
MAX_QUOTA_US = (1 << 44) - 1  # the kernel refuses more
UNLIMITED = -1
MAX_INT64 = (1 << 63) - 1
# v1 prints an unlimited memory limit as the largest page count in bytes.
V1_UNLIMITED_BYTES = 0x7FFF_FFFF_FFFF_F000


def weight_of_shares(shares: int) -> int | None:
    """Return cpu.weight for cpu.shares; None outside of the shares that a kernel takes."""
    if not MIN_SHARES <= shares <= MAX_SHARES:
        return None
    return 1 + (shares - 2) * 9_999 // 262_142


def shares_of_weight(weight: int) -> int | None:
    """Return cpu.shares for cpu.weight; None outside of the weights that a kernel takes."""
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        return None
    return (weight - 1) * 262_142 // 9_999 + 2


def shares_of_milli(milli: int) -> int:
    if milli <= 0:
        return MIN_SHARES
    return min(max(milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def cfs_quota_of_milli(milli: int) -> int:
    """Return the microseconds per period; no request means no limit."""
    if milli <= 0:
        return UNLIMITED
    return min(max(milli * CFS_PERIOD_US // 1000, MIN_QUOTA_US), MAX_QUOTA_US)


def normalized_quota_us(quota_us: int, ratio: float) -> int:
    """Return the quota that buys the same work on processors that are faster by a ratio; no limit stays none."""
    return max(math.ceil(quota_us / ratio), MIN_QUOTA_US) if ratio > 1 and quota_us > 0 else quota_us


MAX = "max"
Check = Callable[[str], bool]


def accept_any(value: str) -> bool:
    return bool(value)


def integer_between(low: int, high: int) -> Check:
    """Return a check for integers of a range; `max` is the largest integer."""

    def check(value: str) -> bool:
        number = MAX_INT64 if value == MAX else parse_decimal_int(value)
        return number is not None and low <= number <= high

    return check


class FileCodec:
    """The codec of a file that holds one value, written as it is."""

    needs_text = False  # whether `line` must see the file's text of this very moment

    def __init__(self, check: Check = accept_any) -> None:
        self.check = check

    def key(self, value: str) -> str:
        """Return the part of the file that the value is about: "" where the file holds one value."""
        return ""

    def encode(self, value: str) -> str | None:
        """Return the field of a value, or None when the kernel would refuse it."""
        return value if self.check(value) else None

    def decode(self, field: str) -> str:
        return field

    def extract(self, text: str, key: str) -> str | None:
        """Return the field in the file's text; None when the text is not what this file should hold."""
        return text.strip()

    def render(self, text: str, key: str, field: str) -> str:
        """Return what to write so that the field changes and the rest of the file stays."""
        return field

    def same_field(self, one: str, other: str) -> bool:
        return one == other


class CpuWeightCodec(FileCodec):
    """cpu.weight, with values in shares."""

    def encode(self, value: str) -> str | None:
        shares = parse_decimal_int(value)
        weight = None if shares is None else weight_of_shares(shares)
        return None if weight is None else str(weight)

    def decode(self, field: str) -> str:
        shares = shares_of_weight(int(field)) if field.isdecimal() else None
        return field if shares is None else str(shares)


class CpuSharesCodec(FileCodec):
    def __init__(self) -> None:
        super().__init__(integer_between(MIN_SHARES, MAX_SHARES))


class AmountCodec(FileCodec):
    """A number in which `max` (v2) or the largest integer stands for no limit: memory.min, memory.high, ..."""

    def same_field(self, one: str, other: str) -> bool:
        return one == other or _comparable_amount(one) == _comparable_amount(other)


class MemoryLimitCodec(FileCodec):
    """A memory limit. The kernel rounds down to pages, so fields are equal when their pages are."""

    def __init__(self, unlimited: str, page_bytes: int = 4096) -> None:
        super().__init__()
        self._unlimited = unlimited
        self._page = page_bytes

    def encode(self, value: str) -> str | None:
        number = MAX_INT64 if value == MAX else parse_decimal_int(value)
        if number is None or number < -1:
            return None
        return self._unlimited if number == -1 or number >= V1_UNLIMITED_BYTES else str(number)

    def decode(self, field: str) -> str:
        return "-1" if self._pages(field) is None else field

    def same_field(self, one: str, other: str) -> bool:
        return self._pages(one) == self._pages(other)

    def _pages(self, field: str) -> int | str | None:
        number = -1 if field == MAX else parse_decimal_int(field)
        if number is None:
            return field
        return None if number == -1 or number >= V1_UNLIMITED_BYTES // self._page * self._page else number // self._page


class CpuMaxColumnCodec(FileCodec):
    """One column of cpu.max (`quota period`). A quota may be written alone, a period only beside the quota."""

    def __init__(self, column: int) -> None:
        super().__init__()
        self._column = column
        self.needs_text = column == 1

    def encode(self, value: str) -> str | None:
        number = parse_decimal_int(value)
        if number is None or (number <= 0 and not (number == -1 and self._column == 0)):
            return None
        return MAX if number == -1 else str(number)

    def decode(self, field: str) -> str:
        return "-1" if field == MAX else field

    def extract(self, text: str, key: str) -> str | None:
        columns = text.split()
        return columns[self._column] if len(columns) == 2 else None

    def render(self, text: str, key: str, field: str) -> str:
        return field if self._column == 0 else f"{text.split()[0]} {field}"


class CfsQuotaCodec(FileCodec):
    """cpu.cfs_quota_us of cgroup v1, where every negative number means no limit."""

    def encode(self, value: str) -> str | None:
        number = parse_decimal_int(value)
        if number is None or (number <= 0 and number != -1):
            return None
        return str(number)


class CpuListCodec(FileCodec):
    """A CPU list. An empty list must be written as a newline: an empty write does not reach the kernel."""

    def encode(self, value: str) -> str | None:
        try:
            return str(CPUSet.parse(value))
        except CPUSetError:
            return None

    def extract(self, text: str, key: str) -> str | None:
        return self.encode(text)

    def render(self, text: str, key: str, field: str) -> str:
        return field or "\n"


def _comparable_amount(field: str) -> int | str:
    number = MAX_INT64 if field in (MAX, "-1") else parse_decimal_int(field)
    if number is None:
        return field
    return MAX_INT64 if number >= V1_UNLIMITED_BYTES else number


class LimitOrder(enum.Enum):
    """LimitOrder says how the values of a knob relate to those of parent groups, which decides the order of writes."""

    FREE = "free"  # values do not depend on those of parents
    SIZE = "size"  # a number that may grow and shrink, whatever the parent's is
    LIMIT = "limit"  # a child without a limit has its parent's: it fits always
    SHARE = "share"  # a protection (memory.min): no protection is the least, `max` the most
    CPUS = "cpus"  # sets; version 1 takes the empty set at its word
    INHERITED_CPUS = "inherited cpus"  # sets; version 2 reads the empty set as the parent's


def loosest(order: LimitOrder, now: str, wanted: str) -> str:
    """Return the field that allows all that both allow: written on the way down, before anything narrows."""
    if order is LimitOrder.INHERITED_CPUS and not (now and wanted):
        return ""
    if order in (LimitOrder.CPUS, LimitOrder.INHERITED_CPUS):
        return str(CPUSet.parse_or_empty(now) | CPUSet.parse_or_empty(wanted))
    return wanted if order is LimitOrder.FREE or limit_size(wanted) >= limit_size(now) else now


def fits(order: LimitOrder, child: str, parent: str) -> bool:
    """Return whether a child's field fits in its parent's."""
    if order is LimitOrder.INHERITED_CPUS and not (child and parent):
        return True
    if order in (LimitOrder.CPUS, LimitOrder.INHERITED_CPUS):
        return CPUSet.parse_or_empty(child) <= CPUSet.parse_or_empty(parent)
    if order is LimitOrder.LIMIT and limit_size(child) == float("inf"):
        return True
    return order in (LimitOrder.FREE, LimitOrder.SIZE) or limit_size(child) <= limit_size(parent)


def limit_size(field: str) -> float:
    """Return the number in a field; text that is no number is no limit, so that nothing is narrowed because of it."""
    if field in (MAX, "-1"):
        return float("inf")
    number = parse_decimal_int(field)
    return float("inf") if number is None or number < 0 or number >= V1_UNLIMITED_BYTES else number


_DEFAULT = "default"
_DEVICE = re.compile(r"[0-9]+:[0-9]+")


def devices(text: str) -> list[str]:
    """Return the devices that a file has lines for, in its order."""
    return [words[0] for line in text.splitlines() if (words := line.split()) and _DEVICE.fullmatch(words[0])]


class DeviceNumberCodec(FileCodec):
    """One number per device (`8:0 1048576`). A device without a line has the default."""

    def __init__(self, check: Check, default: str) -> None:
        super().__init__(check)
        self._default = default

    def key(self, value: str) -> str:
        return value.split(" ", 1)[0]

    def encode(self, value: str) -> str | None:
        words = value.split()
        if len(words) != 2 or not _DEVICE.fullmatch(words[0]) or not self.check(words[1]):
            return None
        return words[1]

    def extract(self, text: str, key: str) -> str | None:
        for line in text.splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == key:
                return words[1]
        return self._default

    def render(self, text: str, key: str, field: str) -> str:
        return f"{key} {field}"


class IoWeightCodec(DeviceNumberCodec):
    """One device of io.weight (`8:0 60`). Full weight is written as `default`: a line that says 100 would stay."""

    def encode(self, value: str) -> str | None:
        number = super().encode(value)
        return _DEFAULT if number == self._default else number

    def decode(self, field: str) -> str:
        return self._default if field == _DEFAULT else field

    def extract(self, text: str, key: str) -> str | None:
        lines = (line.split() for line in text.splitlines())
        return next((words[1] for words in lines if len(words) == 2 and words[0] == key), _DEFAULT)


class IoMaxColumnCodec(DeviceNumberCodec):
    """One column of io.max (`8:0 rbps=max wbps=1048576 ...`), where 0 of cgroup v1 is `max`."""

    def __init__(self, check: Check, column: str) -> None:
        super().__init__(check, MAX)
        self._column = column

    def encode(self, value: str) -> str | None:
        number = super().encode(value)
        return MAX if number == "0" else number

    def decode(self, field: str) -> str:
        return "0" if field == MAX else field

    def extract(self, text: str, key: str) -> str | None:
        for line in text.splitlines():
            words = line.split()
            if words and words[0] == key:
                return dict(word.partition("=")[::2] for word in words[1:]).get(self._column, MAX)
        return MAX

    def render(self, text: str, key: str, field: str) -> str:
        return f"{key} {self._column}={field}"


class IoCostCodec(FileCodec):
    """Settings per device (`8:0 enable=1 ctrl=user rpct=95 ...`). The kernel says 95.00 for 95 and may add settings."""

    def __init__(self, settings: int, least: int, default: str) -> None:
        super().__init__(accept_any)
        self._settings = settings
        self._least = least
        self._default = default

    def key(self, value: str) -> str:
        return value.split(" ", 1)[0]

    def encode(self, value: str) -> str | None:
        words = value.split()
        if len(words) < 2 or not _DEVICE.fullmatch(words[0]):
            return None
        if len(words) == self._settings + 1:  # only the full form has numbers to judge
            for word in words[1:]:
                number = parse_decimal_int(word.partition("=")[2])
                if number is not None and number < self._least and not word.startswith("enable="):
                    return None
        return " ".join(words[1:])

    def extract(self, text: str, key: str) -> str | None:
        for line in text.splitlines():
            words = line.split()
            if len(words) > 1 and words[0] == key:
                return " ".join(words[1:])
        return self._default

    def render(self, text: str, key: str, field: str) -> str:
        return f"{key} {field}"

    def same_field(self, one: str, other: str) -> bool:
        """Return whether every wanted setting (`other`) is as it is in the file (`one`)."""
        have = dict(word.partition("=")[::2] for word in one.split())
        return all(_equal(have.get(name), wanted) for name, wanted in _settings(other))


class SchedFeatureCodec(FileCodec):
    """One word of sched_features: `NAME` or `NO_NAME`."""

    def key(self, value: str) -> str:
        return value.removeprefix("NO_")

    def encode(self, value: str) -> str | None:
        return value if value and not value.split()[1:] else None

    def extract(self, text: str, key: str) -> str | None:
        words = text.split()
        return key if key in words else f"NO_{key}" if f"NO_{key}" in words else None

    def render(self, text: str, key: str, field: str) -> str:
        return f"{field}\n"


class SchemataCodec(FileCodec):
    """One resource of a resctrl schemata file: value and field are `0=ff;1=ff` for the caches 0 and 1."""

    def __init__(self, resource: str, radix: int) -> None:
        super().__init__()
        self._resource = resource
        self._radix = radix

    def key(self, value: str) -> str:
        return self._resource

    def encode(self, value: str) -> str | None:
        domains = self.domains(value)
        return value.strip().strip(";") if domains else None

    def extract(self, text: str, key: str) -> str | None:
        for line in text.splitlines():
            resource, colon, rest = line.strip().partition(":")
            if colon and resource == self._resource:
                return rest
        return None

    def render(self, text: str, key: str, field: str) -> str:
        return f"{self._resource}:{field};\n"

    def same_field(self, one: str, other: str) -> bool:
        """Compare by real cache ids, which need not be 0..n-1; ids that are not wanted do not count."""
        have, wanted = self.domains(one), self.domains(other)
        return bool(wanted) and all(have.get(cache) == amount for cache, amount in wanted.items())

    def domains(self, field: str) -> dict[int, int]:
        """Return the amount per cache id; empty when the text is malformed."""
        found: dict[int, int] = {}
        for part in field.strip().strip(";").split(";"):
            cache, equals, amount = part.strip().partition("=")
            try:
                found[int(cache)] = int(amount, self._radix)
            except ValueError:
                return {}
            if not equals:
                return {}
        return found


def _settings(field: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (word.partition("=") for word in field.split())]


def _equal(have: str | None, wanted: str) -> bool:
    if have is None:
        return False
    if have == wanted:
        return True
    try:
        return float(have) == float(wanted)
    except ValueError:
        return False
