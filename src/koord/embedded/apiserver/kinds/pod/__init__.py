"""This package holds the strategy of Pod, made up of defaults, spec validation and update rules."""

from __future__ import annotations

from typing import Any

from koord.api.model import convert
from koord.api.pod import PodSpec
from koord.api.pod_qos import qos_class
from koord.embedded.apiserver.kinds.pod.defaults import default_pod
from koord.embedded.apiserver.kinds.pod.label_key import merge_label_keys
from koord.embedded.apiserver.kinds.pod.spec import pod_only_errors, spec_errors
from koord.embedded.apiserver.kinds.pod.update import prepare_update, update_errors
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.refusal import FieldError

Obj = dict[str, Any]


def _quality(spec: Obj) -> str:
    listed = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    if "resources" not in spec and not any(container.get("resources") for container in listed):
        return "BestEffort"
    return qos_class(convert(spec, PodSpec))


def _prepare_create(pod: Obj) -> None:
    meta, spec = pod["metadata"], pod["spec"]
    meta["generation"] = 1
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1
    merge_label_keys(spec, meta.get("labels") or {})
    status: Obj = {"phase": "Pending", "qosClass": _quality(spec)}
    if spec.get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": meta["creationTimestamp"],
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]
    pod["status"] = status


def _prepare_status(new: Obj, old: Obj) -> None:
    """Keep the QoS class, which is fixed at creation: a status that leaves it out does not change it."""
    status = new.setdefault("status", {})
    if not status.get("qosClass"):
        status["qosClass"] = old.get("status", {}).get("qosClass") or _quality(old["spec"])


def _create_errors(pod: Obj) -> list[FieldError]:
    return spec_errors(pod["spec"], "spec", pod["metadata"]["name"]) + pod_only_errors(pod["spec"], creating=True)


POD = Strategy(
    default=default_pod,
    prepare_create=_prepare_create,
    prepare_update=prepare_update,
    prepare_status=_prepare_status,
    validate_create=_create_errors,
    validate_update=update_errors,
    fields={
        "spec.nodeName": lambda pod: str(pod["spec"].get("nodeName", "")),
        "spec.restartPolicy": lambda pod: str(pod["spec"].get("restartPolicy", "")),
        "spec.schedulerName": lambda pod: str(pod["spec"].get("schedulerName", "")),
        "spec.serviceAccountName": lambda pod: str(pod["spec"].get("serviceAccountName", "")),
        "spec.hostNetwork": lambda pod: "true" if pod["spec"].get("hostNetwork") else "false",
        "status.phase": lambda pod: str(pod.get("status", {}).get("phase", "")),
        "status.podIP": lambda pod: str(pod.get("status", {}).get("podIP", "")),
        "status.nominatedNodeName": lambda pod: str(pod.get("status", {}).get("nominatedNodeName", "")),
    },
)
