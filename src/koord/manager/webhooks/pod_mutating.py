"""The mutating admission of pods: profiles first, then what follows from the resulting resources.

Only CREATE changes anything. The first step that fails ends the request.

The mutating admission of reservations reads the same caches, the admission context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.api.annotations.pod_codecs import ExtendedResources, ExtendedResourceSpec, parse_extended_resource_spec
from koord.api.koordinator.protocol import A_EXTENDED_RESOURCE_SPEC, L_QUOTA_NAME
from koord.api.koordinator.resource_name import (
    BATCH_CPU,
    BATCH_MEMORY,
    CPU,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    TIER_RESOURCE_NAMES,
)
from koord.api.koordinator.scheduling import Reservation
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_policy import PriorityClass
from koord.api.kubernetes.pod_resources import recorded_qos_class
from koord.api.model import ResourceList, convert
from koord.api.patch.strategic_merge import POD_MERGE_SCHEMA, RESERVATION_MERGE_SCHEMA
from koord.manager.webhooks import admission, colocation_profile
from koord.manager.webhooks.admission import (
    SYSTEM_NAMESPACES,
    AdmissionAllowed,
    AdmissionDecision,
    AdmissionDenied,
    PlainObject,
    allow_with_changes,
    decode_object,
    readable,
    writable,
)
from koord.manager.webhooks.colocation_profile import (
    ObjectLayout,
    apply_profile,
    is_skipped_by_probability,
    matching_profiles,
)
from koord.policy.qos import priority_class_raw, priority_class_with_default, qos_raw
from koord.values import resources as vector
from koord.values.quantity import Quantity, QuantityError


class QuotaLookup(Protocol):
    """The part of the quota topology that pods need; QuotaTopology implements it."""

    def quota_of(self, labels: Mapping[str, str], namespace: str, *, default: bool = True) -> str:
        """Return the name of a pod's quota, which need not exist. Without `default` only the label counts."""

    def get(self, name: str) -> object | None: ...

    def is_parent(self, name: str) -> bool: ...

    def tree_id(self, name: str) -> str: ...

    def owner_of(self, namespace: str) -> str | None:
        """Return the quota whose annotation lists the namespace."""


class AdmissionContext(msgspec.Struct, frozen=True, kw_only=True):
    """AdmissionContext is what is known at a request, cheap to build: compiled profiles and cache lookups."""

    gates: Mapping[str, bool]
    profiles: tuple[colocation_profile.CompiledProfile, ...]  # in the order of their names
    namespace_labels: Callable[[str], Mapping[str, str] | None]
    priority_class: Callable[[str], PriorityClass | None]
    draw: Callable[[], int]  # 0 to 99, for profiles with a probability
    quotas: QuotaLookup
    node_selector_of_tree: Callable[[str], LabelSelector | None]  # nodeSelector of the tree's first ElasticQuotaProfile
    excluded: frozenset[str] = SYSTEM_NAMESPACES  # namespaces that are left alone


RESERVATION_LAYOUT = colocation_profile.ObjectLayout(
    model=Reservation,
    merge_shape=RESERVATION_MERGE_SCHEMA,
    pod_spec=("spec", "template", "spec"),
    template=("spec", "template"),
)


def mutate_reservation(request: AdmissionRequest, context: AdmissionContext) -> admission.AdmissionDecision:
    """Apply profiles to the reservation itself and to its pod template.

    Namespace selectors are not evaluated, because a reservation has no namespace, and resources are not translated.
    """
    given = request.object
    ours = request.resource.resource == "reservations" and not request.sub_resource and request.operation == "CREATE"
    if not ours or given is None:
        return admission.AdmissionAllowed()
    try:
        given, reservation = admission.decode_object(given, Reservation)
    except msgspec.ValidationError as error:
        return admission.AdmissionDenied(400, str(error))
    made = dict(given)
    for profile in context.profiles:
        if not profile.pod_selector.matches(reservation.metadata.labels):
            continue
        if profile.bad_probability:
            return admission.AdmissionDenied(500, profile.bad_probability)
        if colocation_profile.is_skipped_by_probability(profile, context.draw):
            continue
        outcome = colocation_profile.apply_profile(made, profile, RESERVATION_LAYOUT, context.priority_class)
        if isinstance(outcome, admission.AdmissionDenied):
            return outcome
        made = outcome
    return admission.allow_with_changes(given, made)


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


def translate_resources(obj: PlainObject, priority_class: str) -> PlainObject:
    """Rename native cpu and memory of batch and mid pods to their tier's names. `obj` must be writable at its top
    level.

    Classes without a tier keep what they have.
    """
    names = TIER_RESOURCE_NAMES.get(priority_class)
    if names is None:
        return obj
    spec = writable(obj, "spec")
    for field in ("initContainers", "containers"):
        if spec.get(field):
            spec[field] = [_translate_container(container, names) for container in spec[field]]
    if spec.get("overhead"):
        spec["overhead"] = _rename_resources(spec["overhead"], names)
    return obj


def _translate_container(container: PlainObject, names: dict[str, str]) -> PlainObject:
    resources = readable(container, "resources")
    if not resources:
        return container
    requests = _rename_resources(readable(resources, "requests"), names)
    limits = _rename_resources(readable(resources, "limits"), names)
    for name in names.values():
        if name in limits and name not in requests:
            requests = {**requests, name: limits[name]}
    made = {**resources, "requests": requests, "limits": limits}
    return {**container, "resources": {key: value for key, value in made.items() if value or key in resources}}


def _rename_resources(listed: PlainObject, names: dict[str, str]) -> PlainObject:
    """Rename the resources; a native amount replaces one under the tier's name."""
    made = dict(listed)
    for native, extended in names.items():
        if native in made:
            amount = Quantity.parse(made.pop(native))
            made[extended] = str(Quantity.from_value(amount.milli_value()) if native == CPU else amount)
    return made


_BATCH_RESOURCES = (BATCH_CPU, BATCH_MEMORY)


def sync_extended_resource_spec(obj: PlainObject) -> PlainObject | AdmissionDenied:
    """Sync the annotation that repeats batch resources by container, for runtimes that see no extended resources.

    Normal containers only; an outdated annotation is rewritten, to `{}` if need be.
    """
    annotations = readable(obj, "metadata", "annotations")
    stated = parse_extended_resource_spec(annotations)
    if isinstance(stated, MalformedAnnotation):
        return AdmissionDenied(500, stated.reason)
    actual = _actual_spec(obj)
    if _is_same_spec(actual, stated or ExtendedResourceSpec()):
        return obj
    writable(obj, "metadata", "annotations")[A_EXTENDED_RESOURCE_SPEC] = dump_json(actual)
    return obj


def _actual_spec(obj: PlainObject) -> ExtendedResourceSpec:
    containers = {}
    for container in readable(obj, "spec").get("containers") or ():
        resources = readable(container, "resources")
        found = ExtendedResources(
            limits=_batch_amounts(readable(resources, "limits")),
            requests=_batch_amounts(readable(resources, "requests")),
        )
        if found.limits or found.requests:
            containers[container.get("name", "")] = found
    return ExtendedResourceSpec(containers=containers)


def _batch_amounts(listed: PlainObject) -> ResourceList:
    return {name: str(Quantity.parse(listed[name])) for name in _BATCH_RESOURCES if name in listed}


def _is_same_spec(a: ExtendedResourceSpec, b: ExtendedResourceSpec) -> bool:
    """Compare by amounts: 1k and 1000 are equal."""
    return a.containers.keys() == b.containers.keys() and all(
        vector.equals(vector.parse(mine.limits), vector.parse(b.containers[name].limits))
        and vector.equals(vector.parse(mine.requests), vector.parse(b.containers[name].requests))
        for name, mine in a.containers.items()
    )


_CARD_PERCENT = 100  # percent
_GPU_RESOURCES = frozenset({GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED})


def normalize_gpu_requests(obj: PlainObject) -> PlainObject:
    """Normalize GPU requests to percent of core and memory, and the number of cards.

    Normal containers only, as upstream; an init container's GPU request stays as it is.
    """
    containers = readable(obj, "spec").get("containers") or []
    shaped = [_normalize_container(container) for container in containers]
    if any(new is not old for new, old in zip(shaped, containers, strict=True)):
        writable(obj, "spec")["containers"] = shaped
    return obj


def _normalize_container(container: PlainObject) -> PlainObject:
    resources = readable(container, "resources")
    requests, limits = readable(resources, "requests"), readable(resources, "limits")
    if _GPU_RESOURCES.isdisjoint(requests) and _GPU_RESOURCES.isdisjoint(limits):
        return container
    if GPU not in requests and GPU_SHARED in requests:
        return container
    requests, limits = dict(requests), dict(limits)
    if GPU in requests:
        percent = str(Quantity.parse(requests[GPU]))
        for side in (requests, limits):
            side.pop(GPU, None)
            side[GPU_CORE] = side[GPU_MEMORY_RATIO] = percent
    if GPU_SHARED not in requests:
        requests[GPU_SHARED] = limits[GPU_SHARED] = str(_card_count(requests))
    return {**container, "resources": {**resources, "requests": requests, "limits": limits}}


def _card_count(requests: PlainObject) -> int:
    """Return whole cards when the share is a multiple of one; the memory share is read before the core share."""
    name = GPU_MEMORY_RATIO if GPU_MEMORY_RATIO in requests else GPU_CORE
    percent = Quantity.parse(requests.get(name, 0)).value()
    return percent // _CARD_PERCENT if percent > _CARD_PERCENT and percent % _CARD_PERCENT == 0 else 1
