"""This module holds the strategy of DaemonSet."""

from __future__ import annotations

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, invalid_value, not_supported, required
from koord.embedded.apiserver.kinds import apps, strategy, validators
from koord.embedded.apiserver.kinds.internal_types import to_internal
from koord.embedded.apiserver.kinds.pod.defaults import default_pod_template
from koord.embedded.apiserver.kinds.pod.spec import (
    always_restart_errors,
    pod_template_errors,
    selector_for_message,
    template_label_errors,
)
from koord.embedded.apiserver.kinds.strategy import KindStrategy, fill_absent, fill_empty
from koord.embedded.apiserver.kinds.validators import NOT_NEGATIVE, fields

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


def _rollout_errors(update: Obj, path: str) -> list[ApiFieldError]:
    kind, rolling = update.get("type", ""), update.get("rollingUpdate")
    if kind == "OnDelete":
        return []
    if kind != "RollingUpdate":
        return [not_supported(path, to_internal("DeploymentStrategy", update), ("RollingUpdate", "OnDelete"))]
    if rolling is None:
        return [required(f"{path}.rollingUpdate")]
    at = f"{path}.rollingUpdate"
    least, most = rolling.get("maxUnavailable"), rolling.get("maxSurge")
    errors = list(apps.int_or_percent_errors(least, f"{at}.maxUnavailable"))
    errors += apps.at_most_100_percent_errors(least, f"{at}.maxUnavailable")
    if most is not None:
        errors += apps.int_or_percent_errors(most, f"{at}.maxSurge")
        errors += apps.at_most_100_percent_errors(most, f"{at}.maxSurge")
    if not apps.is_zero_count(least) and not apps.is_zero_count(most):
        errors.append(invalid_value(f"{at}.maxSurge", most, "may not be set when maxUnavailable is non-zero"))
    elif apps.is_zero_count(least) and apps.is_zero_count(most):
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
    errors += _rollout_errors(spec["updateStrategy"], "spec.updateStrategy")
    return [*errors, *fields({"revisionHistoryLimit": NOT_NEGATIVE})(spec, "spec")]


DAEMON_SET = KindStrategy(
    default=_default_daemon_set,
    prepare_create=_prepare_daemon_set_create,
    prepare_update=_prepare_daemon_set_update,
    validate_create=_daemon_set_errors,
    validate_update=lambda new, old: apps.selector_change_errors(new, old) + _daemon_set_errors(new),
)
