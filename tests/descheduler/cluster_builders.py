"""Small clusters for tests of the descheduler: nodes, pods and plugins that do as they are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koord.api.koordinator.scheduling import PodMigrationJob
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.descheduler.framework.snapshot import ClusterSnapshot, Workload

NOW_S = 1_800_000_000.0


def make_node(name: str, *, labels: Mapping[str, str] | None = None, ready: str = "True", **spec: Any) -> Node:
    room = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    conditions = [{"type": "Ready", "status": ready}] if ready else []
    return convert(
        {
            "metadata": {"name": name, "uid": f"node-{name}", "labels": dict(labels or {})},
            "spec": spec,
            "status": {"allocatable": room, "capacity": room, "conditions": conditions},
        },
        Node,
    )


def make_pod(name: str, node: str = "", *, namespace: str = "default", owner: str = "", **given: Any) -> Pod:
    """`owner` is Kind/name; its uid is made of both. `given` may hold metadata, spec and status to merge in."""
    owners = []
    if owner:
        kind, _, of = owner.partition("/")
        reference = {"apiVersion": "apps/v1", "kind": kind, "name": of, "uid": f"{kind}-{of}", "controller": True}
        owners.append(reference)
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"{namespace}-{name}",
        "ownerReferences": owners,
        **given.get("metadata", {}),
    }
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}], **given.get("spec", {})}
    return convert({"metadata": metadata, "spec": spec, "status": {"phase": "Running", **given.get("status", {})}}, Pod)


def make_snapshot(
    nodes: Sequence[Node],
    pods: Sequence[Pod] = (),
    *,
    metrics: Sequence[NodeMetric] = (),
    jobs: Sequence[PodMigrationJob] = (),
    workloads: Mapping[str, Workload] | None = None,
    now_s: float = NOW_S,
    **others: Sequence[Any],
) -> ClusterSnapshot:
    return ClusterSnapshot(
        now_s=now_s,
        nodes={node.metadata.name: node for node in nodes},
        pods=tuple(pods),
        metrics={metric.metadata.name: metric for metric in metrics},
        jobs=tuple(jobs),
        workloads=workloads or {},
        others=others,
    )
