"""This package holds the strategy of Pod, made up of defaults, spec validation and update rules.

This module decides what an update may change in a pod: images, deadlines, tolerations, more while it is gated.
"""

from __future__ import annotations

from collections.abc import Iterator

from koord.api.kubernetes.pod import PodSpec
from koord.api.kubernetes.pod_resources import compute_qos_class
from koord.api.model import Obj, convert
from koord.embedded.apiserver.api_errors import ApiFieldError, forbidden_field, invalid_value, required
from koord.embedded.apiserver.kinds.internal_types import internal_diff, to_internal
from koord.embedded.apiserver.kinds.pod.defaults import default_pod
from koord.embedded.apiserver.kinds.pod.scheduling import merge_label_keys, toleration_errors
from koord.embedded.apiserver.kinds.pod.spec import pod_only_errors, pod_spec_errors
from koord.embedded.apiserver.kinds.strategy import KindStrategy, begin_generation, copy_or_drop
from koord.embedded.apiserver.kinds.validators import between

_IMMUTABLE_SPEC = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_DEADLINE = between(0, 2147483647)


def prepare_pod_update(new: Obj, old: Obj) -> None:
    if (new["spec"].get("terminationGracePeriodSeconds") or 0) < 0:
        new["spec"]["terminationGracePeriodSeconds"] = 1
    if new.get("spec") != old.get("spec") and "generation" in old["metadata"]:
        new["metadata"]["generation"] = old["metadata"]["generation"] + 1


def pod_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    spec, before = new["spec"], old["spec"]
    if spec == before:
        return []
    errors = pod_spec_errors(spec, "spec", new["metadata"]["name"], updating=True) + pod_only_errors(
        spec, creating=False
    )
    for key in ("containers", "initContainers"):
        if len(spec.get(key) or ()) != len(before.get(key) or ()):
            detail = "pod updates may not add or remove containers"
            return [*errors, forbidden_field(f"spec.{key}", detail)]
    for key in ("containers", "initContainers"):
        for i, container in enumerate(spec.get(key) or ()):
            image = container.get("image", "")
            at = f"spec.{key}[{i}].image"
            if not image:
                errors.append(required(at))
            elif image != image.strip():
                errors.append(invalid_value(at, image, "must not have leading or trailing whitespace"))
    errors += _active_deadline_errors(spec.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds"))
    munged = _with_mutable_fields_of(spec, before)
    gates_before = _gate_names(before)
    errors += [
        forbidden_field(
            f"spec.schedulingGates[{i}].name", f"only deletion is allowed, but found new scheduling gate '{name}'"
        )
        for i, name in enumerate(_gate_names(spec))
        if name not in gates_before
    ]
    if gates_before:
        errors += _gated_pod_errors(munged, spec, before)
    errors += _toleration_change_errors(spec, before)
    if munged != before:
        errors.append(forbidden_field("spec", f"{_IMMUTABLE_SPEC}\n{internal_diff('PodSpec', before, munged)}"))
    return errors


def _gate_names(spec: Obj) -> list[str]:
    return [gate.get("name", "") for gate in spec.get("schedulingGates") or ()]


def _active_deadline_errors(new: int | None, old: int | None) -> list[ApiFieldError]:
    at = "spec.activeDeadlineSeconds"
    if new is not None:
        errors = list(_DEADLINE(new, at))
        if not errors and old is not None and old < new:
            errors.append(invalid_value(at, new, "must be less than or equal to previous value"))
        return errors
    if old is not None:
        return [invalid_value(at, None, "must not update from a positive integer to nil value")]
    return []


def _with_mutable_fields_of(spec: Obj, before: Obj) -> Obj:
    """Return the new spec with every mutable field taken from the old one: what still differs is forbidden."""
    munged = dict(spec)
    for key in ("containers", "initContainers"):
        if spec.get(key):
            munged[key] = [
                {**container, "image": was.get("image", "")}
                for container, was in zip(spec[key], before[key], strict=True)
            ]
    for key in ("activeDeadlineSeconds", "schedulingGates", "tolerations"):
        copy_or_drop(munged, before, key)
    if (before.get("terminationGracePeriodSeconds") or 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        copy_or_drop(munged, before, "terminationGracePeriodSeconds")
    return munged


def _toleration_change_errors(spec: Obj, before: Obj) -> list[ApiFieldError]:
    kept = spec.get("tolerations") or []
    for old in before.get("tolerations") or ():
        if not any(_is_same_toleration(new, old) for new in kept):
            detail = "existing toleration can not be modified except its tolerationSeconds"
            return [forbidden_field("spec.tolerations", detail)]
    return list(toleration_errors(kept, "spec.tolerations"))


def _is_same_toleration(new: Obj, old: Obj) -> bool:
    return {**new, "tolerationSeconds": None} == {**old, "tolerationSeconds": None}


# Gated pods --------------------------------------------------------------------------------------------------------


def _gated_pod_errors(munged: Obj, spec: Obj, before: Obj) -> Iterator[ApiFieldError]:
    """Return errors for changes that do not narrow a gated pod's node selector or required node affinity terms."""
    selector, was = spec.get("nodeSelector") or {}, before.get("nodeSelector") or {}
    if any(selector.get(key) != value for key, value in was.items()):
        detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        yield invalid_value("spec.nodeSelector", selector or None, detail)
    copy_or_drop(munged, before, "nodeSelector")
    affinity, affinity_was = _node_affinity(spec), _node_affinity(before)
    if affinity != affinity_was:
        if affinity_was is not None:
            yield from _narrowing_errors(affinity or {}, affinity_was, f"spec.affinity.nodeAffinity.{_REQUIRED}")
        whole = {key: value for key, value in (spec.get("affinity") or {}).items() if key != "nodeAffinity"}
        if affinity_was is not None:
            whole["nodeAffinity"] = affinity_was
        munged["affinity"] = whole
        if not whole and "affinity" not in before:
            del munged["affinity"]


def _node_affinity(spec: Obj) -> Obj | None:
    found: Obj | None = (spec.get("affinity") or {}).get("nodeAffinity")
    return found


def _narrowing_errors(new: Obj, old: Obj, path: str) -> list[ApiFieldError]:
    """Return errors unless each required term only gains expressions."""
    terms, was = _node_selector_terms(new), _node_selector_terms(old)
    if not was:
        return []
    if len(terms) != len(was):
        detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        shown = [to_internal("NodeTerm", term) for term in terms] or None
        return [invalid_value(f"{path}.nodeSelectorTerms", shown, detail)]
    return [
        invalid_value(
            f"{path}.nodeSelectorTerms[{i}]",
            to_internal("NodeTerm", term),
            "only additions are allowed (no mutations or deletions)",
        )
        for i, (term, before) in enumerate(zip(terms, was, strict=True))
        if not _extends_term(term, before)
    ]


def _extends_term(term: Obj, before: Obj) -> bool:
    """Return whether a term only gains requirements. An empty term matches nothing: adding to it would widen it."""
    if not _has_requirements(before):
        return not _has_requirements(term)
    for key in ("matchExpressions", "matchFields"):
        kept = before.get(key) or []
        if (term.get(key) or [])[: len(kept)] != kept:
            return False
    return True


def _has_requirements(term: Obj) -> bool:
    return bool(term.get("matchExpressions") or term.get("matchFields"))


def _node_selector_terms(affinity: Obj) -> list[Obj]:
    return (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []


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
