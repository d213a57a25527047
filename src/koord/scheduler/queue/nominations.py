"""Track nominated pods: other pods count them as if they were on their node already.

Pods that other schedulers nominated are tracked apart: they hold against pods of lower priority alone, and nobody here
may take their nomination away.
"""

from __future__ import annotations

from collections.abc import Iterable

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod, is_terminal


def is_nominated_by_others(pod: Pod, schedulers: frozenset[str]) -> bool:
    """Return whether the pod waits for room that a scheduler other than these keeps for it on a node."""
    return bool(
        pod.status.nominated_node_name
        and not pod.spec.node_name
        and pod.spec.scheduler_name not in schedulers
        and not is_terminal(pod)
    )


class Nominations:
    """Keep at most one nominated node per pod, until the server's view of the pod says otherwise."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, PodInfo]] = {}  # node -> uid -> pod
        self._node_by_uid: dict[str, str] = {}
        self._others_by_node: dict[str, dict[str, PodInfo]] = {}  # nominated by other schedulers
        self._others: dict[str, PodInfo] = {}  # the same by uid
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

    def set_by_others(self, pod: PodInfo) -> None:
        """Count a pod on the node that another scheduler nominated it to, as its status says."""
        self.remove_by_others(pod.uid)
        self.version += 1
        self._others[pod.uid] = pod
        self._others_by_node.setdefault(pod.nominated_node, {})[pod.uid] = pod

    def remove_by_others(self, uid: str) -> None:
        pod = self._others.pop(uid, None)
        if pod is None:
            return
        self.version += 1
        pods = self._others_by_node[pod.nominated_node]
        del pods[uid]
        if not pods:
            del self._others_by_node[pod.nominated_node]

    def by_others(self, uid: str) -> PodInfo | None:
        """Return a pod that another scheduler nominated."""
        return self._others.get(uid)

    def pods_on(self, node: str) -> tuple[PodInfo, ...]:
        """Return the pods that this scheduler nominated to a node, in the order of their nomination."""
        pods = self._by_node.get(node)
        return tuple(pods.values()) if pods else ()

    def nodes(self) -> Iterable[str]:
        """Return the nodes that pods are nominated to, by whomever."""
        if not self._others_by_node:
            return self._by_node
        return {**self._by_node, **self._others_by_node}.keys()

    def ahead_of(self, pod: PodInfo, node: str) -> tuple[PodInfo, ...]:
        """Return the other pods nominated to a node whose resources the pod must not take: those that are at least as
        important, and of other schedulers those that are more important.
        """
        found = [p for p in self._by_node.get(node, {}).values() if p.priority >= pod.priority and p.uid != pod.uid]
        if self._others:
            found += (p for p in self._others_by_node.get(node, {}).values() if p.priority > pod.priority)
        return tuple(found)

    def pod(self, uid: str) -> PodInfo | None:
        return self._by_node.get(self._node_by_uid.get(uid, ""), {}).get(uid)

    def node_of(self, uid: str) -> str:
        return self._node_by_uid.get(uid, "")

    def __len__(self) -> int:
        return len(self._node_by_uid) + len(self._others)
