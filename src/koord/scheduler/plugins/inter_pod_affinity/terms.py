"""This module parses affinity terms, once per spec and namespace, and resolves those of a waiting pod into
queries.

matchLabelKeys and mismatchLabelKeys are not read: the API server merges them into the selector when a pod
is created, and a label that changes later must not change the term.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import ClassVar, Final, Protocol
from weakref import WeakValueDictionary

import msgspec

from koord.api.kubernetes.affinity import PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from koord.api.kubernetes.builtin_kinds import NAMESPACES
from koord.api.kubernetes.meta import label_selector_as_selector
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.scheduler.cache.pod_info import LabelGroup, PodInfo
from koord.scheduler.cache.selector_counts import PodQuery, SelectorClause
from koord.scheduler.framework.handle import Handle
from koord.values.selector import Selector, SelectorError

_MEMO: Final = "InterPodAffinity"


class AffinityTerm(msgspec.Struct, frozen=True):
    """Selects pods in these namespaces, or in those whose labels the namespace selector matches."""

    topology_key: str
    selector: Selector
    namespaces: frozenset[str]
    namespace_selector: Selector

    def matches(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> bool:
        if namespace not in self.namespaces and not self.namespace_selector.matches(namespace_labels):
            return False
        return self.selector.matches(labels)


class WeightedAffinityTerm(msgspec.Struct, frozen=True):
    """A preferred term; the weight is negative for anti-affinity."""

    weight: int
    term: AffinityTerm


class PodAffinityTerms(msgspec.Struct, frozen=True):
    """All terms of one pod. `error` says what is invalid; there are no terms then."""

    affinity: tuple[AffinityTerm, ...] = ()
    anti_affinity: tuple[AffinityTerm, ...] = ()
    preferred: tuple[WeightedAffinityTerm, ...] = ()
    error: str = ""


def affinity_terms_of(pod: PodInfo) -> PodAffinityTerms | None:
    """Return the pod's terms; None for the many pods without any."""
    memo = pod.shape.memo
    known: dict[str, PodAffinityTerms] | None = memo.get(_MEMO, memo)
    if known is memo:
        affinity = pod.shape.spec.affinity
        says = affinity is not None and (affinity.pod_affinity or affinity.pod_anti_affinity)
        known = memo[_MEMO] = {} if says else None
    if known is None:
        return None
    terms = known.get(pod.namespace)
    if terms is None:
        terms = known[pod.namespace] = _parse_pod(pod)
    return terms


def _parse_pod(pod: PodInfo) -> PodAffinityTerms:
    affinity = pod.shape.spec.affinity
    assert affinity is not None
    near, far = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAffinity()
    try:
        return PodAffinityTerms(
            affinity=_terms(near.required_during_scheduling_ignored_during_execution, pod.namespace),
            anti_affinity=_terms(far.required_during_scheduling_ignored_during_execution, pod.namespace),
            preferred=(
                *_weighted(near.preferred_during_scheduling_ignored_during_execution, pod.namespace, 1),
                *_weighted(far.preferred_during_scheduling_ignored_during_execution, pod.namespace, -1),
            ),
        )
    except SelectorError as error:
        return PodAffinityTerms(error=str(error))


def _terms(given: Iterable[PodAffinityTerm], namespace: str) -> tuple[AffinityTerm, ...]:
    return tuple(_term(term, namespace) for term in given)


def _weighted(given: Iterable[WeightedPodAffinityTerm], namespace: str, sign: int) -> tuple[WeightedAffinityTerm, ...]:
    return tuple(WeightedAffinityTerm(sign * each.weight, _term(each.pod_affinity_term, namespace)) for each in given)


def _term(term: PodAffinityTerm, namespace: str) -> AffinityTerm:
    own = not term.namespaces and term.namespace_selector is None
    return AffinityTerm(
        topology_key=term.topology_key,
        selector=label_selector_as_selector(term.label_selector),
        namespaces=frozenset((namespace,) if own else term.namespaces),
        namespace_selector=label_selector_as_selector(term.namespace_selector),
    )


class TopologyQuery(msgspec.Struct, frozen=True):
    """Counts matching pods per value of a node label."""

    topology_key: str
    question: PodQuery
    weight: int = 1


class IncomingTerms:
    """All that is read of a pod's own terms. Equal contents share one instance, so identity is equality."""

    __slots__ = ("__weakref__", "affinity", "affinity_keys", "anti_affinity", "matches_itself", "preferred")

    def __init__(
        self,
        affinity: PodQuery | None,
        affinity_keys: tuple[str, ...],
        anti_affinity: tuple[TopologyQuery, ...],
        preferred: tuple[TopologyQuery, ...],
        *,
        matches_itself: bool,
    ) -> None:
        self.affinity = affinity  # one pod must satisfy all affinity terms at once
        self.affinity_keys = affinity_keys
        self.anti_affinity = anti_affinity
        self.preferred = preferred
        self.matches_itself = matches_itself  # the pod satisfies its own affinity terms, so it may open a group


class IncomingTermsCache:
    def __init__(self, namespaces: NamespaceLabels) -> None:
        self._namespaces = namespaces
        self._known: WeakValueDictionary[Hashable, IncomingTerms] = WeakValueDictionary()

    def get(self, pod: PodInfo, terms: PodAffinityTerms) -> IncomingTerms:
        """Return the pod's resolved terms, cached with its labels until the labels of some namespace change."""
        key = (self, pod.shape)
        version = self._namespaces.version
        kept = pod.label_group.memo.get(key)
        if kept is None or kept[0] != version:
            kept = pod.label_group.memo[key] = (version, self._build(terms, pod.label_group))
        incoming: IncomingTerms = kept[1]
        return incoming

    def _build(self, terms: PodAffinityTerms, peers: LabelGroup) -> IncomingTerms:
        affinity = PodQuery(tuple(self.clause(term) for term in terms.affinity)) if terms.affinity else None
        keys = tuple(dict.fromkeys(term.topology_key for term in terms.affinity))
        anti = tuple(TopologyQuery(term.topology_key, PodQuery((self.clause(term),))) for term in terms.anti_affinity)
        preferred = tuple(
            TopologyQuery(each.term.topology_key, PodQuery((self.clause(each.term),)), each.weight)
            for each in terms.preferred
        )
        matches_itself = affinity is not None and affinity.matches(peers)
        content = (affinity, keys, anti, preferred, matches_itself)
        known = self._known.get(content)
        if known is None:
            known = self._known[content] = IncomingTerms(affinity, keys, anti, preferred, matches_itself=matches_itself)
        return known

    def clause(self, term: AffinityTerm) -> SelectorClause:
        """Resolve the namespaces of a term.

        Kubernetes adds the selected namespaces to the named ones and then matches the selector once more, without
        labels: one that namespaces without labels satisfy covers all of them.
        """
        selector = term.namespace_selector
        if selector.matches({}):
            return SelectorClause(None, term.selector)
        if selector.matches_nothing:
            return SelectorClause(term.namespaces, term.selector)
        return SelectorClause(term.namespaces | self._namespaces.selected(selector), term.selector)


_NO_LABELS: Mapping[str, str] = {}


class NamespaceLabels(Protocol):
    @property
    def version(self) -> int:
        """Return a number that changes when an answer may have changed."""

    def labels(self, name: str) -> Mapping[str, str]:
        """Return the labels; empty for an unknown namespace."""

    def selected(self, selector: Selector) -> frozenset[str]: ...


class NamespaceLister:
    """The namespace labels of the scheduler's lister."""

    rights: ClassVar[tuple[RbacRule, ...]] = (RbacRule("", ("namespaces",), READ_VERBS),)

    def __init__(self, handle: Handle) -> None:
        self._lister = handle.lister(NAMESPACES)

    @property
    def version(self) -> int:
        return self._lister.version

    def labels(self, name: str) -> Mapping[str, str]:
        found = self._lister.get("", name)
        return found.metadata.labels if found is not None else _NO_LABELS

    def selected(self, selector: Selector) -> frozenset[str]:
        listed = self._lister.list()
        return frozenset(each.metadata.name for each in listed if selector.matches(each.metadata.labels))
