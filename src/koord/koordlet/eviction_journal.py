"""The journal of evictions: what is asked for is on disk before it is asked, until its Event is written.

An agent that is killed between the two leaves the request behind, and the next one records what came of it. So a pod
that was evicted has its record, whenever the agent dies; one that dies just after the Event writes it twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from koord.api.model import decode_text
from koord.host.io_error import READ, WRITE, IoError
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.values.json_text import MalformedText

FILE_NAME = "evictions.json"


class EvictionJournal:
    """The requests under way, in one small file. Without a path they are kept nowhere."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._open: dict[str, EvictionRequest] = {}  # by uid

    def __len__(self) -> int:
        return len(self._open)

    def load(self) -> list[EvictionRequest] | IoError:
        """Return what an earlier process left, and keep it until it is cleared."""
        if self._path is None:
            return []
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            return IoError(str(self._path), READ, getattr(error, "errno", 0) or 0, str(error))
        found = decode_text(text, list[EvictionRequest])
        if isinstance(found, MalformedText):
            return IoError(str(self._path), READ, 0, str(found))
        self._open = {one.uid: one for one in found} | self._open
        return found

    def begin(self, request: EvictionRequest) -> IoError | None:
        """Add a request that is about to be sent."""
        self._open[request.uid] = request
        return self._write(self._open.values())

    def clear(self) -> IoError | None:
        """Forget all requests: their records are written."""
        if not self._open:
            return None
        refused = self._write(())
        if refused is None:
            self._open.clear()
        return refused

    def _write(self, requests: Iterable[EvictionRequest]) -> IoError | None:
        if self._path is None:
            return None
        partial = self._path.with_suffix(".partial")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(msgspec.json.encode(list(requests)))
            os.replace(partial, self._path)
        except OSError as error:
            return IoError(str(self._path), WRITE, error.errno or 0, str(error))
        return None
