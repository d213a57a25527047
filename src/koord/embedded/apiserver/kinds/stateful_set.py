"""This module holds the strategy of StatefulSet."""

from __future__ import annotations

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, forbidden_field, invalid_value
from koord.embedded.apiserver.kinds import strategy, validators
from koord.embedded.apiserver.kinds.apps import workload_template_errors
from koord.embedded.apiserver.kinds.internal_types import to_internal
from koord.embedded.apiserver.kinds.pod.defaults import default_pod_template
from koord.embedded.apiserver.kinds.pod.spec import required_selector_errors
from koord.embedded.apiserver.kinds.pvc_spec import default_pvc_spec, pvc_spec_errors
from koord.embedded.apiserver.kinds.strategy import KindStrategy, fill_absent, fill_empty
from koord.embedded.apiserver.kinds.validators import NOT_NEGATIVE, Validator, fields, one_of, valid_name
from koord.values import names

_MUTABLE_FIELDS = ("replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit")
_MORE_MUTABLE_FIELDS = ("persistentVolumeClaimRetentionPolicy", "minReadySeconds")
_IMMUTABLE_SPEC = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)


def _default_stateful_set(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(spec, replicas=1, revisionHistoryLimit=10)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    update = spec.setdefault("updateStrategy", {})
    if not update.get("type"):
        update["type"] = "RollingUpdate"
        update.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    if update.get("rollingUpdate") is not None:
        update["rollingUpdate"].pop("maxUnavailable", None)  # behind a feature that is off by default
        if update["type"] == "RollingUpdate":
            update["rollingUpdate"].setdefault("partition", 0)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    fill_empty(retention, whenDeleted="Retain", whenScaled="Retain")
    for claim in spec.get("volumeClaimTemplates") or ():
        claim.update({"apiVersion": "v1", "kind": "PersistentVolumeClaim"})
        default_pvc_spec(claim.setdefault("spec", {}))
        claim["status"] = {**(claim.get("status") or {})}
        claim["status"].setdefault("phase", "Pending")
    default_pod_template(spec)


def _with_claim_volumes(template: Obj, claims: list[Obj]) -> Obj:
    """Return the template with a leading volume for each claim, which is what its volume mounts refer to."""
    spec = template.get("spec") or {}
    taken = dict.fromkeys((claim.get("metadata") or {}).get("name", "") for claim in claims)
    made = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in taken]
    own = [volume for volume in spec.get("volumes") or () if volume.get("name") not in taken]
    return {**template, "spec": {**spec, "volumes": [*made, *own]}} if made else template


def _update_strategy_errors(found: Obj, path: str) -> list[ApiFieldError]:
    kind, rolling = found.get("type", ""), found.get("rollingUpdate")
    if kind == "OnDelete":
        if rolling is not None:
            detail = "only allowed for updateStrategy 'RollingUpdate'"
            return [invalid_value(f"{path}.rollingUpdate", to_internal("StatefulRolling", rolling), detail)]
        return []
    if kind != "RollingUpdate":
        shown = to_internal("StatefulStrategy", found)
        return [invalid_value(path, shown, "must be 'RollingUpdate' or 'OnDelete'")]
    if rolling is not None:
        return list(fields({"partition": NOT_NEGATIVE})(rolling, f"{path}.rollingUpdate"))
    return []


_RETENTION_RULES: Validator = fields({key: one_of("Retain", "Delete") for key in ("whenDeleted", "whenScaled")})


def _stateful_set_errors(obj: Obj, *, creating: bool = True) -> list[ApiFieldError]:
    spec = obj["spec"]
    errors: list[ApiFieldError] = []
    policy = spec.get("podManagementPolicy", "")
    if policy not in ("OrderedReady", "Parallel"):
        errors.append(invalid_value("spec.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'"))
    errors += _update_strategy_errors(spec["updateStrategy"], "spec.updateStrategy")
    at = "spec.persistentVolumeClaimRetentionPolicy"
    errors += _RETENTION_RULES(spec.get("persistentVolumeClaimRetentionPolicy") or {}, at)
    errors += fields({"replicas": NOT_NEGATIVE, "minReadySeconds": NOT_NEGATIVE})(spec, "spec")
    if spec.get("ordinals") is not None:
        errors += fields({"start": NOT_NEGATIVE})(spec["ordinals"], "spec.ordinals")
    if creating:
        if spec.get("serviceName"):
            errors += valid_name(names.dns1123_label)(spec["serviceName"], "spec.serviceName")
        for i, claim in enumerate(spec.get("volumeClaimTemplates") or ()):
            errors += pvc_spec_errors(claim.get("spec") or {}, f"spec.volumeClaimTemplates[{i}].spec")
    selector = spec.get("selector")
    errors += required_selector_errors(selector, "spec.selector", "statefulset")
    whole = {
        **spec,
        "template": _with_claim_volumes(spec.get("template") or {}, spec.get("volumeClaimTemplates") or []),
    }
    errors += workload_template_errors(whole, selector, "")
    meta = (spec.get("template") or {}).get("metadata") or {}
    # The real server looks at these twice.
    errors += validators.label_errors(meta.get("labels") or {}, "spec.template.labels")
    return [*errors, *validators.annotation_errors(meta.get("annotations") or {}, "spec.template.annotations")]


def _stateful_set_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    errors = _stateful_set_errors(new, creating=False)
    free = (*_MUTABLE_FIELDS, *_MORE_MUTABLE_FIELDS)
    if {k: v for k, v in new["spec"].items() if k not in free} != {
        k: v for k, v in old["spec"].items() if k not in free
    }:
        errors.append(forbidden_field("spec", _IMMUTABLE_SPEC))
    return errors


STATEFUL_SET = KindStrategy(
    default=_default_stateful_set,
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_stateful_set_errors,
    validate_update=_stateful_set_update_errors,
)
