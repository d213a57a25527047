"""The validating admission of pods in stages: the first that finds an error answers.

Charging a quota (EnableQuotaAdmission) writes, so it cannot be done here. It comes after all of this: a denied pod must
not use up what others need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.koordinator import protocol, resource_name
from koord.api.koordinator.protocol import BE, LSE, LSR
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.pod import Container, Pod, PodSpec
from koord.api.kubernetes.pod_resources import pod_requests
from koord.api.model import Model, convert, decode
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDecision, AdmissionDenied
from koord.manager.webhooks.pod_mutating import AdmissionContext, QuotaLookup
from koord.policy.qos import illegal_combination, is_legal, priority_class_raw, qos_raw
from koord.values.go_format import join_errors, quoted
from koord.values.quantity import ZERO, Quantity, QuantityError


class PodReviewSubject(msgspec.Struct, frozen=True, kw_only=True):
    pod: Pod
    old: Pod | None  # on UPDATE
    namespace: str


def decode_subject(request: AdmissionRequest, context: AdmissionContext) -> PodReviewSubject | AdmissionDecision:
    """Decode the request, or return the decision on one that is not checked or cannot be decoded."""
    if request.resource.resource != "pods" or request.sub_resource or request.operation not in ("CREATE", "UPDATE"):
        return AdmissionAllowed()
    try:
        pod = convert(request.object or {}, Pod)
        old = convert(request.old_object or {}, Pod) if request.operation == "UPDATE" else None
    except msgspec.ValidationError as error:
        return AdmissionDenied(400, str(error))
    namespace = pod.metadata.namespace or request.namespace
    return (
        AdmissionAllowed() if namespace in context.excluded else PodReviewSubject(pod=pod, old=old, namespace=namespace)
    )


def validate_pod(
    request: AdmissionRequest, context: AdmissionContext, rules: Iterable[RequiredLabelRule] = ()
) -> AdmissionDecision:
    """Validate the pod. `rules` are those of the enhanced validator; none while it is switched off."""
    about = decode_subject(request, context)
    if not isinstance(about, PodReviewSubject):
        return about
    try:
        why = _first_error(about, context, rules)
    except QuantityError as error:
        why = str(error)
    return AdmissionDenied(400, why) if why else AdmissionAllowed()


def _first_error(about: PodReviewSubject, context: AdmissionContext, rules: Iterable[RequiredLabelRule]) -> str | None:
    pod, old, gates = about.pod, about.old, context.gates
    if protocol.A_RESERVE_POD in pod.metadata.annotations:
        return forbidden_field(f"annotations.{protocol.A_RESERVE_POD}", "cannot set in annotations")
    movable = gates["ColocationProfileSkipValidatingPriority"]
    if wrong := colocation_errors(pod, old, sub_priority_may_change=movable):
        return join_errors(wrong)
    if linked := quota_error(pod, old, about.namespace, context.quotas, gates):
        return linked
    if gates["ValidatePodDeviceResource"] and (wrong := gpu_errors(pod.spec)):
        return join_errors(wrong)
    if gates["EnablePodEnhancedValidator"]:
        return missing_label_error(pod.metadata.labels, about.namespace, rules)
    return None


def invalid_value(path: str, value: str, why: str) -> str:
    return f"{path}: Invalid value: {quoted(value)}: {why}"


def required_value(path: str, why: str) -> str:
    return f"{path}: Required value: {why}"


def forbidden_field(path: str, why: str) -> str:
    return f"{path}: Forbidden: {why}"


_QOS_PATH = f"labels.{protocol.L_QOS_CLASS}"
_REQUESTS_PATH = "pod.spec.containers[*].resources.requests"
_IMMUTABLE = "field is immutable"
_CORE_MILLI = 1000


def colocation_errors(pod: Pod, old: Pod | None, *, sub_priority_may_change: bool) -> list[str]:
    """Return the errors in a pod's classes: they never change, they fit each other, and they fit the requests.

    `old` is the pod before an update. Raise QuantityError.
    """
    labels = pod.metadata.labels
    qos, priority_class = qos_raw(labels), priority_class_raw(labels, pod.spec.priority)
    found = [] if old is None else _immutability_errors(pod, old, sub_priority_may_change=sub_priority_may_change)
    requests = pod_requests(pod.spec)
    if qos != BE and (requests.get(resource_name.BATCH_CPU) or requests.get(resource_name.BATCH_MEMORY)):
        found.append(required_value(_QOS_PATH, "must specify koordinator QoS BE with koordinator colocation resources"))
    if not is_legal(qos, priority_class):
        found.append(forbidden_field("Pod", illegal_combination(qos, priority_class)))
    if qos in (LSR, LSE):
        found += _whole_cpu_errors(requests.get(resource_name.CPU, 0))
    return found


def _immutability_errors(pod: Pod, old: Pod, *, sub_priority_may_change: bool) -> list[str]:
    labels, before = pod.metadata.labels, old.metadata.labels
    found = []
    if (qos := qos_raw(labels)) != qos_raw(before):
        found.append(invalid_value(_QOS_PATH, qos, _IMMUTABLE))
    priority_class = priority_class_raw(labels, pod.spec.priority)
    if priority_class != priority_class_raw(before, old.spec.priority):
        found.append(invalid_value("spec.priority", priority_class, _IMMUTABLE))
    if not sub_priority_may_change and labels.get(protocol.L_PRIORITY, "") != before.get(protocol.L_PRIORITY, ""):
        found.append(invalid_value(f"labels.{protocol.L_PRIORITY}", labels.get(protocol.L_PRIORITY, ""), _IMMUTABLE))
    return found


def _whole_cpu_errors(cpu_milli: int) -> list[str]:
    """Return the errors in the CPU request. The texts say LSR for LSE too, as upstream's do."""
    if cpu_milli == 0:
        return [required_value(_REQUESTS_PATH, "LSR Pod must declare the requested CPUs")]
    if cpu_milli % _CORE_MILLI:
        shown = str(Quantity.from_milli(cpu_milli))
        return [invalid_value(_REQUESTS_PATH, shown, "the requested CPUs of LSR Pod must be integer")]
    return []


_CARD_PERCENT = 100  # percent
_GPU_NOT_ZERO = "the requested GPU must be greater than zero"


def gpu_errors(spec: PodSpec) -> list[str]:
    """Return the GPU requests that no card could satisfy, of normal containers as upstream. Raise QuantityError."""
    return [found for container in spec.containers for found in _container_gpu_errors(container)]


def _container_gpu_errors(container: Container) -> list[str]:
    requests = {name: Quantity.parse(text) for name, text in container.resources.requests.items()}
    percent, shared = requests.get(resource_name.GPU), requests.get(resource_name.GPU_SHARED)
    if percent is not None and shared is not None:
        return [forbidden_field(_REQUESTS_PATH, "Forbidden declare GPU and GPU share at same time")]
    if percent is not None:
        return _gpu_percent_errors(percent)
    return _gpu_share_errors(requests, shared) if shared is not None else []


def _gpu_percent_errors(percent: Quantity) -> list[str]:
    if percent.is_zero():
        return [invalid_value(_REQUESTS_PATH, str(percent), _GPU_NOT_ZERO)]
    if percent.value() > _CARD_PERCENT and percent.value() % _CARD_PERCENT:
        return [invalid_value(_REQUESTS_PATH, str(percent), "the requested GPU must be percentage of 100")]
    return []


def _gpu_share_errors(requests: dict[str, Quantity], shared: Quantity) -> list[str]:
    if shared.is_zero():
        return [invalid_value(_REQUESTS_PATH, str(shared), _GPU_NOT_ZERO)]
    if not requests.get(resource_name.NPU_CORE, ZERO).is_zero():
        return []
    memory, ratio = requests.get(resource_name.GPU_MEMORY, ZERO), requests.get(resource_name.GPU_MEMORY_RATIO, ZERO)
    core = requests.get(resource_name.GPU_CORE, ZERO)
    found = []
    if memory.is_zero() and ratio.is_zero():
        found.append(forbidden_field(_REQUESTS_PATH, "GPU memory and GPU memory ratio all is zero"))
    if not memory.is_zero() and not ratio.is_zero():
        found.append(forbidden_field(_REQUESTS_PATH, "declare GPU memory and GPU memory ratio at same time"))
    if core.value() % shared.value():
        found.append(invalid_value(_REQUESTS_PATH, str(core), "the requested gpuCore must multiple of shared"))
    if ratio.value() % shared.value():
        found.append(invalid_value(_REQUESTS_PATH, str(ratio), "the requested gpuMemoryRatio must multiple of shared"))
    return found


def quota_error(
    pod: Pod, old: Pod | None, namespace: str, quotas: QuotaLookup, gates: Mapping[str, bool]
) -> str | None:
    """Return the error in the pod's quota: its preemptible label is fixed, and a parent quota takes no pods."""
    labels = pod.metadata.labels
    if old is not None and labels.get(protocol.L_QUOTA_PREEMPTIBLE, "") != old.metadata.labels.get(
        protocol.L_QUOTA_PREEMPTIBLE, ""
    ):
        return "Preemptible label is forbidden modify now."
    if gates["SupportParentQuotaSubmitPod"]:
        return None
    name = quotas.quota_of(labels, namespace, default=not gates["DisableDefaultQuota"])
    if quotas.is_parent(name):
        return f"pod can not be linked to a parentQuotaGroup,quota:{name}, pod:{pod.metadata.name}"
    return None


class RequiredLabelRule(Model, frozen=True, kw_only=True):
    name: str = ""
    required_labels: tuple[str, ...] = ()
    namespace_whitelist: tuple[str, ...] = ()


def parse_rules(data: Mapping[str, str]) -> tuple[RequiredLabelRule, ...]:
    """Parse the rules of the ConfigMap; none when `enable` is not true. Raise msgspec.DecodeError.

    A caller that cannot read new rules keeps the old ones.
    """
    if data.get("enable", "").strip().lower() != protocol.TRUE:
        return ()
    text = data.get("rules", "")
    return decode(text.encode(), tuple[RequiredLabelRule, ...]) if text.strip() else ()


def missing_label_error(labels: Mapping[str, str], namespace: str, demanded: Iterable[RequiredLabelRule]) -> str | None:
    if labels.get(protocol.L_SKIP_ENHANCED_VALIDATION) == protocol.TRUE:
        return None
    for rule in demanded:
        missing = [] if namespace in rule.namespace_whitelist else [k for k in rule.required_labels if k not in labels]
        if len(missing) == 1:
            return f"required label '{missing[0]}' is missing"
        if missing:
            return f"required labels are missing: [{' '.join(missing)}]"
    return None
