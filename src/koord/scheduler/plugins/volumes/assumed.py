"""This module holds decisions that are not yet seen in the API: claims and volumes are read as if they had
been written.
"""

from __future__ import annotations

from typing import Literal

from koord.api.volume import PersistentVolume, PersistentVolumeClaim
from koord.scheduler.plugins.volumes.choice import Choice
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo


class Assumed:
    """The assumed volumes of all profiles. A pod that leaves its node, for whatever reason, takes its decisions
    with it.

    An assumption is valid while the watch shows the very revision that it was made on; anything newer replaces
    it.
    """

    def __init__(self, state: ClusterState) -> None:
        self.version = 0
        self._choices: dict[str, Choice] = {}  # by uid of the pod
        self._volumes: dict[str, tuple[str, PersistentVolume]] = {}  # by name: uid of the pod, and what will be
        self._claims: dict[tuple[str, str], tuple[str, PersistentVolumeClaim]] = {}
        state.listen(self._moved)

    def volume(self, shown: PersistentVolume) -> PersistentVolume:
        known = self._volumes.get(shown.metadata.name)
        return known[1] if known is not None and _same(known[1], shown) else shown

    def claim(self, shown: PersistentVolumeClaim) -> PersistentVolumeClaim:
        known = self._claims.get((shown.metadata.namespace, shown.metadata.name))
        return known[1] if known is not None and _same(known[1], shown) else shown

    def of(self, uid: str) -> Choice | None:
        return self._choices.get(uid)

    def assume(self, uid: str, choice: Choice) -> None:
        self.revert(uid)
        self.version += 1
        self._choices[uid] = choice
        for binding in choice.bindings:
            if binding.write is not None:
                self._volumes[binding.after.metadata.name] = uid, binding.after
        for provision in choice.provisions:
            if provision.write is not None:
                meta = provision.after.metadata
                self._claims[meta.namespace, meta.name] = uid, provision.after

    def revert(self, uid: str) -> None:
        choice = self._choices.pop(uid, None)
        if choice is None:
            return
        self.version += 1
        for binding in choice.bindings:
            name = binding.after.metadata.name
            if self._volumes.get(name, ("",))[0] == uid:
                del self._volumes[name]
        for provision in choice.provisions:
            key = provision.after.metadata.namespace, provision.after.metadata.name
            if self._claims.get(key, ("",))[0] == uid:
                del self._claims[key]

    def _moved(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        if what == "remove" and self._choices:
            self.revert(pod.uid)


def _same(a: PersistentVolume | PersistentVolumeClaim, b: PersistentVolume | PersistentVolumeClaim) -> bool:
    return (a.metadata.uid, a.metadata.resource_version) == (b.metadata.uid, b.metadata.resource_version)
