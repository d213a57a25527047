"""The DisruptionTarget condition, which says why a pod is about to be ended from outside."""

from __future__ import annotations

from datetime import datetime

from koord.api.builtin import PODS
from koord.api.core import Pod
from koord.embedded.workloads.pod_state import condition
from koord.kube.client import Client
from koord.kube.refused import Refused
from koord.kube.verb import Plain
from koord.values import instant

TARGET = "DisruptionTarget"


async def mark_disrupted(
    client: Client, pod: Pod, reason: str, message: str, now: datetime, *, phase: str = ""
) -> Refused | None:
    """Add the DisruptionTarget condition. `phase` is also set, for a pod that no kubelet will ever report on
    again.
    """
    status: Plain = {}
    known = condition(pod, TARGET)
    if known is None or known.status != "True" or known.reason != reason:
        mark = {
            "type": TARGET,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": instant.text(now),
        }
        status["conditions"] = [mark]
    if phase and pod.status.phase != phase:
        status["phase"] = phase
    if not status:
        return None
    meta = pod.metadata
    answer = await client.patch(
        PODS, meta.name, {"status": status}, meta.namespace, kind="strategic", subresource="status", uid=meta.uid
    )
    return answer if isinstance(answer, Refused) and not answer.not_found and not answer.conflict else None
