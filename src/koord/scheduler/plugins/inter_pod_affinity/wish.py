"""This module resolves a waiting pod's own terms: which pods to count, by which node label."""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakValueDictionary

import msgspec

from koord.scheduler.plugins.inter_pod_affinity.namespaces import Namespaces
from koord.scheduler.plugins.inter_pod_affinity.term import Term, Terms
from koord.scheduler.state.peers import Peers
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.tally import Clause, Question


class Ask(msgspec.Struct, frozen=True):
    """Counts matching pods per value of a node label."""

    topology_key: str
    question: Question
    weight: int = 1


class Wish:
    """All that is read of a pod's own terms. Equal contents share one instance, so identity is equality."""

    __slots__ = ("__weakref__", "affinity", "affinity_keys", "anti_affinity", "is_first", "preferred")

    def __init__(
        self,
        affinity: Question | None,
        affinity_keys: tuple[str, ...],
        anti_affinity: tuple[Ask, ...],
        preferred: tuple[Ask, ...],
        *,
        is_first: bool,
    ) -> None:
        self.affinity = affinity  # one pod must satisfy all affinity terms at once
        self.affinity_keys = affinity_keys
        self.anti_affinity = anti_affinity
        self.preferred = preferred
        self.is_first = is_first  # the pod satisfies its own affinity terms, so it may open a group


class Wishes:
    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._known: WeakValueDictionary[Hashable, Wish] = WeakValueDictionary()

    def of(self, pod: PodInfo, terms: Terms) -> Wish:
        """Return the pod's resolved terms, cached with its labels until the labels of some namespace change."""
        key = (self, pod.shape)
        version = self._namespaces.version
        kept = pod.peers.memo.get(key)
        if kept is None or kept[0] != version:
            kept = pod.peers.memo[key] = (version, self._wish(terms, pod.peers))
        wish: Wish = kept[1]
        return wish

    def _wish(self, terms: Terms, peers: Peers) -> Wish:
        affinity = Question(tuple(self.clause(term) for term in terms.affinity)) if terms.affinity else None
        keys = tuple(dict.fromkeys(term.topology_key for term in terms.affinity))
        anti = tuple(Ask(term.topology_key, Question((self.clause(term),))) for term in terms.anti_affinity)
        preferred = tuple(
            Ask(each.term.topology_key, Question((self.clause(each.term),)), each.weight) for each in terms.preferred
        )
        is_first = affinity is not None and affinity.matches(peers)
        content = (affinity, keys, anti, preferred, is_first)
        known = self._known.get(content)
        if known is None:
            known = self._known[content] = Wish(affinity, keys, anti, preferred, is_first=is_first)
        return known

    def clause(self, term: Term) -> Clause:
        """Resolve the namespaces of a term.

        Kubernetes adds the selected namespaces to the named ones and then matches the selector once more, without
        labels: one that namespaces without labels satisfy covers all of them.
        """
        selector = term.namespace_selector
        if selector.matches({}):
            return Clause(None, term.selector)
        if selector.nothing:
            return Clause(term.namespaces, term.selector)
        return Clause(term.namespaces | self._namespaces.selected(selector), term.selector)
