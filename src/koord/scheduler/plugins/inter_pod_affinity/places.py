"""This module counts pods and terms per row, and maps rows to topology domains, for one class of pods."""

from __future__ import annotations

from collections.abc import Iterable

from koord.scheduler.state.domain import Atlas, Domains, Ids


class Places:
    """The domain of each node for the topology keys of one class of pods, as of the last refresh."""
    __slots__ = ("_atlas", "_known")

    def __init__(self, atlas: Atlas, keys: Iterable[str]) -> None:
        self._atlas = atlas
        self._known: dict[str, Domains] = {key: atlas.of(key) for key in keys}

    def moved(self) -> bool:
        """Update the domains; return whether any changed."""
        moved = False
        for key, known in self._known.items():
            now = self._atlas.of(key)
            if now is not known:
                self._known[key] = now
                moved = True
        return moved

    def learn(self, key: str) -> None:
        """Add a topology key; a dry run may bring terms that no placed pod had before."""
        self._known[key] = self._atlas.of(key)

    def sizes(self) -> dict[str, int]:
        return {key: known.size for key, known in self._known.items()}

    def ids(self, key: str) -> Ids:
        return self._known[key].ids

    def copy(self) -> Places:
        other = object.__new__(Places)
        other._atlas = self._atlas
        other._known = dict(self._known)
        return other
