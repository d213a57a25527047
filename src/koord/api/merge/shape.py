"""What strategic merge asks of a kind: its fields, and which of its lists merge by key.

The embedded server's schema nodes are shapes that know every field. `Opened` is for those who hold no schema: it names
the lists that merge, and takes whatever else comes as Kubernetes takes a field without a strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

OPEN = "open"  # a place where fields beyond the named ones may stand


class Shape(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def fields(self) -> Mapping[str, Shape]: ...
    @property
    def items(self) -> Shape | None: ...
    @property
    def patch_strategy(self) -> frozenset[str]: ...
    @property
    def patch_key(self) -> str: ...
    @property
    def go_type(self) -> str: ...


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A place of which only the merging lists below are known. Objects merge by field, other lists are replaced."""

    fields: dict[str, Opened] = {}
    items: Opened | None = None
    patch_strategy: frozenset[str] = frozenset()
    patch_key: str = ""
    go_type: str = ""
    kind: str = OPEN


PLAIN: Shape = Opened()
