"""Pods that were promised room on a node which is still being made: others count them as if they were there."""

from __future__ import annotations

from collections.abc import Iterable

from koord.scheduler.state.pod import PodInfo


class Nominations:
    """At most one node per pod. A promise made here holds until the server's view of the pod says otherwise."""

    def __init__(self) -> None:
        self._on: dict[str, dict[str, PodInfo]] = {}  # node -> uid -> pod
        self._node: dict[str, str] = {}
        self.version = 0  # moves with every change

    def put(self, pod: PodInfo, node: str) -> None:
        """An empty name takes the promise back."""
        self.drop(pod.uid)
        if node:
            self.version += 1
            self._node[pod.uid] = node
            self._on.setdefault(node, {})[pod.uid] = pod

    def follow(self, old: PodInfo | None, new: PodInfo) -> None:
        """The pod was seen. Its status decides, unless it never named a node: then it may just not show ours yet."""
        unspoken = old is not None and not old.nominated_node and not new.nominated_node
        self.put(new, self._node.get(new.uid, "") if unspoken else new.nominated_node)

    def drop(self, uid: str) -> bool:
        node = self._node.pop(uid, None)
        if node is None:
            return False
        self.version += 1
        pods = self._on[node]
        del pods[uid]
        if not pods:
            del self._on[node]
        return True

    def on(self, node: str) -> tuple[PodInfo, ...]:
        """In the order of their nomination."""
        pods = self._on.get(node)
        return tuple(pods.values()) if pods else ()

    def nodes(self) -> Iterable[str]:
        """Those where somebody was promised room."""
        return self._on

    def ahead_of(self, pod: PodInfo, node: str) -> tuple[PodInfo, ...]:
        """Whose room there the pod must not take: that of others who are at least as important."""
        pods = self._on.get(node)
        if not pods:
            return ()
        return tuple(p for p in pods.values() if p.priority >= pod.priority and p.uid != pod.uid)

    def pod(self, uid: str) -> PodInfo | None:
        return self._on.get(self._node.get(uid, ""), {}).get(uid)

    def node_of(self, uid: str) -> str:
        return self._node.get(uid, "")

    def __len__(self) -> int:
        return len(self._node)
