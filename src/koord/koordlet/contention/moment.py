"""The result of one step of a simulated machine, and its recording as the samples that collectors would have taken."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.koordlet.contention.memory import Kill
from koord.koordlet.contention.strain import Strain


class Wish(msgspec.Struct, frozen=True, gc=False):
    """What a container would use if it were alone on the machine. `burstiness`: see `throttled_share`."""

    cpu_milli: float
    memory_bytes: int
    cache_bytes: int = 0
    gust: float = 1.0


class Fare(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one container got in a step, and what it suffered."""

    pod: str  # uid
    wanted_milli: float
    got_milli: float
    throttled_share: float
    memory_bytes: int
    cache_bytes: int
    memory_stalled: float
    strain: Strain


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one step; `at_s` is its end, `outcomes` are by container id."""

    at_s: float
    step_s: float
    fares: Mapping[str, Fare]
    system_milli: float
    system_bytes: int
    be_used_milli: float
    be_limit_milli: float  # what BE groups may use in all
    be_request_milli: int
    kills: tuple[Kill, ...] = ()

    @property
    def used_milli(self) -> float:
        return self.system_milli + sum(fare.got_milli for fare in self.fares.values())

    @property
    def used_bytes(self) -> int:
        """Return the used memory without page cache."""
        return self.system_bytes + sum(fare.memory_bytes for fare in self.fares.values())

    def short_milli(self, pods: frozenset[str]) -> float:
        """Return the CPU that the containers of these pods lacked although their own quotas would have allowed it."""
        return sum(fare.strain.short_milli for fare in self.fares.values() if fare.pod in pods)
