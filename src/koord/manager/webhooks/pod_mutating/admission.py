"""The mutating admission of pods: profiles first, then what follows from the resources that the pod ends up with.

Only CREATE changes anything. The first step that fails ends the request.
"""

from __future__ import annotations

import msgspec

from koord.api.admission import AdmissionRequest
from koord.api.merge.pod_shape import POD
from koord.api.model import convert
from koord.api.pod import Pod
from koord.api.pod_qos import pod_qos
from koord.manager.webhooks.draft import Obj, part, read, verdict
from koord.manager.webhooks.pod_mutating.device import with_device_shapes
from koord.manager.webhooks.pod_mutating.extended_spec import with_extended_spec
from koord.manager.webhooks.pod_mutating.pool import with_pool_affinity
from koord.manager.webhooks.pod_mutating.translation import translated
from koord.manager.webhooks.profile.application import Target, applied
from koord.manager.webhooks.profile.match import is_left_out, matching
from koord.manager.webhooks.verdict import Allowed, Denied, Verdict
from koord.manager.webhooks.world import View
from koord.policy.qos.classes import priority_class_raw, priority_class_with_default, qos_raw
from koord.values.quantity import QuantityError

TARGET = Target(model=Pod, shape=POD, pod_spec=("spec",))


def admit(request: AdmissionRequest, view: View) -> Verdict:
    given = request.object
    if request.resource.resource != "pods" or request.sub_resource or request.operation != "CREATE" or given is None:
        return Allowed()
    try:
        given, pod = read(given, Pod)
    except msgspec.ValidationError as error:
        return Denied(400, str(error))
    namespace = pod.metadata.namespace or request.namespace
    if namespace in view.excluded:
        return Allowed()
    try:
        made = _profiled(dict(given), pod, namespace, view)
        if isinstance(made, dict) and not view.gates["DisableExtendedResourceSpec"]:
            made = with_extended_spec(made)
        if isinstance(made, dict) and view.gates["MultiQuotaTree"]:
            made = with_pool_affinity(made, namespace, view)
        if isinstance(made, dict) and not view.gates["DisableDeviceResourceSpec"]:
            made = with_device_shapes(made)
    except QuantityError as error:
        return Denied(400, str(error))
    return made if isinstance(made, Denied) else verdict(given, made)


def _profiled(obj: Obj, pod: Pod, namespace: str, view: View) -> Obj | Denied:
    """Apply the matching profiles. Selectors see the pod as it was sent.

    One match is enough for translation, even if the probability skips the pod.
    """
    found = matching(view.profiles, pod.metadata.labels, namespace, view.namespace_labels)
    for profile in found:
        if profile.bad_probability:
            return Denied(500, profile.bad_probability)
        if is_left_out(profile, view.draw):
            continue
        made = applied(obj, profile, TARGET, view.priority_class)
        if isinstance(made, Denied):
            return made
        obj = made
    kept = view.gates["ColocationProfileSkipMutatingResources"] or any(profile.keeps_resources for profile in found)
    return obj if kept or not found else translated(obj, _priority_class(obj))


def _priority_class(obj: Obj) -> str:
    labels, spec = part(obj, "metadata", "labels"), part(obj, "spec")
    stated = priority_class_raw(labels, spec.get("priority"))
    if stated:
        return stated
    # Kubernetes' own class is looked at last, because it takes a typed pod.
    kube_qos = "" if qos_raw(labels) else pod_qos(convert(obj, Pod))
    return priority_class_with_default(labels, spec.get("priority"), kube_qos)
