"""Strategies of the kinds of apps/v1 (Deployment, ReplicaSet, DaemonSet, StatefulSet, ControllerRevision), of
ReplicationController and of PodTemplate."""

from __future__ import annotations

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, forbidden_field, invalid_value, not_supported, required
from koord.embedded.apiserver.kinds import strategy, validators
from koord.embedded.apiserver.kinds.internal_types import to_internal
from koord.embedded.apiserver.kinds.pod.defaults import default_pod_template
from koord.embedded.apiserver.kinds.pod.spec import (
    always_restart_errors,
    pod_template_errors,
    required_selector_errors,
    selected_template_errors,
    selector_for_message,
    template_label_errors,
)
from koord.embedded.apiserver.kinds.pvc_spec import default_pvc_spec, pvc_spec_errors
from koord.embedded.apiserver.kinds.strategy import KindStrategy, fill_absent, fill_empty
from koord.embedded.apiserver.kinds.validators import (
    IMMUTABLE,
    NOT_NEGATIVE,
    FieldErrors,
    Validator,
    all_of,
    fields,
    one_of,
    valid_name,
)
from koord.values import int_or_string, names
from koord.values.selector import Selector

_COUNT_RULES = fields(
    {
        "replicas": NOT_NEGATIVE,
        "minReadySeconds": NOT_NEGATIVE,
        "revisionHistoryLimit": NOT_NEGATIVE,
        "progressDeadlineSeconds": NOT_NEGATIVE,
    }
)


def int_or_percent_errors(value: int | str, path: str) -> FieldErrors:
    return [invalid_value(path, value, reason) for reason in int_or_string.refusals(value)]


def at_most_100_percent_errors(value: int | str, path: str) -> FieldErrors:
    return [invalid_value(path, value, reason) for reason in int_or_string.over_100_percent_refusals(value)]


def is_zero_count(value: int | str | None) -> bool:
    return value in (None, 0, "0%")


def selector_change_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    selector = new["spec"].get("selector")
    if selector == old["spec"].get("selector"):
        return []
    return [invalid_value("spec.selector", selector_for_message(selector), IMMUTABLE)]


# Deployment --------------------------------------------------------------------------------------------------------


def _default_deployment(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    strategy = spec.setdefault("strategy", {})
    fill_empty(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        fill_absent(strategy.setdefault("rollingUpdate", {}), maxUnavailable="25%", maxSurge="25%")
    default_pod_template(spec)


def _rollout_errors(strategy: Obj, path: str) -> list[ApiFieldError]:
    kind, rolling = strategy.get("type", ""), strategy.get("rollingUpdate")
    if kind == "Recreate":
        if rolling is not None:
            detail = "may not be specified when strategy `type` is 'Recreate'"
            return [forbidden_field(f"{path}.rollingUpdate", detail)]
        return []
    if kind != "RollingUpdate":
        return [not_supported(path, to_internal("DeploymentStrategy", strategy), ("Recreate", "RollingUpdate"))]
    if rolling is None:
        return [required(f"{path}.rollingUpdate", "this should be defaulted and never be nil")]
    at = f"{path}.rollingUpdate"
    least, most = rolling.get("maxUnavailable"), rolling.get("maxSurge")
    errors = [*int_or_percent_errors(least, f"{at}.maxUnavailable"), *int_or_percent_errors(most, f"{at}.maxSurge")]
    if is_zero_count(least) and is_zero_count(most):
        errors.append(invalid_value(f"{at}.maxUnavailable", least, "may not be 0 when `maxSurge` is 0"))
    return [*errors, *at_most_100_percent_errors(least, f"{at}.maxUnavailable")]


def _deployment_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj["spec"]
    errors = list(fields({"replicas": NOT_NEGATIVE})(spec, "spec"))
    selector = spec.get("selector")
    errors += required_selector_errors(selector, "spec.selector", "deployment")
    errors += workload_template_errors(spec, selector, "invalid label selector")
    errors += _rollout_errors(spec["strategy"], "spec.strategy")
    errors += fields(dict.fromkeys(("minReadySeconds", "revisionHistoryLimit"), NOT_NEGATIVE))(spec, "spec")
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None:
        errors += NOT_NEGATIVE(deadline, "spec.progressDeadlineSeconds")
        if deadline <= spec.get("minReadySeconds", 0):
            detail = "must be greater than minReadySeconds"
            errors.append(invalid_value("spec.progressDeadlineSeconds", deadline, detail))
    return errors


def workload_template_errors(spec: Obj, selector: Obj | None, unreadable: str) -> list[ApiFieldError]:
    """Return the errors of a workload's pod template; the workload's selector may be invalid itself."""
    found = validators.parse_optional_selector(selector)
    if found is None:
        return [_selector_parse_error(selector, unreadable)]
    return selected_template_errors(spec.get("template") or {}, found, "spec.template")


def _selector_parse_error(selector: Obj | None, detail: str) -> ApiFieldError:
    error = invalid_value("spec.selector", selector_for_message(selector), detail)
    if detail:
        return error
    return ApiFieldError(error.field, error.reason, error.message.removesuffix(": "))


DEPLOYMENT = KindStrategy(
    default=_default_deployment,
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_deployment_errors,
    validate_update=lambda new, old: _deployment_errors(new) + selector_change_errors(new, old),
)


# ReplicaSet --------------------------------------------------------------------------------------------------------


def _default_replica_set(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(spec, replicas=1)
    default_pod_template(spec)


def _replica_set_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj["spec"]
    errors = list(_COUNT_RULES(spec, "spec"))
    # The real server says "deployment" here as well.
    errors += required_selector_errors(spec.get("selector"), "spec.selector", "deployment")
    return errors + workload_template_errors(spec, spec.get("selector"), "invalid label selector")


REPLICA_SET = KindStrategy(
    default=_default_replica_set,
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_replica_set_errors,
    validate_update=lambda new, old: _replica_set_errors(new) + selector_change_errors(new, old),
    selectable_fields={"status.replicas": lambda obj: str(obj.get("status", {}).get("replicas", 0))},
)


# ControllerRevision, PodTemplate, ReplicationController --------------------------------------------------------------


def _revision_errors(obj: Obj) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = [] if obj.get("data") is not None else [required("data", "data is mandatory")]
    return [*errors, *NOT_NEGATIVE(obj.get("revision", 0), "revision")]


def _revision_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    errors = list(NOT_NEGATIVE(new.get("revision", 0), "revision"))
    if new.get("data") != old.get("data"):
        errors.append(invalid_value("data", new.get("data"), IMMUTABLE))
    return errors


CONTROLLER_REVISION = KindStrategy(validate_create=_revision_errors, validate_update=_revision_update_errors)

POD_TEMPLATE = KindStrategy(
    default=default_pod_template,
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("template"),
    validate_create=lambda obj: pod_template_errors(obj.get("template") or {}, "template"),
    validate_update=lambda new, old: pod_template_errors(new.get("template") or {}, "template"),
)


def _default_replication_controller(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    if spec.get("template") is not None:
        default_pod_template(spec)
        labels = (spec["template"].get("metadata") or {}).get("labels")
        if labels:
            if not spec.get("selector"):
                spec["selector"] = dict(labels)
            if not obj["metadata"].get("labels"):
                obj["metadata"]["labels"] = dict(labels)
    fill_absent(spec, replicas=1)


def _replication_controller_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj["spec"]
    errors = list(fields({"minReadySeconds": NOT_NEGATIVE})(spec, "spec"))
    selector = spec.get("selector")
    if not selector:
        errors.append(required("spec.selector"))
    errors += fields({"replicas": NOT_NEGATIVE})(spec, "spec")
    template = spec.get("template")
    if template is None:
        return [*errors, required("spec.template")]
    return errors + selected_template_errors(template, Selector.from_labels(selector or {}), "spec.template")


REPLICATION_CONTROLLER = KindStrategy(
    default=_default_replication_controller,
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_replication_controller_errors,
    validate_update=lambda new, old: _replication_controller_errors(new),
    selectable_fields={"status.replicas": lambda obj: str(obj.get("status", {}).get("replicas", 0))},
)


_PDB_LIMIT = all_of(int_or_percent_errors, at_most_100_percent_errors)
_PDB_SPEC = fields(
    {
        "minAvailable": _PDB_LIMIT,
        "maxUnavailable": _PDB_LIMIT,
        "selector": validators.label_selector_errors,
        "unhealthyPodEvictionPolicy": one_of("AlwaysAllow", "IfHealthyBudget"),
    }
)
_PDB_COUNTS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
_PDB_STATUS = fields(dict.fromkeys(_PDB_COUNTS, NOT_NEGATIVE))


def _pdb_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj.get("spec") or {}
    errors: list[ApiFieldError] = []
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        shown = {
            "MinAvailable": spec["minAvailable"],
            "Selector": spec.get("selector"),
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        errors.append(invalid_value("spec", shown, "minAvailable and maxUnavailable cannot be both set"))
    return [*errors, *_PDB_SPEC(spec, "spec")]


def _pdb_status_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    return list(_PDB_STATUS(new.get("status") or {}, "status"))


POD_DISRUPTION_BUDGET = KindStrategy(
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_pdb_errors,
    validate_update=lambda new, old: _pdb_errors(new),
    validate_status=_pdb_status_errors,
)


TEMPLATE_GENERATION_ANNOTATION = "deprecated.daemonset.template.generation"


def _default_daemon_set(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(spec, revisionHistoryLimit=10)
    update = spec.setdefault("updateStrategy", {})
    fill_empty(update, type="RollingUpdate")
    if update["type"] == "RollingUpdate":
        fill_absent(update.setdefault("rollingUpdate", {}), maxUnavailable=1, maxSurge=0)
    default_pod_template(spec)
    meta = obj.setdefault("metadata", {})
    if TEMPLATE_GENERATION_ANNOTATION not in (meta.get("annotations") or {}):
        meta["annotations"] = {**(meta.get("annotations") or {}), TEMPLATE_GENERATION_ANNOTATION: "1"}


def _prepare_daemon_set_create(obj: Obj) -> None:
    strategy.begin_generation(obj)
    obj["metadata"]["annotations"] = {**obj["metadata"]["annotations"], TEMPLATE_GENERATION_ANNOTATION: "1"}


def _prepare_daemon_set_update(new: Obj, old: Obj) -> None:
    """Bump the generation of the template, which is kept in an annotation that clients cannot set."""
    strategy.bump_generation_on("spec")(new, old)
    before = (old["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION_ANNOTATION, "1")
    count = int(before) if before.isdecimal() else 1
    if new["spec"].get("template") != old["spec"].get("template"):
        count += 1
    meta = new["metadata"]
    meta["annotations"] = {**(meta.get("annotations") or {}), TEMPLATE_GENERATION_ANNOTATION: str(count)}


def _daemon_set_rollout_errors(update: Obj, path: str) -> list[ApiFieldError]:
    kind, rolling = update.get("type", ""), update.get("rollingUpdate")
    if kind == "OnDelete":
        return []
    if kind != "RollingUpdate":
        return [not_supported(path, to_internal("DeploymentStrategy", update), ("RollingUpdate", "OnDelete"))]
    if rolling is None:
        return [required(f"{path}.rollingUpdate")]
    at = f"{path}.rollingUpdate"
    least, most = rolling.get("maxUnavailable"), rolling.get("maxSurge")
    errors = list(int_or_percent_errors(least, f"{at}.maxUnavailable"))
    errors += at_most_100_percent_errors(least, f"{at}.maxUnavailable")
    if most is not None:
        errors += int_or_percent_errors(most, f"{at}.maxSurge")
        errors += at_most_100_percent_errors(most, f"{at}.maxSurge")
    if not is_zero_count(least) and not is_zero_count(most):
        errors.append(invalid_value(f"{at}.maxSurge", most, "may not be set when maxUnavailable is non-zero"))
    elif is_zero_count(least) and is_zero_count(most):
        errors.append(required(f"{at}.maxUnavailable", "cannot be 0 when maxSurge is 0"))
    return errors


def _daemon_set_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj["spec"]
    selector, template = spec.get("selector"), spec.get("template") or {}
    errors: list[ApiFieldError] = list(validators.label_selector_errors(selector, "spec.selector"))
    found = validators.parse_optional_selector(selector)
    if found is not None:
        errors += template_label_errors(template, found, "spec.template")
    if selector is not None and not selector.get("matchLabels") and not selector.get("matchExpressions"):
        detail = "empty selector is invalid for daemonset"
        errors.append(invalid_value("spec.selector", selector_for_message(selector), detail))
    errors += pod_template_errors(template, "spec.template")
    errors += always_restart_errors(template, "spec.template", "DaemonSet")
    errors += fields({"minReadySeconds": NOT_NEGATIVE})(spec, "spec")
    errors += _daemon_set_rollout_errors(spec["updateStrategy"], "spec.updateStrategy")
    return [*errors, *fields({"revisionHistoryLimit": NOT_NEGATIVE})(spec, "spec")]


DAEMON_SET = KindStrategy(
    default=_default_daemon_set,
    prepare_create=_prepare_daemon_set_create,
    prepare_update=_prepare_daemon_set_update,
    validate_create=_daemon_set_errors,
    validate_update=lambda new, old: selector_change_errors(new, old) + _daemon_set_errors(new),
)


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
