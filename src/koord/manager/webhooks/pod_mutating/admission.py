"""The mutating admission of pods: profiles first, then what follows from the resulting resources.

Only CREATE changes anything. The first step that fails ends the request.
"""

from __future__ import annotations

import msgspec

from koord.api.koordinator.protocol import L_QUOTA_NAME
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import recorded_qos_class
from koord.api.model import convert
from koord.api.patch.merge_schema import POD_MERGE_SCHEMA
from koord.manager.webhooks.admission import (
    AdmissionAllowed,
    AdmissionContext,
    AdmissionDecision,
    AdmissionDenied,
    QuotaLookup,
)
from koord.manager.webhooks.colocation_profile.application import ObjectLayout, apply_profile
from koord.manager.webhooks.colocation_profile.compiled import is_skipped_by_probability, matching_profiles
from koord.manager.webhooks.copy_on_write import PlainObject, allow_with_changes, decode_object, readable, writable
from koord.manager.webhooks.pod_mutating.resources import (
    normalize_gpu_requests,
    sync_extended_resource_spec,
    translate_resources,
)
from koord.policy.qos import priority_class_raw, priority_class_with_default, qos_raw
from koord.values.quantity_syntax import QuantityError

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def add_quota_tree_affinity(obj: PlainObject, namespace: str, context: AdmissionContext) -> PlainObject:
    """Keep pods of a quota tree on its nodes: add the tree's node selector as required node affinity."""
    tree = _quota_tree_id(readable(obj, "metadata", "labels").get(L_QUOTA_NAME) or namespace, namespace, context.quotas)
    selector = context.node_selector_of_tree(tree) if tree else None
    if selector is None:
        return obj
    wanted = _selector_requirements(selector)
    if not wanted:  # a term without requirements would match no node at all
        return obj
    required = writable(obj, "spec", "affinity", "nodeAffinity", _REQUIRED)
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *wanted]} for term in terms
    ]
    return obj


def _quota_tree_id(quota: str, namespace: str, quotas: QuotaLookup) -> str:
    """Return the tree of the quota; one that is known by name decides, even when it is in no tree."""
    if quotas.get(quota) is not None:
        return quotas.tree_id(quota)
    owner = quotas.owner_of(namespace)
    return quotas.tree_id(owner) if owner else ""


def _selector_requirements(selector: LabelSelector) -> list[PlainObject]:
    made: list[PlainObject] = [
        {"key": key, "operator": "In", "values": [value]} for key, value in sorted(selector.match_labels.items())
    ]
    for expression in selector.match_expressions:
        one: PlainObject = {"key": expression.key, "operator": expression.operator}
        if expression.values:
            one["values"] = list(expression.values)
        made.append(one)
    return made


POD_LAYOUT = ObjectLayout(model=Pod, merge_shape=POD_MERGE_SCHEMA, pod_spec=("spec",))


def mutate_pod(request: AdmissionRequest, context: AdmissionContext) -> AdmissionDecision:
    given = request.object
    if request.resource.resource != "pods" or request.sub_resource or request.operation != "CREATE" or given is None:
        return AdmissionAllowed()
    try:
        given, pod = decode_object(given, Pod)
    except msgspec.ValidationError as error:
        return AdmissionDenied(400, str(error))
    namespace = pod.metadata.namespace or request.namespace
    if namespace in context.excluded:
        return AdmissionAllowed()
    try:
        made = _apply_profiles(dict(given), pod, namespace, context)
        if isinstance(made, dict) and not context.gates["DisableExtendedResourceSpec"]:
            made = sync_extended_resource_spec(made)
        if isinstance(made, dict) and context.gates["MultiQuotaTree"]:
            made = add_quota_tree_affinity(made, namespace, context)
        if isinstance(made, dict) and not context.gates["DisableDeviceResourceSpec"]:
            made = normalize_gpu_requests(made)
    except QuantityError as error:
        return AdmissionDenied(400, str(error))
    return made if isinstance(made, AdmissionDenied) else allow_with_changes(given, made)


def _apply_profiles(
    obj: PlainObject, pod: Pod, namespace: str, context: AdmissionContext
) -> PlainObject | AdmissionDenied:
    """Apply the matching profiles. Selectors see the pod as it was sent.

    One match is enough for translation, even if the probability skips the pod.
    """
    found = matching_profiles(context.profiles, pod.metadata.labels, namespace, context.namespace_labels)
    for profile in found:
        if profile.bad_probability:
            return AdmissionDenied(500, profile.bad_probability)
        if is_skipped_by_probability(profile, context.draw):
            continue
        made = apply_profile(obj, profile, POD_LAYOUT, context.priority_class)
        if isinstance(made, AdmissionDenied):
            return made
        obj = made
    kept = context.gates["ColocationProfileSkipMutatingResources"] or any(profile.keeps_resources for profile in found)
    return obj if kept or not found else translate_resources(obj, _priority_class(obj))


def _priority_class(obj: PlainObject) -> str:
    labels, spec = readable(obj, "metadata", "labels"), readable(obj, "spec")
    stated = priority_class_raw(labels, spec.get("priority"))
    if stated:
        return stated
    # Kubernetes' own class is looked at last, because it takes a typed pod.
    kube_qos = "" if qos_raw(labels) else recorded_qos_class(convert(obj, Pod))
    return priority_class_with_default(labels, spec.get("priority"), kube_qos)
