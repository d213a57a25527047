"""InterPodAffinity places pods near pods that they require and away from pods that they or others exclude.

Its queueing hints look closer where Kubernetes overlooks a cause and leaves the pod to its five-minute
timer: a namespace selector is matched with the namespace's labels, any of several anti-affinity terms
counts, and so does the end of a pod that kept others away.
"""

from __future__ import annotations

from koord.api.node import Node
from koord.scheduler.framework.event import Happened
from koord.scheduler.plugins.inter_pod_affinity.holders import Concern
from koord.scheduler.plugins.inter_pod_affinity.term import Terms, terms_of
from koord.scheduler.plugins.inter_pod_affinity.wish import Wish
from koord.scheduler.state.pod import PodInfo


def pod_helps(wish: Wish | None, happened: Happened) -> bool:
    """Return whether a pod event can make the waiting pod schedulable."""
    old: PodInfo | None = happened.old
    new: PodInfo | None = happened.new
    if any(pod is not None and not pod.node_name for pod in (old, new)):
        return False
    if _attracts(wish, new) and not _attracts(wish, old):
        return True
    if _repels(wish, old) and not _repels(wish, new):
        return True
    # A pod whose labels change holds the terms that it held.
    return old is not None and new is None and bool((terms_of(old) or Terms()).anti_affinity)


def _attracts(wish: Wish | None, pod: PodInfo | None) -> bool:
    return bool(wish is not None and pod is not None and wish.affinity is not None and wish.affinity.matches(pod.peers))


def _repels(wish: Wish | None, pod: PodInfo | None) -> bool:
    if wish is None or pod is None:
        return False
    return any(ask.question.matches(pod.peers) for ask in wish.anti_affinity)


def node_helps(wish: Wish | None, concern: Concern, happened: Happened) -> bool:
    """Return whether a node event can make the waiting pod schedulable."""
    old: Node | None = happened.old
    new: Node | None = happened.new
    if new is None:
        return False
    after = new.metadata.labels
    near = wish.affinity_keys if wish is not None else ()
    if old is None:
        return not near or any(key in after for key in near)
    before = old.metadata.labels
    if any(key in after and before.get(key) != after[key] for key in near):
        return True
    far = {held.term.topology_key for held in concern.keeps_away}
    if wish is not None:
        far.update(ask.topology_key for ask in wish.anti_affinity)
    return any(key in before and before[key] != after.get(key) for key in far)
