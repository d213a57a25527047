"""Guard against caches that are older than the last write."""

from __future__ import annotations

from koord.api.meta import Object


class Written:
    """Remembers by UID the resourceVersion of the last write. Versions of one server are numbers that grow."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}

    def note(self, obj: Object) -> None:
        version = _number(obj.metadata.resource_version)
        if version > self._versions.get(obj.metadata.uid, 0):
            self._versions[obj.metadata.uid] = version

    def outdated(self, obj: Object) -> bool:
        """Return whether the cached object is older than our last write; the event of that write will trigger a
        new sync.
        """
        version = self._versions.get(obj.metadata.uid)
        if version is None:
            return False
        if _number(obj.metadata.resource_version) >= version:
            del self._versions[obj.metadata.uid]
            return False
        return True

    def forget(self, uid: str) -> None:
        self._versions.pop(uid, None)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
