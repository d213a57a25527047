"""Semantic versions (semver.org 2.0.0): parsed, normalized where a caller asks, and ordered."""

from __future__ import annotations

import functools
import re

import msgspec

_NUMBER = r"0|[1-9]\d*"
_IDENTIFIER = rf"(?:{_NUMBER}|\d*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)
_LOOSE = re.compile(r"v?(\d+(?:\.\d+){0,2})((?:[-+].*)?)", re.ASCII)


@functools.total_ordering
class SemanticVersion(msgspec.Struct, frozen=True, eq=False):
    """A version. Build metadata is kept and does not count in comparisons."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...] = ()
    build: str = ""

    cel_type = "kubernetes.Semver"

    @property
    def _order(self) -> tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]:
        """Return the sort key: a release is above its pre-releases, numbers are below words."""
        parts = tuple((not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in self.prerelease)
        return self.major, self.minor, self.patch, not self.prerelease, parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SemanticVersion) and self._order == other._order

    def __lt__(self, other: SemanticVersion) -> bool:
        return self._order < other._order

    def __hash__(self) -> int:
        return hash(self._order)

    def __str__(self) -> str:
        before = f"-{'.'.join(self.prerelease)}" if self.prerelease else ""
        return f"{self.major}.{self.minor}.{self.patch}{before}{f'+{self.build}' if self.build else ''}"


def parse_version(text: str, *, normalize: bool = False) -> SemanticVersion | None:
    """Parse a version; None where it is none. `normalize` takes `v1.2` for `1.2.0` and drops leading zeros."""
    if normalize:
        loose = _LOOSE.fullmatch(text)
        if loose is None:
            return None
        numbers = [str(int(number)) for number in loose[1].split(".")]
        text = ".".join([*numbers, "0", "0"][:3]) + loose[2]
    found = _VERSION.fullmatch(text)
    if found is None:
        return None
    before = tuple(found[4].split(".")) if found[4] else ()
    return SemanticVersion(int(found[1]), int(found[2]), int(found[3]), before, found[5] or "")
