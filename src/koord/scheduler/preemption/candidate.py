"""Choose the candidate node that does the least harm."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from koord.scheduler.preemption.rules import started
from koord.scheduler.state.pod import PodInfo

# Makes every priority positive, so that fewer victims of negative priority are not worse than more of them.
_LIFT = 1 << 31


class Candidate(msgspec.Struct, frozen=True):
    """Name a node with the pods that would have to leave it."""
    node: str
    victims: tuple[PodInfo, ...]  # at least one, the most important first
    violations: int = 0  # victims that a disruption budget does not allow to go

    def harm(self) -> tuple[int, int, int, int]:
        """Return a sort key, smaller is better: budget violations, highest victim priority, sum of priorities,
        victims.
        """
        victims = self.victims
        return (
            self.violations,
            victims[0].priority,
            sum(victim.priority + _LIFT for victim in victims),
            len(victims),
        )

    def started(self) -> datetime:
        """Return when the longest running of its most important victims started."""
        highest = max(victim.priority for victim in self.victims)
        return min(started(victim) for victim in self.victims if victim.priority == highest)


def pick(candidates: Sequence[Candidate]) -> Candidate:
    """Pick the candidate with the least harm; of equals the one whose victims started last; then the first."""
    harms = [candidate.harm() for candidate in candidates]
    least = min(harms)
    best = [candidate for candidate, harm in zip(candidates, harms, strict=True) if harm == least]
    return best[0] if len(best) == 1 else max(best, key=Candidate.started)
