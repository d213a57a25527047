"""Codecs of files with several values by key: one line per block device (`8:0 ...`), sched_features, schemata."""

from __future__ import annotations

import re

from koord.host.cgroup.codec import MAX, Check, FileCodec, accept_any
from koord.values.go_format import parse_decimal_int

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
