"""The validating admission of pods in stages: the first that finds an error answers.

Charging a quota (EnableQuotaAdmission) writes, so it cannot be done here. It comes after all of this: a
denied pod
must not use up what others need.
"""

from __future__ import annotations

import msgspec

from koord.api.admission import AdmissionRequest
from koord.api.model import convert
from koord.api.pod import Pod
from koord.api.protocol import A_RESERVE_POD
from koord.manager.webhooks.pod_validating import colocation, device, quota, required_label
from koord.manager.webhooks.pod_validating.complaint import forbidden, joined
from koord.manager.webhooks.verdict import Allowed, Denied, Verdict
from koord.manager.webhooks.world import View
from koord.values.quantity import QuantityError


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The decoded pods of a request."""

    pod: Pod
    old: Pod | None  # on UPDATE
    namespace: str


def subject(request: AdmissionRequest, view: View) -> Subject | Verdict:
    """Decode the request, or return the decision on one that is not checked or cannot be decoded."""
    if request.resource.resource != "pods" or request.sub_resource or request.operation not in ("CREATE", "UPDATE"):
        return Allowed()
    try:
        pod = convert(request.object or {}, Pod)
        old = convert(request.old_object or {}, Pod) if request.operation == "UPDATE" else None
    except msgspec.ValidationError as error:
        return Denied(400, str(error))
    namespace = pod.metadata.namespace or request.namespace
    return Allowed() if namespace in view.excluded else Subject(pod=pod, old=old, namespace=namespace)


def admit(request: AdmissionRequest, view: View) -> Verdict:
    about = subject(request, view)
    if not isinstance(about, Subject):
        return about
    try:
        why = _complaint(about, view)
    except QuantityError as error:
        why = str(error)
    return Denied(400, why) if why else Allowed()


def _complaint(about: Subject, view: View) -> str | None:
    pod, old, gates = about.pod, about.old, view.gates
    if A_RESERVE_POD in pod.metadata.annotations:
        return forbidden(f"annotations.{A_RESERVE_POD}", "cannot set in annotations")
    movable = gates["ColocationProfileSkipValidatingPriority"]
    if wrong := colocation.complaints(pod, old, sub_priority_may_change=movable):
        return joined(wrong)
    if linked := quota.complaint(pod, old, about.namespace, view.quotas, gates):
        return linked
    if gates["ValidatePodDeviceResource"] and (wrong := device.complaints(pod.spec)):
        return joined(wrong)
    if gates["EnablePodEnhancedValidator"]:
        return required_label.complaint(pod.metadata.labels, about.namespace, view.rules)
    return None
