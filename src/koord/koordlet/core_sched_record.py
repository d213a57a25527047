"""Keep in a file which containers have cookies from the agent.

The kernel does not tell who made a cookie. The file is written before the first cookie of a container, so an agent that
was killed, or one whose gate is off now, knows from whom cookies are to be taken.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koord.api.model import decode_text
from koord.host.filesystem import Host
from koord.host.io_error import IoError, malformed
from koord.values.json_text import MalformedText


class CoreSchedRecord:
    """The cgroups of those containers. Without any there is no file."""

    def __init__(self, host: Host, path: str) -> None:
        self._host = host
        self._path = path
        self._groups: frozenset[str] | None = None  # None until the file was read

    @property
    def exists(self) -> bool:
        return self._host.exists(self._path)

    def load(self) -> frozenset[str] | IoError:
        if self._groups is not None:
            return self._groups
        text = self._host.read(self._path)
        if isinstance(text, IoError):
            if not text.vanished:
                return text
            self._groups = frozenset()
            return self._groups
        found = decode_text(text, list[str])
        if isinstance(found, MalformedText):
            return malformed(self._path, str(found))
        self._groups = frozenset(found)
        return self._groups

    def save(self, groups: Iterable[str]) -> IoError | None:
        """Make these the containers with cookies; call it after `load` only."""
        wanted = frozenset(groups)
        if wanted == self._groups:
            return None
        if wanted:
            refused = self._host.replace_file(self._path, msgspec.json.encode(sorted(wanted)).decode())
        else:
            refused = self._host.remove_file(self._path)
        if refused is None:
            self._groups = wanted
        return refused
