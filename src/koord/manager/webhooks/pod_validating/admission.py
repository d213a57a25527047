"""The validating admission of pods in stages: the first that finds an error answers.

Charging a quota (EnableQuotaAdmission) writes, so it cannot be done here. It comes after all of this: a
denied pod
must not use up what others need.
"""

from __future__ import annotations

import msgspec

from koord.api.koordinator.protocol import A_RESERVE_POD
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionContext, AdmissionDecision, AdmissionDenied
from koord.manager.webhooks.pod_validating import required_labels, rules
from koord.manager.webhooks.pod_validating.rules import forbidden_field
from koord.values.go_format import join_errors
from koord.values.quantity_syntax import QuantityError


class PodReviewSubject(msgspec.Struct, frozen=True, kw_only=True):
    """The decoded pods of a request."""

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


def validate_pod(request: AdmissionRequest, context: AdmissionContext) -> AdmissionDecision:
    about = decode_subject(request, context)
    if not isinstance(about, PodReviewSubject):
        return about
    try:
        why = _first_error(about, context)
    except QuantityError as error:
        why = str(error)
    return AdmissionDenied(400, why) if why else AdmissionAllowed()


def _first_error(about: PodReviewSubject, context: AdmissionContext) -> str | None:
    pod, old, gates = about.pod, about.old, context.gates
    if A_RESERVE_POD in pod.metadata.annotations:
        return forbidden_field(f"annotations.{A_RESERVE_POD}", "cannot set in annotations")
    movable = gates["ColocationProfileSkipValidatingPriority"]
    if wrong := rules.colocation_errors(pod, old, sub_priority_may_change=movable):
        return join_errors(wrong)
    if linked := rules.quota_error(pod, old, about.namespace, context.quotas, gates):
        return linked
    if gates["ValidatePodDeviceResource"] and (wrong := rules.gpu_errors(pod.spec)):
        return join_errors(wrong)
    if gates["EnablePodEnhancedValidator"]:
        return required_labels.missing_label_error(pod.metadata.labels, about.namespace, context.rules)
    return None
