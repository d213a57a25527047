"""This module describes to strategic merge which lists of a kind merge by key, in full or for pods and
reservations alone.

The embedded server's schema nodes are merge schemas that know every field. `PartialMergeSchema` is for
callers without a schema: it names the lists that merge; other objects merge by field, other lists are
replaced. The embedded server's field table is the reference: a test compares the two.
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
    """PartialMergeSchema knows only the merging lists below it. Objects merge by field, other lists are replaced."""

    fields: dict[str, Opened] = {}
    items: Opened | None = None
    patch_strategy: frozenset[str] = frozenset()
    patch_key: str = ""
    go_type: str = ""
    kind: str = OPEN


PLAIN: Shape = Opened()
