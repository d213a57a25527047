"""Track nominated pods: other pods count them as if they were on their node already."""

from __future__ import annotations

from collections.abc import Iterable

from koord.scheduler.state.pod import PodInfo


class Nominations:
    """Keep at most one nominated node per pod, until the server's view of the pod says otherwise."""

    def __init__(self) -> None:
        self._on: dict[str, dict[str, PodInfo]] = {}  # node -> uid -> pod
        self._node: dict[str, str] = {}
        self.version = 0  # moves with every change

    def put(self, pod: PodInfo, node: str) -> None:
        """Nominate a pod to a node; an empty name removes the nomination."""
        self.drop(pod.uid)
        if node:
            self.version += 1
            self._node[pod.uid] = node
            self._on.setdefault(node, {})[pod.uid] = pod

    def follow(self, old: PodInfo | None, new: PodInfo) -> None:
        """Update the nomination from the pod's status, unless it never named a node: it may just not show ours yet."""
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
        """Return the pods nominated to a node, in the order of their nomination."""
        pods = self._on.get(node)
        return tuple(pods.values()) if pods else ()

    def nodes(self) -> Iterable[str]:
        """Return the nodes that pods are nominated to."""
        return self._on

    def ahead_of(self, pod: PodInfo, node: str) -> tuple[PodInfo, ...]:
        """Return the other pods nominated to a node that are at least as important: the pod must not take their
        resources.
        """
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
