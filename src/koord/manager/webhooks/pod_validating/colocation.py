"""Classes of a pod: they never change, they fit each other, and they fit what the pod asks for."""

from __future__ import annotations

from koord.api.pod import Pod
from koord.api.pod_resources import pod_requests
from koord.api.protocol import L_PRIORITY, L_QOS_CLASS
from koord.api.qos_class import BE, LSE, LSR
from koord.api.resource_name import BATCH_CPU, BATCH_MEMORY, CPU
from koord.manager.webhooks.pod_validating.complaint import forbidden, invalid, required
from koord.policy.qos.classes import illegal_combination, is_legal, priority_class_raw, qos_raw
from koord.values.quantity import Quantity

_QOS_PATH = f"labels.{L_QOS_CLASS}"
_REQUESTS_PATH = "pod.spec.containers[*].resources.requests"
_IMMUTABLE = "field is immutable"
_CORE_MILLI = 1000


def complaints(pod: Pod, old: Pod | None, *, sub_priority_may_change: bool) -> list[str]:
    """Return the errors in a pod's classes: they never change, they fit each other, and they fit the requests.

    `old` is the pod before an update. Raise QuantityError.
    """
    labels = pod.metadata.labels
    qos, priority_class = qos_raw(labels), priority_class_raw(labels, pod.spec.priority)
    found = [] if old is None else _changes(pod, old, sub_priority_may_change=sub_priority_may_change)
    requests = pod_requests(pod.spec)
    if qos != BE and (requests.get(BATCH_CPU) or requests.get(BATCH_MEMORY)):
        found.append(required(_QOS_PATH, "must specify koordinator QoS BE with koordinator colocation resources"))
    if not is_legal(qos, priority_class):
        found.append(forbidden("Pod", illegal_combination(qos, priority_class)))
    if qos in (LSR, LSE):
        found += _whole_cpus(requests.get(CPU, 0))
    return found


def _changes(pod: Pod, old: Pod, *, sub_priority_may_change: bool) -> list[str]:
    labels, before = pod.metadata.labels, old.metadata.labels
    found = []
    if (qos := qos_raw(labels)) != qos_raw(before):
        found.append(invalid(_QOS_PATH, qos, _IMMUTABLE))
    priority_class = priority_class_raw(labels, pod.spec.priority)
    if priority_class != priority_class_raw(before, old.spec.priority):
        found.append(invalid("spec.priority", priority_class, _IMMUTABLE))
    if not sub_priority_may_change and labels.get(L_PRIORITY, "") != before.get(L_PRIORITY, ""):
        found.append(invalid(f"labels.{L_PRIORITY}", labels.get(L_PRIORITY, ""), _IMMUTABLE))
    return found


def _whole_cpus(cpu_milli: int) -> list[str]:
    """Return the errors in the CPU request. The texts say LSR for LSE too, as upstream's do."""
    if cpu_milli == 0:
        return [required(_REQUESTS_PATH, "LSR Pod must declare the requested CPUs")]
    if cpu_milli % _CORE_MILLI:
        shown = str(Quantity.from_milli(cpu_milli))
        return [invalid(_REQUESTS_PATH, shown, "the requested CPUs of LSR Pod must be integer")]
    return []
