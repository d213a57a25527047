"""The status of a Recommendation from an estimate, and whether it says anything new. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from koord.api.koordinator.analysis import RecommendationStatus
from koord.api.kubernetes.container import Container
from koord.api.kubernetes.pod import Pod
from koord.kube.client.request_builder import Unstructured
from koord.manager.controllers.recommender.workload_model import WorkloadEstimate
from koord.values import resources as vector
from koord.values import timestamp
from koord.values.quantity import Quantity
from koord.values.quantity_syntax import Format
from koord.values.resources import CPU, MEMORY

_MIB = 2**20
_FULL_CONFIDENCE = 1.0
_MIN_REQUEST = {CPU: 25, MEMORY: 5}  # thousandths of a core, mebibytes: the smallest that histograms tell apart


def container_statuses(estimate: WorkloadEstimate, pod: Pod) -> list[Unstructured]:
    """Divide the pod's estimate by the containers' requests; evenly where none requests anything."""
    containers = pod.spec.containers
    cpu = _divide_by_requests(estimate.cpu_milli, containers, CPU)
    memory = _divide_by_requests(estimate.memory_bytes // _MIB, containers, MEMORY)
    return [
        {
            "containerName": container.name,
            "resources": {
                CPU: str(Quantity.from_milli(cpu[index])),
                MEMORY: str(Quantity.from_value(memory[index] * _MIB, Format.BINARY_SI)),
            },
        }
        for index, container in enumerate(containers)
    ]


def build_conditions(
    estimate: WorkloadEstimate | None, unsupported: str, old: RecommendationStatus, now: datetime
) -> list[Unstructured]:
    """Return the conditions. Messages hold no figures: one that changes each minute would be written each minute."""
    if unsupported:
        told = [("ConfigUnsupported", "True", "TargetUnsupported", unsupported)]
    elif estimate is None:
        told = [("NoObjectsMatched", "True", "NoSamples", "no use of a matching pod has been reported")]
    else:
        low = estimate.confidence < _FULL_CONFIDENCE
        reason, words = (
            ("LittleHistory", "less than a day of samples") if low else ("EnoughHistory", "a day of samples")
        )
        told = [("LowConfidence", "True" if low else "False", reason, words)]
    made: list[Unstructured] = []
    for kind, state, reason, message in told:
        known = next((one for one in old.conditions if one.type == kind and one.status == state), None)
        since = known.last_transition_time if known is not None and known.last_transition_time else now
        made.append(
            {
                "type": kind,
                "status": state,
                "reason": reason,
                "message": message,
                "lastTransitionTime": timestamp.text(since),
            }
        )
    return made


def build_status_patch(
    old: RecommendationStatus, statuses: Sequence[Unstructured] | None, told: list[Unstructured], now: datetime
) -> Unstructured | None:
    """Return the merge patch of the status, or None when it is up to date. None for `statuses` keeps the last ones."""
    known = [
        {"containerName": one.container_name, "resources": vector.to_wire(vector.parse(one.resources))}
        for one in (old.pod_status.container_statuses if old.pod_status else ())
    ]
    said = [(one.type, one.status, one.reason, one.message) for one in old.conditions]
    saying = [(one["type"], one["status"], one["reason"], one["message"]) for one in told]
    patch: Unstructured = {}
    if statuses is not None and known != list(statuses):
        patch["podStatus"] = {"containerStatuses": list(statuses)}
        patch["updateTime"] = timestamp.text(now)
    if said != saying:
        patch["conditions"] = told
    return {"status": patch} if patch else None


def _divide_by_requests(total: int, containers: Sequence[Container], resource: str) -> list[int]:
    """Round each part up and to its minimum: too little breaks a container, a unit too much does not."""
    asked = [
        vector.units(resource, vector.parse(one.resources.requests).get(resource, Quantity.from_value(0)))
        for one in containers
    ]
    whole = sum(asked)
    if not whole:
        asked, whole = [1] * len(containers), len(containers)
    return [max(math.ceil(total * part / whole), _MIN_REQUEST[resource]) for part in asked]
