"""The order of a batch of writes, and the rule between parents and children that must hold after each write.

Pass one goes down the tree and writes what is looser than now; pass two comes up and writes the wanted values. When a
write fails, those that relied on it are held back rather than made in a wrong order.
"""

from __future__ import annotations

from collections.abc import Iterable

from koord.host.cgroup.codec import LimitOrder, fits, loosest
from koord.host.cgroup.knob import CPU_BURST, CPU_IDLE, CPU_QUOTA, MEMORY_LIMIT, MEMORY_SWAP_LIMIT, KnobFile

# Order in one group on the way down, widest first. On the way up it is reversed: burst, quota; limit, swap.
# Leaving idle comes first, since shares cannot be written before; entering idle comes last for the same reason.
_LEAVE_IDLE, _FIRST, _SECOND, _ANY, _LATE, _ENTER_IDLE = range(6)
_RANK = {MEMORY_SWAP_LIMIT: _FIRST, CPU_QUOTA: _SECOND, MEMORY_LIMIT: _SECOND, CPU_BURST: _LATE}


def depth(group: str) -> int:
    return group.count("/") + 1 if group else 0


def rank_in_group(knob: str, target: str) -> int:
    """Return the position of a knob among the writes of one group on the way down."""
    if knob == CPU_IDLE:
        return _LEAVE_IDLE if target == "0" else _ENTER_IDLE
    return _RANK.get(knob, _ANY)


def ancestors(group: str) -> Iterable[str]:
    """Yield the groups above, nearest first, the root ("") last."""
    while group:
        group = group.rpartition("/")[0]
        yield group


class HierarchyState:
    """The fields that the files of one batch hold right now."""

    def __init__(self) -> None:
        self._now: dict[tuple[str, str], str] = {}
        self._below: dict[tuple[str, str], list[str]] = {}

    def set_field(self, knob: str, group: str, knob_file: KnobFile, field: str) -> None:
        """Set the file's field, at the start and after each write."""
        if knob_file.order in (LimitOrder.FREE, LimitOrder.SIZE):
            return
        if (knob, group) not in self._now:
            for above in ancestors(group):
                self._below.setdefault((knob, above), []).append(group)
        self._now[knob, group] = field

    def violation(self, knob: str, group: str, knob_file: KnobFile, field: str) -> str | None:
        """Return why the field must not be written now: a group above or below in this batch that it would not fit.

        What does not fit already, because somebody else wrote it, does not prevent a write that improves it.
        """
        now = self._now.get((knob, group))
        if now is None:  # not a limit of a hierarchy
            return None
        narrower = loosest(knob_file.order, now, field) != field
        for above in ancestors(group):
            limit = self._now.get((knob, above))
            if limit is None or fits(knob_file.order, field, limit):
                continue
            if not narrower or fits(knob_file.order, now, limit):
                return f"{field or 'nothing'} does not fit in {limit or 'nothing'} of {above or 'the root'}"
        for below in self._below.get((knob, group), ()) if narrower else ():
            child = self._now[knob, below]
            if not fits(knob_file.order, child, field):
                return f"{child or 'nothing'} of {below} would not fit in {field or 'nothing'}"
        return None
