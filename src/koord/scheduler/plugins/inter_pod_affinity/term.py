"""This module parses affinity terms, once per spec and namespace, and resolves those of a waiting pod into
queries.

matchLabelKeys and mismatchLabelKeys are not read: the API server merges them into the selector when a pod
is created, and a label that changes later must not change the term.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from koord.api.affinity import PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from koord.api.meta import LabelSelector
from koord.scheduler.state.pod import PodInfo
from koord.values.requirement import SelectorError
from koord.values.selector import NOTHING, Selector

_MEMO: Final = "InterPodAffinity"


class Term(msgspec.Struct, frozen=True):
    """Selects pods in these namespaces, or in those whose labels the namespace selector matches."""

    topology_key: str
    selector: Selector
    namespaces: frozenset[str]
    namespace_selector: Selector

    def matches(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> bool:
        if namespace not in self.namespaces and not self.namespace_selector.matches(namespace_labels):
            return False
        return self.selector.matches(labels)


class Weighted(msgspec.Struct, frozen=True):
    """A preferred term; the weight is negative for anti-affinity."""

    weight: int
    term: Term


class Terms(msgspec.Struct, frozen=True):
    """All terms of one pod. `error` says what is invalid; there are no terms then."""

    affinity: tuple[Term, ...] = ()
    anti_affinity: tuple[Term, ...] = ()
    preferred: tuple[Weighted, ...] = ()
    error: str = ""


def terms_of(pod: PodInfo) -> Terms | None:
    """Return the pod's terms; None for the many pods without any."""
    memo = pod.shape.memo
    known: dict[str, Terms] | None = memo.get(_MEMO, memo)
    if known is memo:
        affinity = pod.shape.spec.affinity
        says = affinity is not None and (affinity.pod_affinity or affinity.pod_anti_affinity)
        known = memo[_MEMO] = {} if says else None
    if known is None:
        return None
    terms = known.get(pod.namespace)
    if terms is None:
        terms = known[pod.namespace] = _parsed(pod)
    return terms


def _parsed(pod: PodInfo) -> Terms:
    affinity = pod.shape.spec.affinity
    assert affinity is not None
    near, far = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAffinity()
    try:
        return Terms(
            affinity=_terms(near.required_during_scheduling_ignored_during_execution, pod.namespace),
            anti_affinity=_terms(far.required_during_scheduling_ignored_during_execution, pod.namespace),
            preferred=(
                *_weighted(near.preferred_during_scheduling_ignored_during_execution, pod.namespace, 1),
                *_weighted(far.preferred_during_scheduling_ignored_during_execution, pod.namespace, -1),
            ),
        )
    except SelectorError as error:
        return Terms(error=str(error))


def _terms(given: Iterable[PodAffinityTerm], namespace: str) -> tuple[Term, ...]:
    return tuple(_term(term, namespace) for term in given)


def _weighted(given: Iterable[WeightedPodAffinityTerm], namespace: str, sign: int) -> tuple[Weighted, ...]:
    return tuple(Weighted(sign * each.weight, _term(each.pod_affinity_term, namespace)) for each in given)


def _term(term: PodAffinityTerm, namespace: str) -> Term:
    own = not term.namespaces and term.namespace_selector is None
    return Term(
        topology_key=term.topology_key,
        selector=_selector(term.label_selector),
        namespaces=frozenset((namespace,) if own else term.namespaces),
        namespace_selector=_selector(term.namespace_selector),
    )


def _selector(spec: LabelSelector | None) -> Selector:
    if spec is None:
        return NOTHING
    return Selector.of(spec.match_labels, [(e.key, e.operator, e.values) for e in spec.match_expressions])
