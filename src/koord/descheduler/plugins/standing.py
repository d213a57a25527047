"""The order in which pods are evicted: the least important first, and among equals the newest."""

from __future__ import annotations

import msgspec

from koord.api.annotations import eviction_cost
from koord.api.annotations.number import decimal
from koord.api.pod_qos import pod_qos
from koord.descheduler.wire import Pod
from koord.policy.qos import classes

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


class Standing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What ranks a pod in eviction order: its QoS and priority classes, its priority, its costs and its age."""
    kube_qos: str
    qos: str  # as labelled; empty when it says nothing known
    priority_class: str
    priority: int
    deletion_cost: int
    eviction_cost: int
    created_s: float


def standing(pod: Pod) -> Standing:
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    kube_qos = pod.status.qos_class or pod_qos(pod)
    created = pod.metadata.creation_timestamp
    return Standing(
        kube_qos=kube_qos,
        qos=classes.qos_raw(labels),
        priority_class=classes.priority_class_with_default(labels, pod.spec.priority, kube_qos),
        priority=pod.spec.priority or 0,
        deletion_cost=_cost(annotations.get(DELETION_COST, "")),
        eviction_cost=eviction_cost.or_zero(annotations),
        created_s=0.0 if created is None else created.timestamp(),
    )


def _cost(text: str) -> int:
    """Parse a deletion cost as Kubernetes does: a plus sign or leading zeros make it invalid, and so 0."""
    if text == "0" or (text and text[0] in "-123456789"):
        return decimal(text, bits=32) or 0
    return 0
