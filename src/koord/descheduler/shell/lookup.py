"""Builds snapshots from informers for one round. Nothing is ever listed for a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from koord.descheduler.wire import Pod
from koord.kube.informer import Informer

K = TypeVar("K")
V = TypeVar("V")


class Found(Mapping[K, V], Generic[K, V]):
    """A read-only mapping over a lookup function. It is valid until the event loop runs other tasks."""

    def __init__(self, find: Callable[[K], V | None], keys: Callable[[], Sequence[K]]) -> None:
        self._find = find
        self._keys = keys

    def __getitem__(self, key: K) -> V:
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())


def by_index(pods: Informer[Pod], index: str) -> Mapping[str, Sequence[Pod]]:
    return Found(lambda value: pods.by_index(index, value) or None, lambda: pods.index_values(index))


def by_name(pods: Informer[Pod]) -> Mapping[tuple[str, str], Pod]:
    return Found(
        lambda key: pods.get(*key),
        lambda: [(pod.metadata.namespace, pod.metadata.name) for pod in pods.list()],
    )
