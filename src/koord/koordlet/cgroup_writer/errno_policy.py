"""The errno table: what a refused open, read or write means for a knob, and how long to back off.

Pure. EINVAL alone is ambiguous: it means "no such feature" on some kernels and "not beside that other value" on all.
The executor resolves it by writing the file's own value back (`DISPUTED`).
"""

from __future__ import annotations

import enum
import errno

from koord.host.io_error import ABSENT, OPEN, PARSE, READ, WRITE, IoError


class ErrnoVerdict(enum.Enum):
    VANISHED = "vanished"  # the group is gone, and the effect with it
    ABSENT = "absent"  # the group is there, the file is not
    OFF = "off"  # the node cannot do this: disable the knob
    DISPUTED = "disputed"  # either the value or the knob is refused: write the file's own value to tell which
    REJECTED = "rejected"  # this value is refused here as things are
    RETRY = "retry"  # nothing is wrong with the value


_TABLE = {
    (OPEN, errno.ENOENT): ErrnoVerdict.ABSENT,
    (OPEN, errno.ENOTDIR): ErrnoVerdict.VANISHED,
    (OPEN, errno.ENODEV): ErrnoVerdict.VANISHED,
    (OPEN, errno.EACCES): ErrnoVerdict.OFF,
    (OPEN, errno.EPERM): ErrnoVerdict.OFF,
    (OPEN, errno.EROFS): ErrnoVerdict.OFF,
    (OPEN, errno.EOPNOTSUPP): ErrnoVerdict.OFF,
    (OPEN, errno.ENOSYS): ErrnoVerdict.OFF,
    (READ, errno.ENODEV): ErrnoVerdict.VANISHED,
    (READ, errno.EOPNOTSUPP): ErrnoVerdict.OFF,  # pressure files of a kernel started with psi=0
    (READ, errno.ENOSYS): ErrnoVerdict.OFF,
    (READ, errno.EINVAL): ErrnoVerdict.OFF,
    (WRITE, errno.ENODEV): ErrnoVerdict.VANISHED,  # also "no such block device": the folder tells which
    (WRITE, errno.EOPNOTSUPP): ErrnoVerdict.OFF,
    (WRITE, errno.ENOSYS): ErrnoVerdict.OFF,
    (WRITE, errno.EROFS): ErrnoVerdict.OFF,
    (WRITE, errno.EPERM): ErrnoVerdict.OFF,
    (WRITE, errno.EINVAL): ErrnoVerdict.DISPUTED,
    (WRITE, errno.EACCES): ErrnoVerdict.REJECTED,  # version 1: a CPU that the parent's cpuset does not have
    (WRITE, errno.ENOSPC): ErrnoVerdict.REJECTED,  # an empty cpuset with tasks in it
    (WRITE, errno.ERANGE): ErrnoVerdict.REJECTED,  # a CPU that the machine does not have
    (WRITE, errno.E2BIG): ErrnoVerdict.REJECTED,
    (WRITE, errno.EOVERFLOW): ErrnoVerdict.REJECTED,
    (WRITE, errno.EBUSY): ErrnoVerdict.RETRY,  # a cpuset below still has the CPU; memory above the new limit
}


def classify_io_error(io_error: IoError, *, folder_exists: bool, basic: bool) -> ErrnoVerdict:
    """Classify an I/O error. `basic` knobs are in every kernel: no refused value disables them."""
    if io_error.stage == ABSENT:
        return ErrnoVerdict.OFF
    if io_error.stage == PARSE:
        return ErrnoVerdict.RETRY
    verdict = _TABLE.get((io_error.stage, io_error.errno), ErrnoVerdict.RETRY)
    if verdict is ErrnoVerdict.ABSENT and not folder_exists:
        return ErrnoVerdict.VANISHED
    if verdict is ErrnoVerdict.VANISHED and folder_exists:
        return ErrnoVerdict.REJECTED if io_error.stage == WRITE else ErrnoVerdict.RETRY
    if (
        basic
        and io_error.stage == WRITE
        and verdict in (ErrnoVerdict.DISPUTED, ErrnoVerdict.OFF)
        and io_error.errno != errno.EROFS
    ):
        return ErrnoVerdict.REJECTED
    return verdict


_FIRST_S = {ErrnoVerdict.REJECTED: 10.0, ErrnoVerdict.RETRY: 1.0}
_LONGEST_S = {ErrnoVerdict.REJECTED: 600.0, ErrnoVerdict.RETRY: 60.0}


def back_off_s(verdict: ErrnoVerdict, before_s: float) -> float:
    """Return how long to wait after a refusal when the wait before it was `before_s` (0: there was none)."""
    first, longest = _FIRST_S.get(verdict, 1.0), _LONGEST_S.get(verdict, 60.0)
    return min(max(before_s * 2, first), longest)
