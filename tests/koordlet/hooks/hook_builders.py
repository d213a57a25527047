"""Short ways to write pods, containers and rules for tests of hooks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from koord.api.annotations.cpu_codecs import CPUSharedPool
from koord.api.koordinator.protocol import A_RESOURCE_STATUS, BURSTABLE, L_QOS_CLASS
from koord.koordlet.hooks.hook import CgroupResources, ContainerContext, HookPlan, NodeRules, PodContext

LS_POOLS = (CPUSharedPool(socket=0, node=0, cpuset="0-7"), CPUSharedPool(socket=1, node=1, cpuset="8-15"))
BE_POOLS = (CPUSharedPool(socket=0, node=0, cpuset="0-6"), CPUSharedPool(socket=1, node=1, cpuset="8-14"))


def a_pod(qos: str = "", status: Any = None, **changes: Any) -> PodContext:
    """Return a pod of a class. `status` is the resource-status annotation, as text or as what JSON says of it."""
    annotations = dict(changes.pop("annotations", {}))
    if status is not None:
        annotations[A_RESOURCE_STATUS] = status if isinstance(status, str) else json.dumps(status)
    labels = {L_QOS_CLASS: qos} if qos else {}
    return PodContext(
        **{"uid": "u", "kube_qos": BURSTABLE, "labels": labels | changes.pop("labels", {})}
        | {"annotations": annotations}
        | changes
    )


def a_container(pod: PodContext, name: str = "c", **changes: Any) -> ContainerContext:
    return ContainerContext(pod=pod, name=name, **changes)


def pooled_rules(*gates: str, **changes: Any) -> NodeRules:
    return NodeRules(**{"gates": frozenset(gates), "ls_pools": LS_POOLS, "be_pools": BE_POOLS} | changes)


def values(plan: HookPlan) -> Mapping[str, str]:
    return {one.knob: one.value for one in plan.values}


def quota(us: int | None) -> CgroupResources:
    return CgroupResources(quota_us=us)
