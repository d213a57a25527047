"""This module implements the string formats of CRD schemas as the API server checks them. Other formats are ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_network

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:.[0-9]+)?(?:z|[+-][0-9]{2}:[0-9]{2})")
_GO_DURATION = re.compile(r"[+-]?(?:0|(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+)")
_WORDED_DURATION = re.compile(r"([0-9]+)\s*([A-Za-zµ]+)")
_UNITS = {"ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk"}
_UNIT_WORDS = ("nano", "micro", "milli", "sec", "min", "hour", "day", "week")
_SHORT_NAME = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SYMBOL = r"[^\W_]"  # letters and digits of any script
_HOSTNAME = re.compile(
    rf"(?:{_SYMBOL}(?:-?{_SYMBOL}{{0,62}})?|(?:{_SYMBOL}(?:(?:{_SYMBOL}|-){{0,61}}{_SYMBOL})?\.)+[^\W\d_]{{2,63}})"
)


def _matches(pattern: str, flags: int = 0) -> Callable[[str], bool]:
    found = re.compile(pattern, flags)
    return lambda text: found.fullmatch(text) is not None


def _date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        datetime.strptime(text, "%Y-%m-%d")
    except ValueError:
        return False
    return True


def _date_time(text: str) -> bool:
    day, sep, clock = text.lower().partition("t")
    found = _CLOCK.fullmatch(clock) if sep and _date(day) else None
    return found is not None and found.group(1) <= "23" and found.group(2) <= "59" and found.group(3) <= "59"


def _duration(text: str) -> bool:
    if _GO_DURATION.fullmatch(text):
        return True
    units = [unit.lower() for _, unit in _WORDED_DURATION.findall(text)]
    return any(u in _UNITS or u.startswith(_UNIT_WORDS) for u in units)


def _ipv4(text: str) -> bool:
    # Leading zeros are taken as decimal, as the server's sloppy parser does for old objects.
    parts = text.split(".")
    return len(parts) == 4 and all(p.isascii() and p.isdigit() and len(p) <= 3 and int(p) <= 255 for p in parts)


def _ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return "%" not in text


def _cidr(text: str) -> bool:
    address, slash, bits = text.partition("/")
    if not slash or not (bits.isascii() and bits.isdigit()):
        return False
    try:
        ip_network(
            f"{IPv4Address(address) if '.' in address and ':' not in address else IPv6Address(address)}/{bits}", False
        )
    except ValueError:
        return False
    return True


def _uri(text: str) -> bool:
    """Return whether Go's request-URI parser accepts the text: an absolute path, or a text with a scheme."""
    if not text or any(ord(c) < 0x21 or ord(c) == 0x7F for c in text):
        return False
    return text.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text) is not None or text == "*"


def _email(text: str) -> bool:
    """Return whether the text is an address, alone or as `Name <address>`."""
    found = re.fullmatch(r"(?:[^<>]*<\s*)?([^\s<>@]+@[^\s<>@]+)(?:\s*>)?", text)
    return found is not None and not found.group(1).startswith(".") and (("<" in text) == (">" in text))


def _hostname(text: str) -> bool:
    if not _HOSTNAME.fullmatch(text):
        return False
    return len(text.rstrip(".")) <= 255 and all(0 < len(p) <= 63 for p in text.split("."))


def _isbn10(text: str) -> bool:
    digits = re.sub(r"[\s-]", "", text)
    if not re.fullmatch(r"[0-9]{9}[0-9Xx]", digits):
        return False
    return sum((10 - i) * (10 if c in "Xx" else int(c)) for i, c in enumerate(digits)) % 11 == 0


def _isbn13(text: str) -> bool:
    digits = re.sub(r"[\s-]", "", text)
    return (
        bool(re.fullmatch(r"[0-9]{13}", digits)) and sum(int(c) * (1, 3)[i % 2] for i, c in enumerate(digits)) % 10 == 0
    )


def _credit_card(text: str) -> bool:
    digits = re.sub(r"[^0-9]+", "", text)
    if not re.fullmatch(
        r"4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}"
        r"|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11}",
        digits,
    ):
        return False
    doubled = [int(c) * (2 if i % 2 else 1) for i, c in enumerate(reversed(digits))]
    return sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0


def _uuid(version: str = "", variant: str = "") -> Callable[[str], bool]:
    third = f"{version}[0-9a-f]{{3}}" if version else "[0-9a-f]{4}"
    fourth = f"{variant}[0-9a-f]{{3}}" if variant else "[0-9a-f]{4}"
    return _matches(rf"[0-9a-f]{{8}}-?[0-9a-f]{{4}}-?{third}-?{fourth}-?[0-9a-f]{{12}}", re.IGNORECASE)


_BYTE = r"[0-9]{1,3}"
# By the name without dashes, which is how formats are looked up: date-time and datetime are one.
_FORMATS: Mapping[str, Callable[[str], bool]] = {
    "bsonobjectid": _matches("[0-9a-fA-F]{24}"),
    "uri": _uri,
    "email": _email,
    "hostname": _hostname,
    "ipv4": _ipv4,
    "ipv6": _ipv6,
    "cidr": _cidr,
    "mac": _matches(
        r"(?:[0-9a-fA-F]{2}([:-]))(?:[0-9a-fA-F]{2}\1){4}[0-9a-fA-F]{2}|(?:[0-9a-fA-F]{4}\.){2}[0-9a-fA-F]{4}"
    ),
    "uuid": _uuid(),
    "uuid3": _uuid("3"),
    "uuid4": _uuid("4", "[89ab]"),
    "uuid5": _uuid("5", "[89ab]"),
    "isbn": lambda text: _isbn10(text) or _isbn13(text),
    "isbn10": _isbn10,
    "isbn13": _isbn13,
    "creditcard": _credit_card,
    "ssn": _matches(r"[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}"),
    "hexcolor": _matches("#?(?:[0-9a-fA-F]{3}|[0-9a-fA-F]{6})"),
    "rgbcolor": _matches(rf"rgb\(\s*{_BYTE}\s*,\s*{_BYTE}\s*,\s*{_BYTE}\s*\)"),
    "byte": _matches("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"),
    "password": lambda _: True,
    "date": _date,
    "duration": _duration,
    "datetime": _date_time,
    "k8sshortname": lambda text: len(text) <= 63 and re.fullmatch(_SHORT_NAME, text) is not None,
    "k8slongname": lambda text: (
        len(text) <= 253 and re.fullmatch(rf"{_SHORT_NAME}(?:\.{_SHORT_NAME})*", text) is not None
    ),
}


def is_known_format(name: str) -> bool:
    return name.replace("-", "") in _FORMATS


def has_format(name: str, text: str) -> bool:
    """Return whether the text has the format; a format that the server does not know is no restriction."""
    judge = _FORMATS.get(name.replace("-", ""))
    return judge is None or judge(text)
