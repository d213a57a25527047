"""Track nominated pods: other pods count them as if they were on their node already."""

from __future__ import annotations

from collections.abc import Iterable

from koord.scheduler.cache.pod_info import PodInfo


class Nominations:
    """Keep at most one nominated node per pod, until the server's view of the pod says otherwise."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, PodInfo]] = {}  # node -> uid -> pod
        self._node_by_uid: dict[str, str] = {}
        self.version = 0  # moves with every change

    def nominate(self, pod: PodInfo, node: str) -> None:
        """Nominate a pod to a node; an empty name removes the nomination."""
        self.remove(pod.uid)
        if node:
            self.version += 1
            self._node_by_uid[pod.uid] = node
            self._by_node.setdefault(node, {})[pod.uid] = pod

    def update_from_status(self, old: PodInfo | None, new: PodInfo) -> None:
        """Update the nomination from the pod's status, unless it never named a node: it may just not show ours yet."""
        unspoken = old is not None and not old.nominated_node and not new.nominated_node
        self.nominate(new, self._node_by_uid.get(new.uid, "") if unspoken else new.nominated_node)

    def remove(self, uid: str) -> bool:
        node = self._node_by_uid.pop(uid, None)
        if node is None:
            return False
        self.version += 1
        pods = self._by_node[node]
        del pods[uid]
        if not pods:
            del self._by_node[node]
        return True

    def pods_on(self, node: str) -> tuple[PodInfo, ...]:
        """Return the pods nominated to a node, in the order of their nomination."""
        pods = self._by_node.get(node)
        return tuple(pods.values()) if pods else ()

    def nodes(self) -> Iterable[str]:
        """Return the nodes that pods are nominated to."""
        return self._by_node

    def ahead_of(self, pod: PodInfo, node: str) -> tuple[PodInfo, ...]:
        """Return the other pods nominated to a node that are at least as important: the pod must not take their
        resources.
        """
        pods = self._by_node.get(node)
        if not pods:
            return ()
        return tuple(p for p in pods.values() if p.priority >= pod.priority and p.uid != pod.uid)

    def pod(self, uid: str) -> PodInfo | None:
        return self._by_node.get(self._node_by_uid.get(uid, ""), {}).get(uid)

    def node_of(self, uid: str) -> str:
        return self._node_by_uid.get(uid, "")

    def __len__(self) -> int:
        return len(self._node_by_uid)
