"""The status of a PodGroup: its phase is a function of its members alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from koord.api.koordinator.sigs_scheduling import PodGroupStatus

PENDING, SCHEDULING, SCHEDULED = "Pending", "Scheduling", "Scheduled"
RUNNING, FINISHED, FAILED = "Running", "Finished", "Failed"
ENDED_PHASES = (FINISHED, FAILED)


class MemberPhase(msgspec.Struct, frozen=True):
    """MemberPhase holds what counts of a member for the phase."""

    phase: str
    bound: bool
    owner: str = ""  # namespace/name


def pod_group_phase(minimum: int, members: Sequence[MemberPhase]) -> str:
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


def pod_group_status(
    before: PodGroupStatus, minimum: int, members: Sequence[MemberPhase], now: datetime
) -> PodGroupStatus:
    """Compute the status of the PodGroup.

    A phase Finished or Failed stays when its pods are cleaned up; it only changes when members live again.
    """
    if before.phase in ENDED_PHASES and all(m.phase in ("Succeeded", "Failed") for m in members):
        later = pod_group_phase(minimum, members)
        if later not in ENDED_PHASES:
            return before
    phase = pod_group_phase(minimum, members)
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
