"""The journal of evictions: what is asked for is on disk before it is asked, until its Event is written.

An agent that is killed between the two leaves the request behind, and the next one records what came of it. So a pod
that was evicted has its record, whenever the agent dies; one that dies just after the Event writes it twice.
"""

from __future__ import annotations

from pathlib import Path

from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.koordlet.state_file import StateFile
from koord.koordlet.strategies.eviction_tracker import EvictionRequest

FILE_NAME = "evictions.json"


class EvictionJournal:
    """The requests under way, in one small file. Without a path they are kept nowhere."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else StateFile(Host.local(), str(path), list[EvictionRequest], [])
        self._open: dict[str, EvictionRequest] = {}  # by uid

    def __len__(self) -> int:
        return len(self._open)

    def load(self) -> list[EvictionRequest] | IoError:
        """Return what an earlier process left, and keep it until it is cleared."""
        found = [] if self._file is None else self._file.load()
        if not isinstance(found, IoError):
            self._open = {one.uid: one for one in found} | self._open
        return found

    def begin(self, request: EvictionRequest) -> IoError | None:
        """Add a request that is about to be sent."""
        self._open[request.uid] = request
        return None if self._file is None else self._file.save(list(self._open.values()))

    def clear(self) -> IoError | None:
        """Forget all requests: their records are written."""
        if not self._open:
            return None
        refused = None if self._file is None else self._file.save([])
        if refused is None:
            self._open.clear()
        return refused
