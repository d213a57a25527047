"""Nodes with CPUs and cards, quotas, and pods of every sort that come and go. A seed decides what comes."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from koord.api.koordinator.protocol import A_GANG_MIN_AVAILABLE, A_GANG_NAME, L_QUOTA_NAME, NAMESPACE, SCHEDULER

Json = dict[str, Any]
SPACE = "chaos"
NODE_COUNT, CPUS, CARDS = 8, 16, 4
CORE, MEMORY, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"
QUOTAS = {"team-a": {"cpu": "12", "memory": "24Gi"}, "team-b": {"cpu": "6", "memory": "12Gi"}}
PROFILED = {"chaos/profile": "batch"}  # pods that a ClusterColocationProfile selects
MUTATED = "chaos/from-profile"  # a label that the profile gives
# The workload stays below this share of the CPUs, so that whatever is pending fits somewhere.
FULL = 0.5


def node(number: int) -> Json:
    room = {"cpu": str(CPUS), "memory": "64Gi", "pods": "110"}
    room |= {CORE: str(100 * CARDS), RATIO: str(100 * CARDS), MEMORY: f"{16 * CARDS}Gi", "koordinator.sh/gpu": "400"}
    name = f"node-{number}"
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "allocatable": room,
            "capacity": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def topology(number: int) -> Json:
    detail = [{"id": n, "core": n // 2, "socket": 0, "node": n * 2 // CPUS} for n in range(CPUS)]
    listed = [
        {"name": name, "capacity": amount, "allocatable": amount, "available": amount}
        for name, amount in (("cpu", str(CPUS // 2)), ("memory", "32Gi"))
    ]
    return {
        "metadata": {
            "name": f"node-{number}",
            "annotations": {"node.koordinator.sh/cpu-topology": json.dumps({"detail": detail})},
        },
        "topologyPolicies": ["None"],
        "zones": [{"name": f"node-{n}", "type": "Node", "resources": listed} for n in range(2)],
    }


def device(number: int) -> Json:
    cards = [
        {
            "type": "gpu",
            "id": f"GPU-{number}-{minor}",
            "minor": minor,
            "health": True,
            "resources": {CORE: "100", RATIO: "100", MEMORY: "16Gi"},
            "topology": {"socketID": 0, "nodeID": minor // 2, "pcieID": str(minor // 2)},
        }
        for minor in range(CARDS)
    ]
    return {"metadata": {"name": f"node-{number}"}, "spec": {"devices": cards}}


def quota(name: str) -> Json:
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"quota.scheduling.koordinator.sh/is-parent": "false"},
        },
        "spec": {"max": QUOTAS[name], "min": {"cpu": "1", "memory": "1Gi"}},
    }


def gang_of(pod: Json) -> tuple[str, int] | None:
    """Return the gang of a pod and how many members it needs, as its annotations say."""
    annotations = pod["metadata"].get("annotations") or {}
    gang = annotations.get(A_GANG_NAME)
    return (gang, int(annotations[A_GANG_MIN_AVAILABLE])) if gang else None


class PodMaker:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._made = 0

    def batch(self) -> list[Json]:
        """Return pods to create together: one, or all of a gang."""
        sort = self._random.choice(
            ("plain", "batch", "batch", "bound-cpus", "shared-card", "whole-card", "quota", "gang")
        )
        self._made += 1
        name = f"{sort}-{self._made}"
        match sort:
            case "bound-cpus":
                labels = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}
                return [self._pod(name, {"cpu": self._random.choice(("2", "4"))}, labels=labels, limits=True)]
            case "shared-card":
                half = self._random.choice(("25", "50"))
                return [self._pod(name, {"cpu": "500m", CORE: half, RATIO: half}, limits=True)]
            case "whole-card":
                return [self._pod(name, {"cpu": "500m", CORE: "100", RATIO: "100"}, limits=True)]
            case "batch":
                return [self._pod(name, {"cpu": "200m"}, labels=PROFILED, limits=True)]
            case "quota":
                labels = {L_QUOTA_NAME: self._random.choice(tuple(QUOTAS))}
                return [self._pod(name, {"cpu": "1"}, labels=labels)]
            case "gang":
                members = self._random.choice((3, 5))
                annotations = {A_GANG_NAME: name, A_GANG_MIN_AVAILABLE: str(members)}
                return [
                    self._pod(f"{name}-{n}", {"cpu": "500m"}, annotations=annotations, owner=name)
                    for n in range(members)
                ]
        return [self._pod(name, {"cpu": self._random.choice(("250m", "1", "3"))})]

    def _pod(
        self,
        name: str,
        requests: dict[str, str],
        *,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        limits: bool = False,
        owner: str = "",
    ) -> Json:
        resources = {"requests": {"memory": "128Mi", **requests}}
        if limits:
            resources["limits"] = dict(resources["requests"])
        container = {"name": "c", "image": "registry.test/none:v1", "resources": resources}
        return {
            "metadata": {
                "name": name,
                "namespace": SPACE,
                "labels": {"chaos/batch": owner or name, **(labels or {})},
                "annotations": annotations or {},
            },
            "spec": {"schedulerName": SCHEDULER, "terminationGracePeriodSeconds": 0, "containers": [container]},
        }
