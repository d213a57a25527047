"""This module holds the strategy of DaemonSet."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds import generation, label
from koord.embedded.apiserver.kinds.apps import (
    NOT_NEGATIVE,
    at_most_all,
    count_or_share,
    is_zero,
    selector_changed,
)
from koord.embedded.apiserver.kinds.internal import internal
from koord.embedded.apiserver.kinds.pod.defaults import default_template
from koord.embedded.apiserver.kinds.rule import fields
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.kinds.template import (
    converted,
    shown_selector,
    template_errors,
)
from koord.embedded.apiserver.refusal import FieldError, forbidden_field, invalid_value, not_supported, required
from koord.values.selector import NOTHING

Obj = dict[str, Any]
TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"


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
    meta = obj.setdefault("metadata", {})
    if TEMPLATE_GENERATION not in (meta.get("annotations") or {}):
        meta["annotations"] = {**(meta.get("annotations") or {}), TEMPLATE_GENERATION: "1"}


def _begin_daemon_set(obj: Obj) -> None:
    generation.begin(obj)
    obj["metadata"]["annotations"] = {**obj["metadata"]["annotations"], TEMPLATE_GENERATION: "1"}


def _prepare_daemon_set(new: Obj, old: Obj) -> None:
    """Bump the generation of the template, which is kept in an annotation that clients cannot set."""
    generation.bump_on("spec")(new, old)
    before = (old["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION, "1")
    count = int(before) if before.isdecimal() else 1
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
    if not is_zero(least) and not is_zero(most):
        errors.append(invalid_value(f"{at}.maxSurge", most, "may not be set when maxUnavailable is non-zero"))
    elif is_zero(least) and is_zero(most):
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
    validate_update=lambda new, old: selector_changed(new, old) + _daemon_set_errors(new),
)
