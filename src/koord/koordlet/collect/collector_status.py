"""Keep the status of each collector, and log it once per change."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from koord.host.io_error import IoError

_LOG = logging.getLogger(__name__)


class CollectorStatus(msgspec.Struct, frozen=True, gc=False):
    """The status of one collector: `problem` is "" while it works; `answered` is False until it worked or
    said that it never will.
    """

    problem: str = ""
    answered: bool = False


class CollectorStatuses:
    """The statuses of all enabled collectors by name."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """`names` are the enabled collectors."""
        self._now = dict.fromkeys(names, CollectorStatus())
        self._kinds: dict[str, str] = {}  # the kind of problem that was logged last

    @property
    def current(self) -> Mapping[str, CollectorStatus]:
        return MappingProxyType(self._now)

    @property
    def all_answered(self) -> bool:
        """Return whether every collector has answered."""
        return all(one.answered for one in self._now.values())

    def works(self, name: str) -> None:
        """Record that a collector works."""
        if self._kinds.pop(name, None) is not None:
            _LOG.info("collector %s works again", name)
        if self._now.get(name) != _OK:
            self._now[name] = _OK

    def fails(self, name: str, io_error: IoError | str, *, permanent: bool = False) -> None:
        """Record that a collector fails; with `permanent` this machine cannot support it, so nobody
        needs to wait for it.

        The same kind of error of another file is not logged again: one pod after the other would fill the log.
        """
        kind = f"{io_error.stage} {io_error.code}" if isinstance(io_error, IoError) else io_error
        text = str(io_error)
        before = self._now.get(name, CollectorStatus())
        self._now[name] = CollectorStatus(text, before.answered or permanent)
        if self._kinds.get(name) == kind:
            return
        self._kinds[name] = kind
        _LOG.warning("collector %s %s: %s", name, "stays off" if permanent else "has no samples", text)


_OK = CollectorStatus("", True)
