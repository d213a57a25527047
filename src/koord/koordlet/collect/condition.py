"""Keep the status of each collector, and log it once per change."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from koord.host.fault import Fault

_LOG = logging.getLogger(__name__)


class Condition(msgspec.Struct, frozen=True, gc=False):
    """The status of one collector: `problem` is "" while it works; `answered` is False until it worked or
    said that it never will.
    """

    problem: str = ""
    answered: bool = False


class Conditions:
    """The statuses of all enabled collectors by name."""
    def __init__(self, names: tuple[str, ...]) -> None:
        """`names` are the enabled collectors."""
        self._now = dict.fromkeys(names, Condition())
        self._kinds: dict[str, str] = {}  # the kind of problem that was logged last

    @property
    def now(self) -> Mapping[str, Condition]:
        return MappingProxyType(self._now)

    @property
    def started(self) -> bool:
        """Return whether every collector has answered."""
        return all(one.answered for one in self._now.values())

    def works(self, name: str) -> None:
        """Record that a collector works."""
        if self._kinds.pop(name, None) is not None:
            _LOG.info("collector %s works again", name)
        if self._now.get(name) != _WORKING:
            self._now[name] = _WORKING

    def fails(self, name: str, fault: Fault | str, *, for_good: bool = False) -> None:
        """Record that a collector fails; with `permanent` this machine cannot support it, so nobody
        needs to wait for it.

        The same kind of error of another file is not logged again: one pod after the other would fill the log.
        """
        kind = f"{fault.stage} {fault.code}" if isinstance(fault, Fault) else fault
        text = str(fault)
        before = self._now.get(name, Condition())
        self._now[name] = Condition(text, before.answered or for_good)
        if self._kinds.get(name) == kind:
            return
        self._kinds[name] = kind
        _LOG.warning("collector %s %s: %s", name, "stays off" if for_good else "has no samples", text)


_WORKING = Condition("", True)
