"""One profile: which plugins run at which extension point, in which order, and on which nodes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.descheduler.framework.plugin import Plugin
from koord.values.selector import Selector


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One profile: its plugins by extension point, in order, and its nodes. A plugin at several points is one
    instance.
    """

    name: str
    evict: Plugin
    filter: Sequence[Plugin] = ()
    deschedule: Sequence[Plugin] = ()
    balance: Sequence[Plugin] = ()
    nodes: Selector | None = None  # None: all of them
