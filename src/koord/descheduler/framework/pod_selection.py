"""The pod filter that a plugin's arguments describe: namespaces and label selectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from koord.api.annotations import pod_codecs
from koord.api.config.descheduler.plugin_args import DeschedulerPodSelector, NamespaceFilter
from koord.api.koordinator import protocol
from koord.api.kubernetes.meta import LabelSelector, label_selector_as_selector
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import recorded_qos_class
from koord.descheduler.framework.snapshot import namespaced_name
from koord.policy import qos
from koord.values.go_format import parse_decimal_int
from koord.values.selector import Selector


def build_selector(given: LabelSelector | None) -> Selector | None:
    """Build a selector; None selects everything. Raise SelectorError, which validation has reported before."""
    return None if given is None else label_selector_as_selector(given)


class PodFilter:
    """Matches pods by namespace, then by label selectors of which one is enough."""

    def __init__(
        self, namespaces: NamespaceFilter | None = None, selectors: Iterable[DeschedulerPodSelector] = ()
    ) -> None:
        self._include = frozenset(namespaces.include if namespaces is not None else ())
        self._exclude = frozenset(namespaces.exclude if namespaces is not None else ())
        self._selectors = tuple(found for each in selectors if (found := build_selector(each.selector)) is not None)

    def matches_namespace(self, namespace: str) -> bool:
        return (not self._include or namespace in self._include) and namespace not in self._exclude

    def matches_labels(self, pod: Pod) -> bool:
        return not self._selectors or any(s.matches(pod.metadata.labels) for s in self._selectors)

    def matches(self, pod: Pod) -> bool:
        return self.matches_namespace(pod.metadata.namespace) and self.matches_labels(pod)


DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


class PodRank(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """PodRank holds what ranks a pod in eviction order: QoS and priority classes, priority, costs and age."""

    kube_qos: str
    qos: str  # as labelled; empty when it says nothing known
    priority_class: str
    priority: int
    deletion_cost: int
    eviction_cost: int
    created_s: float


def pod_rank(pod: Pod) -> PodRank:
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    kube_qos = pod.status.qos_class or recorded_qos_class(pod)
    created = pod.metadata.creation_timestamp
    return PodRank(
        kube_qos=kube_qos,
        qos=qos.qos_raw(labels),
        priority_class=qos.priority_class_with_default(labels, pod.spec.priority, kube_qos),
        priority=pod.spec.priority or 0,
        deletion_cost=_parse_deletion_cost(annotations.get(DELETION_COST, "")),
        eviction_cost=pod_codecs.eviction_cost_or_zero(annotations),
        created_s=0.0 if created is None else created.timestamp(),
    )


def _parse_deletion_cost(text: str) -> int:
    """Parse a deletion cost as Kubernetes does: a plus sign or leading zeros make it invalid, and so 0."""
    if text == "0" or (text and text[0] in "-123456789"):
        return parse_decimal_int(text, bits=32) or 0
    return 0


_PRIORITY_CLASS_ORDER = {protocol.FREE: 1, protocol.BATCH: 2, protocol.MID: 3, protocol.PROD: 4}
_KUBERNETES_QOS_ORDER = {protocol.BEST_EFFORT: 1, protocol.BURSTABLE: 2, protocol.GUARANTEED: 3}
_KOORDINATOR_QOS_ORDER = {protocol.BE: 1, protocol.LS: 2, protocol.LSR: 3, protocol.LSE: 4, protocol.SYSTEM: 4}
_LAST = 5


def eviction_sort_key(rank: PodRank, usage: float = 0.0) -> tuple[Any, ...]:
    """Return the sort key of a pod; smaller is evicted first. `usage` decides between otherwise equal pods."""
    return (
        _PRIORITY_CLASS_ORDER.get(rank.priority_class, _LAST),
        rank.priority,
        _KUBERNETES_QOS_ORDER.get(rank.kube_qos, 0),
        _KOORDINATOR_QOS_ORDER.get(rank.qos, _LAST),
        rank.deletion_cost,
        rank.eviction_cost,
        usage,
        -rank.created_s,
    )


def sort_for_eviction(pods: Iterable[Pod], usage: Callable[[Pod], float] | None = None) -> list[Pod]:
    """Sort pods in eviction order, the first to be evicted first; equal pods by name."""
    return sorted(
        pods,
        key=lambda pod: (
            *eviction_sort_key(pod_rank(pod), usage(pod) if usage is not None else 0.0),
            namespaced_name(pod),
        ),
    )
