"""The domain of each node for the topology keys of one class of pods, as of when it last looked."""

from __future__ import annotations

from collections.abc import Iterable

from koord.scheduler.state.domain import Atlas, Domains, Ids


class Places:
    __slots__ = ("_atlas", "_known")

    def __init__(self, atlas: Atlas, keys: Iterable[str]) -> None:
        self._atlas = atlas
        self._known: dict[str, Domains] = {key: atlas.of(key) for key in keys}

    def moved(self) -> bool:
        """Whether anything differs from before; it is up to date afterwards."""
        moved = False
        for key, known in self._known.items():
            now = self._atlas.of(key)
            if now is not known:
                self._known[key] = now
                moved = True
        return moved

    def learn(self, key: str) -> None:
        """Know one more key; a what-if may bring terms that nobody held before."""
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
