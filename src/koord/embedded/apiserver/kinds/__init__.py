"""The strategies of all built-in kinds that have one, by group and kind."""

from __future__ import annotations

from collections.abc import Mapping

from koord.embedded.apiserver.kinds.pod import POD
from koord.embedded.apiserver.kinds.strategy import Strategy

STRATEGIES: Mapping[tuple[str, str], Strategy] = {
    ("", "Pod"): POD,
}


def strategy_for(group: str, kind: str) -> Strategy:
    """A kind without an entry takes what fits its schema."""
    return STRATEGIES.get((group, kind), Strategy())
