"""Describe what a strategy last did, for people. Pure."""

from __future__ import annotations

import msgspec

from koord.koordlet.apply.result import Status
from koord.koordlet.round import Ran

_REFUSED = (Status.REJECTED, Status.FAILED, Status.OFF, Status.INVALID, Status.HELD, Status.WAITING)
_MOST = 20  # refusals that are listed


class Doing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a strategy last did, as `/strategies` serves it."""

    strategy: str
    at: str = ""
    why: str = ""
    effects: int = 0
    written: int = 0
    refused: tuple[str, ...] = ()
    error: str = ""


def doing_of(ran: Ran, at: str) -> Doing:
    """Summarise the result of one strategy."""
    refused = tuple(
        f"{result.status.value}: {result.detail or result.fault}" for result in ran.results if result.status in _REFUSED
    )
    return Doing(
        strategy=ran.strategy,
        at=at,
        why=ran.plan.why,
        effects=len(ran.plan.effects),
        written=sum(result.status is Status.WRITTEN for result in ran.results),
        refused=refused[:_MOST],
        error="" if ran.error is None else repr(ran.error),
    )
