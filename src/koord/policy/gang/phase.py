"""The status of a PodGroup: its phase is a function of its members alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from koord.api.sigs_scheduling import PodGroupStatus

PENDING, SCHEDULING, SCHEDULED = "Pending", "Scheduling", "Scheduled"
RUNNING, FINISHED, FAILED = "Running", "Finished", "Failed"
ENDED = (FINISHED, FAILED)


class Seen(msgspec.Struct, frozen=True):
    """What counts of a member for the phase."""

    phase: str
    bound: bool
    owner: str = ""  # namespace/name


def phase_of(minimum: int, members: Sequence[Seen]) -> str:
    """Compute the phase; the last rule that holds wins."""
    bound = sum(1 for m in members if m.bound)
    if minimum <= 0 or (not bound and len(members) < minimum):
        return PENDING
    running, succeeded, failed = (sum(1 for m in members if m.phase == p) for p in ("Running", "Succeeded", "Failed"))
    found = SCHEDULED if bound >= minimum else SCHEDULING
    if found == SCHEDULED and succeeded + running >= minimum:
        found = RUNNING
    if failed and failed + running + succeeded >= minimum:
        found = FAILED
    return FINISHED if succeeded >= minimum else found


def status_of(before: PodGroupStatus, minimum: int, members: Sequence[Seen], now: datetime) -> PodGroupStatus:
    """Compute the status of the PodGroup.

    A phase Finished or Failed stays when its pods are cleaned up; it only changes when members live again.
    """
    if before.phase in ENDED and all(m.phase in ("Succeeded", "Failed") for m in members):
        later = phase_of(minimum, members)
        if later not in ENDED:
            return before
    phase = phase_of(minimum, members)
    started = before.schedule_start_time
    if phase == PENDING:
        started = None if not members else started
    elif started is None:
        started = now
    return PodGroupStatus(
        phase=phase,
        occupied_by=",".join(sorted({m.owner for m in members if m.owner})) or before.occupied_by,
        scheduled=sum(1 for m in members if m.bound),
        running=sum(1 for m in members if m.phase == "Running"),
        succeeded=sum(1 for m in members if m.phase == "Succeeded"),
        failed=sum(1 for m in members if m.phase == "Failed"),
        schedule_start_time=started,
    )
