"""Deployment, ReplicaSet, StatefulSet, DaemonSet, ControllerRevision; ReplicationController and PodTemplate of core."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds import generation, label
from koord.embedded.apiserver.kinds.claim import claim_spec, default_claim
from koord.embedded.apiserver.kinds.internal import internal
from koord.embedded.apiserver.kinds.pod.defaults import default_template
from koord.embedded.apiserver.kinds.rule import IMMUTABLE, Errors, Rule, at_least, fields, named, one_of
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.kinds.template import (
    converted,
    selected_template,
    selector_errors,
    shown_selector,
    template_errors,
)
from koord.embedded.apiserver.refusal import FieldError, forbidden_field, invalid_value, not_supported, required
from koord.values import int_or_string, names
from koord.values.selector import NOTHING, Selector

Obj = dict[str, Any]
TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
NOT_NEGATIVE = at_least(0)
_COUNTS = fields(
    {
        "replicas": NOT_NEGATIVE,
        "minReadySeconds": NOT_NEGATIVE,
        "revisionHistoryLimit": NOT_NEGATIVE,
        "progressDeadlineSeconds": NOT_NEGATIVE,
    }
)


def count_or_share(value: int | str, path: str) -> Errors:
    return [invalid_value(path, value, reason) for reason in int_or_string.refusals(value)]


def at_most_all(value: int | str, path: str) -> Errors:
    return [invalid_value(path, value, reason) for reason in int_or_string.over_100_percent_refusals(value)]


def _is_zero(value: int | str | None) -> bool:
    return value in (None, 0, "0%")


def _replicas(spec: Obj) -> None:
    if spec.get("replicas") is None:
        spec["replicas"] = 1


def _selector_changed(new: Obj, old: Obj) -> list[FieldError]:
    selector = new["spec"].get("selector")
    if selector == old["spec"].get("selector"):
        return []
    return [invalid_value("spec.selector", shown_selector(selector), IMMUTABLE)]


# Deployment --------------------------------------------------------------------------------------------------------


def _default_deployment(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    _replicas(spec)
    if spec.get("revisionHistoryLimit") is None:
        spec["revisionHistoryLimit"] = 10
    if spec.get("progressDeadlineSeconds") is None:
        spec["progressDeadlineSeconds"] = 600
    strategy = spec.setdefault("strategy", {})
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        for key in ("maxUnavailable", "maxSurge"):
            if rolling.get(key) is None:
                rolling[key] = "25%"
    default_template(spec)


def _rollout(strategy: Obj, path: str) -> list[FieldError]:
    kind, rolling = strategy.get("type", ""), strategy.get("rollingUpdate")
    if kind == "Recreate":
        if rolling is not None:
            detail = "may not be specified when strategy `type` is 'Recreate'"
            return [forbidden_field(f"{path}.rollingUpdate", detail)]
        return []
    if kind != "RollingUpdate":
        return [not_supported(path, internal("DeploymentStrategy", strategy), ("Recreate", "RollingUpdate"))]
    if rolling is None:
        return [required(f"{path}.rollingUpdate", "this should be defaulted and never be nil")]
    at = f"{path}.rollingUpdate"
    least, most = rolling.get("maxUnavailable"), rolling.get("maxSurge")
    errors = [*count_or_share(least, f"{at}.maxUnavailable"), *count_or_share(most, f"{at}.maxSurge")]
    if _is_zero(least) and _is_zero(most):
        errors.append(invalid_value(f"{at}.maxUnavailable", least, "may not be 0 when `maxSurge` is 0"))
    return [*errors, *at_most_all(least, f"{at}.maxUnavailable")]


def _deployment_errors(obj: Obj) -> list[FieldError]:
    spec = obj["spec"]
    errors = list(fields({"replicas": NOT_NEGATIVE})(spec, "spec"))
    selector = spec.get("selector")
    errors += selector_errors(selector, "spec.selector", "deployment")
    errors += _template_of(spec, selector, "invalid label selector")
    errors += _rollout(spec["strategy"], "spec.strategy")
    errors += fields({key: NOT_NEGATIVE for key in ("minReadySeconds", "revisionHistoryLimit")})(spec, "spec")
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None:
        errors += NOT_NEGATIVE(deadline, "spec.progressDeadlineSeconds")
        if deadline <= spec.get("minReadySeconds", 0):
            detail = "must be greater than minReadySeconds"
            errors.append(invalid_value("spec.progressDeadlineSeconds", deadline, detail))
    return errors


def _template_of(spec: Obj, selector: Obj | None, unreadable: str) -> list[FieldError]:
    """The template of a workload whose selector may itself be broken."""
    found = converted(selector) if selector is not None else NOTHING
    if found is None:
        return [_unreadable(selector, unreadable)]
    return selected_template(spec.get("template") or {}, found, "spec.template")


def _unreadable(selector: Obj | None, detail: str) -> FieldError:
    error = invalid_value("spec.selector", shown_selector(selector), detail)
    if detail:
        return error
    return FieldError(error.field, error.reason, error.message.removesuffix(": "))


DEPLOYMENT = Strategy(
    default=_default_deployment,
    prepare_create=generation.begin,
    prepare_update=generation.bump_on("spec"),
    validate_create=_deployment_errors,
    validate_update=lambda new, old: _deployment_errors(new) + _selector_changed(new, old),
)


# ReplicaSet --------------------------------------------------------------------------------------------------------


def _default_replica_set(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    _replicas(spec)
    default_template(spec)


def _replica_set_errors(obj: Obj) -> list[FieldError]:
    spec = obj["spec"]
    errors = list(_COUNTS(spec, "spec"))
    # The real server says "deployment" here as well.
    errors += selector_errors(spec.get("selector"), "spec.selector", "deployment")
    return errors + _template_of(spec, spec.get("selector"), "invalid label selector")


REPLICA_SET = Strategy(
    default=_default_replica_set,
    prepare_create=generation.begin,
    prepare_update=generation.bump_on("spec"),
    validate_create=_replica_set_errors,
    validate_update=lambda new, old: _replica_set_errors(new) + _selector_changed(new, old),
    fields={"status.replicas": lambda obj: str(obj.get("status", {}).get("replicas", 0))},
)


# StatefulSet -------------------------------------------------------------------------------------------------------

_CHANGEABLE = ("replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit")
_CHANGEABLE_TOO = ("persistentVolumeClaimRetentionPolicy", "minReadySeconds")
_ONLY = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)


def _default_stateful_set(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    _replicas(spec)
    if spec.get("revisionHistoryLimit") is None:
        spec["revisionHistoryLimit"] = 10
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
    for key in ("whenDeleted", "whenScaled"):
        if not retention.get(key):
            retention[key] = "Retain"
    for claim in spec.get("volumeClaimTemplates") or ():
        claim.update({"apiVersion": "v1", "kind": "PersistentVolumeClaim"})
        default_claim(claim.setdefault("spec", {}))
        claim["status"] = {**(claim.get("status") or {})}
        claim["status"].setdefault("phase", "Pending")
    default_template(spec)


def _claims_as_volumes(template: Obj, claims: list[Obj]) -> Obj:
    """The template with a volume for each claim in front, which is what its mounts will find."""
    spec = template.get("spec") or {}
    taken = dict.fromkeys((claim.get("metadata") or {}).get("name", "") for claim in claims)
    made = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in taken]
    own = [volume for volume in spec.get("volumes") or () if volume.get("name") not in taken]
    return {**template, "spec": {**spec, "volumes": [*made, *own]}} if made else template


def _update_strategy(found: Obj, path: str) -> list[FieldError]:
    kind, rolling = found.get("type", ""), found.get("rollingUpdate")
    if kind == "OnDelete":
        if rolling is not None:
            detail = "only allowed for updateStrategy 'RollingUpdate'"
            return [invalid_value(f"{path}.rollingUpdate", internal("StatefulRolling", rolling), detail)]
        return []
    if kind != "RollingUpdate":
        shown = internal("StatefulStrategy", found)
        return [invalid_value(path, shown, "must be 'RollingUpdate' or 'OnDelete'")]
    if rolling is not None:
        return list(fields({"partition": NOT_NEGATIVE})(rolling, f"{path}.rollingUpdate"))
    return []


_RETENTION: Rule = fields({key: one_of("Retain", "Delete") for key in ("whenDeleted", "whenScaled")})


def _stateful_set_errors(obj: Obj, *, creating: bool = True) -> list[FieldError]:
    spec = obj["spec"]
    errors: list[FieldError] = []
    policy = spec.get("podManagementPolicy", "")
    if policy not in ("OrderedReady", "Parallel"):
        errors.append(invalid_value("spec.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'"))
    errors += _update_strategy(spec["updateStrategy"], "spec.updateStrategy")
    at = "spec.persistentVolumeClaimRetentionPolicy"
    errors += _RETENTION(spec.get("persistentVolumeClaimRetentionPolicy") or {}, at)
    errors += fields({"replicas": NOT_NEGATIVE, "minReadySeconds": NOT_NEGATIVE})(spec, "spec")
    if spec.get("ordinals") is not None:
        errors += fields({"start": NOT_NEGATIVE})(spec["ordinals"], "spec.ordinals")
    if creating:
        if spec.get("serviceName"):
            errors += named(names.dns1123_label)(spec["serviceName"], "spec.serviceName")
        for i, claim in enumerate(spec.get("volumeClaimTemplates") or ()):
            errors += claim_spec(claim.get("spec") or {}, f"spec.volumeClaimTemplates[{i}].spec")
    selector = spec.get("selector")
    errors += selector_errors(selector, "spec.selector", "statefulset")
    whole = {**spec, "template": _claims_as_volumes(spec.get("template") or {}, spec.get("volumeClaimTemplates") or [])}
    errors += _template_of(whole, selector, "")
    meta = (spec.get("template") or {}).get("metadata") or {}
    # The real server looks at these twice.
    errors += label.labels(meta.get("labels") or {}, "spec.template.labels")
    return [*errors, *label.annotation_map(meta.get("annotations") or {}, "spec.template.annotations")]


def _stateful_set_update(new: Obj, old: Obj) -> list[FieldError]:
    errors = _stateful_set_errors(new, creating=False)
    free = (*_CHANGEABLE, *_CHANGEABLE_TOO)
    if {k: v for k, v in new["spec"].items() if k not in free} != {k: v for k, v in old["spec"].items() if k not in free}:
        errors.append(forbidden_field("spec", _ONLY))
    return errors


STATEFUL_SET = Strategy(
    default=_default_stateful_set,
    prepare_create=generation.begin,
    prepare_update=generation.bump_on("spec"),
    validate_create=_stateful_set_errors,
    validate_update=_stateful_set_update,
)


# DaemonSet ---------------------------------------------------------------------------------------------------------


def _default_daemon_set(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    if spec.get("revisionHistoryLimit") is None:
        spec["revisionHistoryLimit"] = 10
    update = spec.setdefault("updateStrategy", {})
    if not update.get("type"):
        update["type"] = "RollingUpdate"
    if update["type"] == "RollingUpdate":
        rolling = update.setdefault("rollingUpdate", {})
        if rolling.get("maxUnavailable") is None:
            rolling["maxUnavailable"] = 1
        if rolling.get("maxSurge") is None:
            rolling["maxSurge"] = 0
    default_template(spec)


def _begin_daemon_set(obj: Obj) -> None:
    generation.begin(obj)
    meta = obj["metadata"]
    meta["annotations"] = {**(meta.get("annotations") or {}), TEMPLATE_GENERATION: "1"}


def _prepare_daemon_set(new: Obj, old: Obj) -> None:
    """The generation of the template is kept in an annotation that nobody may set."""
    generation.bump_on("spec")(new, old)
    before = (old["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION, "1")
    count = int(before) if before.isdigit() else 1
    if new["spec"].get("template") != old["spec"].get("template"):
        count += 1
    meta = new["metadata"]
    meta["annotations"] = {**(meta.get("annotations") or {}), TEMPLATE_GENERATION: str(count)}


def _daemon_rollout(update: Obj, path: str) -> list[FieldError]:
    kind, rolling = update.get("type", ""), update.get("rollingUpdate")
    if kind == "OnDelete":
        return []
    if kind != "RollingUpdate":
        return [not_supported(path, internal("DeploymentStrategy", update), ("RollingUpdate", "OnDelete"))]
    if rolling is None:
        return [required(f"{path}.rollingUpdate")]
    at = f"{path}.rollingUpdate"
    least, most = rolling.get("maxUnavailable"), rolling.get("maxSurge")
    errors = list(count_or_share(least, f"{at}.maxUnavailable"))
    errors += at_most_all(least, f"{at}.maxUnavailable")
    if most is not None:
        errors += count_or_share(most, f"{at}.maxSurge")
        errors += at_most_all(most, f"{at}.maxSurge")
    if not _is_zero(least) and not _is_zero(most):
        errors.append(invalid_value(f"{at}.maxSurge", most, "may not be set when maxUnavailable is non-zero"))
    elif _is_zero(least) and _is_zero(most):
        errors.append(required(f"{at}.maxUnavailable", "cannot be 0 when maxSurge is 0"))
    return errors


def _daemon_set_errors(obj: Obj) -> list[FieldError]:
    spec = obj["spec"]
    selector, template = spec.get("selector"), spec.get("template") or {}
    errors: list[FieldError] = list(label.selector(selector, "spec.selector"))
    found = converted(selector) if selector is not None else NOTHING
    labels = (template.get("metadata") or {}).get("labels") or {}
    if found is not None and not found.matches(labels):
        detail = "`selector` does not match template `labels`"
        errors.append(invalid_value("spec.template.metadata.labels", labels or None, detail))
    if selector is not None and not selector.get("matchLabels") and not selector.get("matchExpressions"):
        detail = "empty selector is invalid for daemonset"
        errors.append(invalid_value("spec.selector", shown_selector(selector), detail))
    errors += template_errors(template, "spec.template")
    policy = (template.get("spec") or {}).get("restartPolicy", "")
    if policy != "Always":
        errors.append(not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    if (template.get("spec") or {}).get("activeDeadlineSeconds") is not None:
        at = "spec.template.spec.activeDeadlineSeconds"
        errors.append(forbidden_field(at, "activeDeadlineSeconds in DaemonSet is not Supported"))
    errors += fields({"minReadySeconds": NOT_NEGATIVE})(spec, "spec")
    errors += _daemon_rollout(spec["updateStrategy"], "spec.updateStrategy")
    return [*errors, *fields({"revisionHistoryLimit": NOT_NEGATIVE})(spec, "spec")]


DAEMON_SET = Strategy(
    default=_default_daemon_set,
    prepare_create=_begin_daemon_set,
    prepare_update=_prepare_daemon_set,
    validate_create=_daemon_set_errors,
    validate_update=lambda new, old: _selector_changed(new, old) + _daemon_set_errors(new),
)


# ControllerRevision, PodTemplate, ReplicationController --------------------------------------------------------------


def _revision_errors(obj: Obj) -> list[FieldError]:
    errors: list[FieldError] = [] if obj.get("data") is not None else [required("data", "data is mandatory")]
    return [*errors, *NOT_NEGATIVE(obj.get("revision", 0), "revision")]


def _revision_update(new: Obj, old: Obj) -> list[FieldError]:
    errors = list(NOT_NEGATIVE(new.get("revision", 0), "revision"))
    if new.get("data") != old.get("data"):
        errors.append(invalid_value("data", new.get("data"), IMMUTABLE))
    return errors


CONTROLLER_REVISION = Strategy(validate_create=_revision_errors, validate_update=_revision_update)

POD_TEMPLATE = Strategy(
    default=default_template,
    prepare_create=generation.begin,
    prepare_update=generation.bump_on("template"),
    validate_create=lambda obj: template_errors(obj.get("template") or {}, "template"),
    validate_update=lambda new, old: template_errors(new.get("template") or {}, "template"),
)


def _default_controller(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    if spec.get("template") is not None:
        default_template(spec)
        labels = (spec["template"].get("metadata") or {}).get("labels")
        if labels:
            if not spec.get("selector"):
                spec["selector"] = dict(labels)
            if not obj["metadata"].get("labels"):
                obj["metadata"]["labels"] = dict(labels)
    _replicas(spec)


def _controller_errors(obj: Obj) -> list[FieldError]:
    spec = obj["spec"]
    errors = list(fields({"minReadySeconds": NOT_NEGATIVE})(spec, "spec"))
    selector = spec.get("selector")
    if not selector:
        errors.append(required("spec.selector"))
    errors += fields({"replicas": NOT_NEGATIVE})(spec, "spec")
    template = spec.get("template")
    if template is None:
        return [*errors, required("spec.template")]
    return errors + selected_template(template, Selector.of_labels(selector or {}), "spec.template")


REPLICATION_CONTROLLER = Strategy(
    default=_default_controller,
    prepare_create=generation.begin,
    prepare_update=generation.bump_on("spec"),
    validate_create=_controller_errors,
    validate_update=lambda new, old: _controller_errors(new),
    fields={"status.replicas": lambda obj: str(obj.get("status", {}).get("replicas", 0))},
)
