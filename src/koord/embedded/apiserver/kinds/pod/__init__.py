"""This package holds the strategy of Pod, made up of defaults, spec validation and update rules."""

from __future__ import annotations

from koord.api.kubernetes.pod import PodSpec
from koord.api.kubernetes.pod_resources import compute_qos_class
from koord.api.model import Obj, convert
from koord.embedded.apiserver.api_errors import ApiFieldError
from koord.embedded.apiserver.kinds.pod.defaults import default_pod
from koord.embedded.apiserver.kinds.pod.scheduling import merge_label_keys
from koord.embedded.apiserver.kinds.pod.spec import pod_only_errors, pod_spec_errors
from koord.embedded.apiserver.kinds.pod.update import pod_update_errors, prepare_pod_update
from koord.embedded.apiserver.kinds.strategy import KindStrategy, begin_generation


def _qos_class(spec: Obj) -> str:
    listed = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    if "resources" not in spec and not any(container.get("resources") for container in listed):
        return "BestEffort"
    return compute_qos_class(convert(spec, PodSpec))


def _prepare_create(pod: Obj) -> None:
    meta, spec = pod["metadata"], pod["spec"]
    begin_generation(pod)
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1
    merge_label_keys(spec, meta.get("labels") or {})
    status: Obj = {"phase": "Pending", "qosClass": _qos_class(spec)}
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
        status["qosClass"] = old.get("status", {}).get("qosClass") or _qos_class(old["spec"])


def _create_errors(pod: Obj) -> list[ApiFieldError]:
    return pod_spec_errors(pod["spec"], "spec", pod["metadata"]["name"]) + pod_only_errors(pod["spec"], creating=True)


POD = KindStrategy(
    default=default_pod,
    prepare_create=_prepare_create,
    prepare_update=prepare_pod_update,
    prepare_status=_prepare_status,
    validate_create=_create_errors,
    validate_update=pod_update_errors,
    selectable_fields={
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
