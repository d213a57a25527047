"""This module holds the strategies of apps/v1 (Deployment, ReplicaSet, ControllerRevision), the
ReplicationController and PodTemplate of core, and PodDisruptionBudget.
"""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds import generation
from koord.embedded.apiserver.kinds.internal import internal
from koord.embedded.apiserver.kinds.pod.defaults import default_template
from koord.embedded.apiserver.kinds.rule import IMMUTABLE, Errors, at_least, fields
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.kinds.template import (
    converted,
    selected_template,
    selector_errors,
    shown_selector,
    template_errors,
)
from koord.embedded.apiserver.refusal import FieldError, forbidden_field, invalid_value, not_supported, required
from koord.values import int_or_string
from koord.values.selector import NOTHING, Selector

Obj = dict[str, Any]
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


def is_zero(value: int | str | None) -> bool:
    return value in (None, 0, "0%")


def replicas(spec: Obj) -> None:
    if spec.get("replicas") is None:
        spec["replicas"] = 1


def selector_changed(new: Obj, old: Obj) -> list[FieldError]:
    selector = new["spec"].get("selector")
    if selector == old["spec"].get("selector"):
        return []
    return [invalid_value("spec.selector", shown_selector(selector), IMMUTABLE)]


# Deployment --------------------------------------------------------------------------------------------------------


def _default_deployment(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    replicas(spec)
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
    if is_zero(least) and is_zero(most):
        errors.append(invalid_value(f"{at}.maxUnavailable", least, "may not be 0 when `maxSurge` is 0"))
    return [*errors, *at_most_all(least, f"{at}.maxUnavailable")]


def _deployment_errors(obj: Obj) -> list[FieldError]:
    spec = obj["spec"]
    errors = list(fields({"replicas": NOT_NEGATIVE})(spec, "spec"))
    selector = spec.get("selector")
    errors += selector_errors(selector, "spec.selector", "deployment")
    errors += template_of(spec, selector, "invalid label selector")
    errors += _rollout(spec["strategy"], "spec.strategy")
    errors += fields(dict.fromkeys(("minReadySeconds", "revisionHistoryLimit"), NOT_NEGATIVE))(spec, "spec")
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None:
        errors += NOT_NEGATIVE(deadline, "spec.progressDeadlineSeconds")
        if deadline <= spec.get("minReadySeconds", 0):
            detail = "must be greater than minReadySeconds"
            errors.append(invalid_value("spec.progressDeadlineSeconds", deadline, detail))
    return errors


def template_of(spec: Obj, selector: Obj | None, unreadable: str) -> list[FieldError]:
    """Return the errors of a workload's pod template; the workload's selector may be invalid itself."""
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
    validate_update=lambda new, old: _deployment_errors(new) + selector_changed(new, old),
)


# ReplicaSet --------------------------------------------------------------------------------------------------------


def _default_replica_set(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    replicas(spec)
    default_template(spec)


def _replica_set_errors(obj: Obj) -> list[FieldError]:
    spec = obj["spec"]
    errors = list(_COUNTS(spec, "spec"))
    # The real server says "deployment" here as well.
    errors += selector_errors(spec.get("selector"), "spec.selector", "deployment")
    return errors + template_of(spec, spec.get("selector"), "invalid label selector")


REPLICA_SET = Strategy(
    default=_default_replica_set,
    prepare_create=generation.begin,
    prepare_update=generation.bump_on("spec"),
    validate_create=_replica_set_errors,
    validate_update=lambda new, old: _replica_set_errors(new) + selector_changed(new, old),
    fields={"status.replicas": lambda obj: str(obj.get("status", {}).get("replicas", 0))},
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
    replicas(spec)


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
