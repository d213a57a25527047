"""The validating admission of pods, in stages: the first that finds fault answers.

Charging a quota (EnableQuotaAdmission) writes, so it cannot stand here. It belongs between `before_charge` and
`after_charge`; `charge` says whether there is anything to charge. Without that gate `admit` is the whole story.
"""

from __future__ import annotations

import msgspec

from koord.api.admission import AdmissionRequest
from koord.api.model import convert
from koord.api.pod import Pod
from koord.api.protocol import A_RESERVE_POD, DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA
from koord.manager.webhooks.pod_validating import colocation, device, quota, required_label
from koord.manager.webhooks.pod_validating.complaint import forbidden, joined
from koord.manager.webhooks.verdict import Allowed, Denied, Verdict
from koord.manager.webhooks.world import View
from koord.values.quantity import QuantityError

_UNCHARGED = ("", DEFAULT_QUOTA, SYSTEM_QUOTA, ROOT_QUOTA)


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is about, decoded once for all stages."""

    pod: Pod
    old: Pod | None  # on UPDATE
    namespace: str


def subject(request: AdmissionRequest, view: View) -> Subject | Verdict:
    """Or the verdict on a request that is none of ours, or that cannot be read."""
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
    first = before_charge(about, view)
    return first if isinstance(first, Denied) else after_charge(about, view)


def before_charge(about: Subject, view: View) -> Verdict:
    if A_RESERVE_POD in about.pod.metadata.annotations:
        return Denied(400, forbidden(f"annotations.{A_RESERVE_POD}", "cannot set in annotations"))
    try:
        wrong = colocation.complaints(
            about.pod, about.old, sub_priority_may_change=view.gates["ColocationProfileSkipValidatingPriority"]
        )
    except QuantityError as error:
        return Denied(400, str(error))
    if wrong:
        return Denied(400, joined(wrong))
    linked = quota.complaint(about.pod, about.old, about.namespace, view.quotas, view.gates)
    return Denied(400, linked) if linked else Allowed()


def charge(about: Subject, view: View) -> str | None:
    """The quota that the pod must be charged to, if any."""
    if not view.gates["EnableQuotaAdmission"]:
        return None
    name = quota.quota_of(about.pod, about.namespace, view.quotas, view.gates)
    if about.old is not None:
        if not view.gates["EnableQuotaAdmissionOnUpdate"]:
            return None
        if name == quota.quota_of(about.old, about.namespace, view.quotas, view.gates):
            return None
    return None if name in _UNCHARGED else name


def after_charge(about: Subject, view: View) -> Verdict:
    if view.gates["ValidatePodDeviceResource"]:
        try:
            wrong = device.complaints(about.pod.spec)
        except QuantityError as error:
            return Denied(400, str(error))
        if wrong:
            return Denied(400, joined(wrong))
    if view.gates["EnablePodEnhancedValidator"]:
        missing = required_label.complaint(about.pod.metadata.labels, about.namespace, view.rules)
        if missing:
            return Denied(400, missing)
    return Allowed()
