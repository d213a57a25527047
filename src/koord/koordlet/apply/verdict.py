"""The errno table: what a refused open, read or write means for a knob, and how long to back off.

Pure. EINVAL alone is ambiguous: it means "no such feature" on some kernels and "not beside that other value" on all.
The executor resolves it by writing the file's own value back (`DISPUTED`).
"""

from __future__ import annotations

import enum
import errno

from koord.host.fault import ABSENT, OPEN, PARSE, READ, WRITE, Fault


class Verdict(enum.Enum):
    VANISHED = "vanished"  # the group is gone, and the effect with it
    ABSENT = "absent"  # the group is there, the file is not
    OFF = "off"  # the node cannot do this: disable the knob
    DISPUTED = "disputed"  # either the value or the knob is refused: write the file's own value to tell which
    REJECTED = "rejected"  # this value is refused here as things are
    RETRY = "retry"  # nothing is wrong with the value


_TABLE = {
    (OPEN, errno.ENOENT): Verdict.ABSENT,
    (OPEN, errno.ENOTDIR): Verdict.VANISHED,
    (OPEN, errno.ENODEV): Verdict.VANISHED,
    (OPEN, errno.EACCES): Verdict.OFF,
    (OPEN, errno.EPERM): Verdict.OFF,
    (OPEN, errno.EROFS): Verdict.OFF,
    (OPEN, errno.EOPNOTSUPP): Verdict.OFF,
    (OPEN, errno.ENOSYS): Verdict.OFF,
    (READ, errno.ENODEV): Verdict.VANISHED,
    (READ, errno.EOPNOTSUPP): Verdict.OFF,  # pressure files of a kernel started with psi=0
    (READ, errno.ENOSYS): Verdict.OFF,
    (READ, errno.EINVAL): Verdict.OFF,
    (WRITE, errno.ENODEV): Verdict.VANISHED,  # also "no such block device": the folder tells which
    (WRITE, errno.EOPNOTSUPP): Verdict.OFF,
    (WRITE, errno.ENOSYS): Verdict.OFF,
    (WRITE, errno.EROFS): Verdict.OFF,
    (WRITE, errno.EPERM): Verdict.OFF,
    (WRITE, errno.EINVAL): Verdict.DISPUTED,
    (WRITE, errno.EACCES): Verdict.REJECTED,  # version 1: a CPU that the parent's cpuset does not have
    (WRITE, errno.ENOSPC): Verdict.REJECTED,  # an empty cpuset with tasks in it
    (WRITE, errno.ERANGE): Verdict.REJECTED,  # a CPU that the machine does not have
    (WRITE, errno.E2BIG): Verdict.REJECTED,
    (WRITE, errno.EOVERFLOW): Verdict.REJECTED,
    (WRITE, errno.EBUSY): Verdict.RETRY,  # a cpuset below still has the CPU; memory above the new limit
}


def judge(fault: Fault, *, folder_exists: bool, basic: bool) -> Verdict:
    """Classify an I/O error. `basic` knobs are in every kernel: no refused value disables them."""
    if fault.stage == ABSENT:
        return Verdict.OFF
    if fault.stage == PARSE:
        return Verdict.RETRY
    verdict = _TABLE.get((fault.stage, fault.errno), Verdict.RETRY)
    if verdict is Verdict.ABSENT and not folder_exists:
        return Verdict.VANISHED
    if verdict is Verdict.VANISHED and folder_exists:
        return Verdict.REJECTED if fault.stage == WRITE else Verdict.RETRY
    if basic and fault.stage == WRITE and verdict in (Verdict.DISPUTED, Verdict.OFF) and fault.errno != errno.EROFS:
        return Verdict.REJECTED
    return verdict


_FIRST_S = {Verdict.REJECTED: 10.0, Verdict.RETRY: 1.0}
_LONGEST_S = {Verdict.REJECTED: 600.0, Verdict.RETRY: 60.0}


def back_off_s(verdict: Verdict, before_s: float) -> float:
    """Return how long to wait after a refusal when the wait before it was `before_s` (0: there was none)."""
    first, longest = _FIRST_S.get(verdict, 1.0), _LONGEST_S.get(verdict, 60.0)
    return min(max(before_s * 2, first), longest)
