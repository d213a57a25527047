"""Jobs, reservations and arguments of migrations for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from koord.api.config.descheduler.plugin_args import MigrationControllerArgs, defaulted_migration
from koord.api.koordinator.protocol import A_PASSED_ARBITRATION, DESCHEDULER_NAME
from koord.api.koordinator.scheduling import PodMigrationJob, Reservation
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.descheduler.framework.snapshot import Workload
from tests.descheduler.cluster_builders import NOW_S, make_pod

READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def arguments(**given: Any) -> MigrationControllerArgs:
    return defaulted_migration(MigrationControllerArgs(**given))


def make_job(
    name: str = "j",
    pod: str = "a",
    *,
    namespace: str = "default",
    uid: str | None = None,
    phase: str = "",
    passed: bool = False,
    age_s: float = 0.0,
    reservation: str = "",
    annotations: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> PodMigrationJob:
    """`uid` of the pod: by default that of clusters.make_pod; "" when the job does not know it."""
    if reservation:
        spec["reservationOptions"] = {"reservationRef": {"name": reservation}}
    ref = {"namespace": namespace, "name": pod, "uid": f"{namespace}-{pod}" if uid is None else uid}
    marks = {A_PASSED_ARBITRATION: "true"} if passed else {}
    created = datetime.fromtimestamp(NOW_S - age_s, UTC).isoformat().replace("+00:00", "Z")
    return convert(
        {
            "metadata": {
                "name": name,
                "uid": f"job-{name}",
                "creationTimestamp": created,
                "annotations": {**marks, **(annotations or {})},
            },
            "spec": {"podRef": ref, **spec},
            "status": {"phase": phase, **(status or {})},
        },
        PodMigrationJob,
    )


def make_reservation(
    name: str = "r",
    *,
    phase: str = "",
    node: str = "",
    owner: str = "",
    conditions: list[dict[str, str]] | None = None,
    **spec: Any,
) -> Reservation:
    """`owner` is the pod that lives in it."""
    owners = [{"namespace": "default", "name": owner, "uid": f"default-{owner}"}] if owner else []
    return convert(
        {
            "metadata": {
                "name": name,
                "uid": f"res-{name}",
                "labels": {"app.kubernetes.io/created-by": DESCHEDULER_NAME},
            },
            "spec": {
                "owners": [{"controller": {"kind": "ReplicaSet", "name": "rs", "uid": "ReplicaSet-rs"}}],
                "allocateOnce": True,
                **spec,
            },
            "status": {"phase": phase, "nodeName": node, "currentOwners": owners, "conditions": conditions or []},
        },
        Reservation,
    )


def make_workload(name: str = "rs", replicas: int = 10, *, kind: str = "ReplicaSet") -> Workload:
    uid = f"{kind}-{name}"
    return Workload(
        kind=kind, namespace="default", name=name, uid=uid, replicas=replicas, controller_uids=frozenset((uid,))
    )


def ready_pod(name: str, node: str = "n1", *, owner: str = "ReplicaSet/rs", **given: Any) -> Pod:
    spec = {"schedulerName": "koord-scheduler", **given.pop("spec", {})}
    status = {**READY, **given.pop("status", {})}
    return make_pod(name, node, owner=owner, spec=spec, status=status, **given)
