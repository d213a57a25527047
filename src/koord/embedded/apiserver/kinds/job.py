"""This module holds the strategy of Job, with its pod failure policy and its success policy."""

from __future__ import annotations

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import (
    ApiFieldError,
    duplicate,
    invalid_value,
    not_supported,
    required,
    too_long,
    too_many,
)
from koord.embedded.apiserver.kinds import strategy, validators
from koord.embedded.apiserver.kinds.internal_types import to_internal
from koord.embedded.apiserver.kinds.pod.defaults import default_pod_template
from koord.embedded.apiserver.kinds.pod.spec import pod_template_errors, selector_for_message, template_label_errors
from koord.embedded.apiserver.kinds.strategy import KindStrategy, fill_absent
from koord.embedded.apiserver.kinds.validators import IMMUTABLE, NOT_NEGATIVE, FieldErrors, fields, one_of
from koord.values.go_format import parse_decimal_int, quoted

MAX_INT32 = 2**31 - 1
MAX_INDEXED_COMPLETIONS = 100_000
UID_LABEL, NAME_LABEL = "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"
_LEGACY_LABELS = ("controller-uid", "job-name")  # from before the domain was put in front
_COUNT_RULES = fields(
    dict.fromkeys(
        ("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"), NOT_NEGATIVE
    )
)


def default_job_spec(spec: Obj) -> None:
    """Fill in the defaults that a Job gets and the job template of a CronJob does not."""
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    fill_absent(
        spec,
        parallelism=1,
        backoffLimit=6 if spec.get("backoffLimitPerIndex") is None else MAX_INT32,
        completionMode="NonIndexed",
        suspend=False,
        manualSelector=False,
        podReplacementPolicy="TerminatingOrFailed" if spec.get("podFailurePolicy") is None else "Failed",
    )


def default_failure_policy(spec: Obj) -> None:
    for found in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for condition in found.get("onPodConditions") or ():
            condition["status"] = condition.get("status") or "True"


def _default_job(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    default_job_spec(spec)
    default_failure_policy(spec)
    default_pod_template(spec)
    _labels_from_template(obj)


def _labels_from_template(obj: Obj) -> None:
    labels = (obj["spec"]["template"].get("metadata") or {}).get("labels")
    meta = obj.setdefault("metadata", {})
    if labels and not meta.get("labels"):
        meta["labels"] = dict(labels)


def _prepare_job_create(obj: Obj) -> None:
    strategy.begin_generation(obj)
    spec, meta = obj["spec"], obj["metadata"]
    if not spec.get("manualSelector"):
        _generate_selector(spec, meta["uid"], meta["name"])
        _labels_from_template(obj)


def _generate_selector(spec: Obj, uid: str, name: str) -> None:
    """Generate the selector and labels by which a job owns its pods. User-set values stay, to be rejected later."""
    template = spec["template"].setdefault("metadata", {})
    labels = dict(template.get("labels") or {})
    for key, value in (("job-name", name), (NAME_LABEL, name), ("controller-uid", uid), (UID_LABEL, uid)):
        labels.setdefault(key, value)
    template["labels"] = {key: labels[key] for key in sorted(labels)}
    selector = dict(spec.get("selector") or {})
    selector["matchLabels"] = {**(selector.get("matchLabels") or {})}
    selector["matchLabels"].setdefault(UID_LABEL, uid)
    spec["selector"] = selector


def _generated_selector_errors(obj: Obj) -> list[ApiFieldError]:
    """Return errors where a user has changed the generated selector or labels."""
    spec, meta = obj["spec"], obj["metadata"]
    if spec.get("manualSelector"):
        return []
    selector = spec.get("selector")
    if selector is None:
        return []
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    chosen = selector.get("matchLabels") or {}
    keys = (*_LEGACY_LABELS, UID_LABEL, NAME_LABEL) if UID_LABEL in chosen else _LEGACY_LABELS
    errors: list[ApiFieldError] = []
    for key in keys:
        value, at = meta["uid" if key.endswith("uid") else "name"], f"spec.template.metadata.labels[{key}]"
        if key not in labels:
            errors.append(required(at, f"must be '{value}'"))
        elif labels[key] != value:
            errors.append(invalid_value(at, labels, f"must be '{value}'"))
    if chosen not in ({UID_LABEL: meta["uid"]}, {"controller-uid": meta["uid"]}) or selector.get("matchExpressions"):
        errors.append(invalid_value("spec.selector", selector_for_message(selector), "`selector` not auto-generated"))
    return errors


def _restart_policy_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    template = spec.get("template") or {}
    policy, at = (template.get("spec") or {}).get("restartPolicy", ""), f"{path}.spec.restartPolicy"
    if policy in ("", "Always"):
        return [required(at, 'valid values: "OnFailure", "Never"')]
    if policy not in ("OnFailure", "Never"):
        return [not_supported(at, policy, ("OnFailure", "Never"))]
    if policy != "Never" and spec.get("podFailurePolicy") is not None:
        return [invalid_value(at, policy, 'only "Never" is supported when podFailurePolicy is specified')]
    return []


def _managed_by_errors(value: str, path: str) -> FieldErrors:
    if not value:
        return [required(path)]
    errors: list[ApiFieldError] = []
    prefix, slash, tail = value.partition("/")
    if not slash or not prefix or not tail:
        errors.append(invalid_value(path, value, 'must be a domain-prefixed path (such as "acme.io/foo")'))
    if len(value.encode()) > 63:
        errors.append(too_long(path, 63))
    return errors


def job_spec_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    """Return the errors of a JobSpec, for jobs and for job templates alike."""
    errors = list(_COUNT_RULES(spec, path))
    per_index, failed = spec.get("backoffLimitPerIndex"), spec.get("maxFailedIndexes")
    if per_index is not None:
        errors += NOT_NEGATIVE(per_index, f"{path}.backoffLimitPerIndex")
    if failed is not None:
        errors += NOT_NEGATIVE(failed, f"{path}.maxFailedIndexes")
        if per_index is None:
            errors.append(required(f"{path}.backoffLimitPerIndex", "when maxFailedIndexes is specified"))
    if spec.get("managedBy") is not None:
        errors += _managed_by_errors(spec["managedBy"], f"{path}.managedBy")
    mode = spec.get("completionMode")
    if mode is not None:
        errors += _completion_mode_errors(spec, mode, path)
    if spec.get("podFailurePolicy") is not None:
        errors += failure_policy_errors(spec, f"{path}.podFailurePolicy")
    if spec.get("successPolicy") is not None:
        if mode != "Indexed":
            shown = to_internal("SuccessPolicy", spec["successPolicy"])
            errors.append(invalid_value(f"{path}.successPolicy", shown, "requires indexed completion mode"))
        else:
            errors += success_policy_errors(spec, f"{path}.successPolicy")
    if spec.get("podReplacementPolicy") is not None:
        errors += _replacement_policy_errors(spec, f"{path}.podReplacementPolicy")
    errors += pod_template_errors(spec.get("template") or {}, f"{path}.template")
    return errors + _restart_policy_errors(spec, f"{path}.template")


def _replacement_policy_errors(spec: Obj, path: str) -> FieldErrors:
    allowed = ("Failed",) if spec.get("podFailurePolicy") is not None else ("Failed", "TerminatingOrFailed")
    return one_of(*allowed)(spec["podReplacementPolicy"], path)


def _completion_mode_errors(spec: Obj, mode: str, path: str) -> list[ApiFieldError]:
    completions, failed = spec.get("completions"), spec.get("maxFailedIndexes")
    if mode not in ("NonIndexed", "Indexed"):
        return [not_supported(f"{path}.completionMode", mode, ("NonIndexed", "Indexed"))]
    errors: list[ApiFieldError] = []
    if mode == "NonIndexed":
        return [
            invalid_value(f"{path}.{key}", spec[key], "requires indexed completion mode")
            for key in ("backoffLimitPerIndex", "maxFailedIndexes")
            if spec.get(key) is not None
        ]
    if completions is None:
        errors.append(required(f"{path}.completions", "when completion mode is Indexed"))
    if spec.get("parallelism") is not None and spec["parallelism"] > MAX_INDEXED_COMPLETIONS:
        detail = f"must be less than or equal to {MAX_INDEXED_COMPLETIONS} when completion mode is Indexed"
        errors.append(invalid_value(f"{path}.parallelism", spec["parallelism"], detail))
    if failed is not None:
        at = f"{path}.maxFailedIndexes"
        if completions is not None and failed > completions:
            errors.append(invalid_value(at, failed, "must be less than or equal to completions"))
        if failed > MAX_INDEXED_COMPLETIONS:
            errors.append(invalid_value(at, failed, f"must be less than or equal to {MAX_INDEXED_COMPLETIONS}"))
    return errors


def _selector_match_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj["spec"]
    selector, template = spec.get("selector"), spec.get("template") or {}
    errors = (
        [required("spec.selector")]
        if selector is None
        else list(validators.label_selector_errors(selector, "spec.selector"))
    )
    found = validators.parse_optional_selector(selector)
    if found is not None:
        errors += template_label_errors(template, found, "spec.template")
    return errors


def _job_errors(obj: Obj) -> list[ApiFieldError]:
    return _generated_selector_errors(obj) + job_spec_errors(obj["spec"], "spec") + _selector_match_errors(obj)


def _job_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    spec, before = new["spec"], old["spec"]
    errors = _job_errors(new) + job_spec_errors(spec, "spec") + _selector_match_errors(new)
    errors += _completions_change_errors(spec, before)
    if spec.get("selector") != before.get("selector"):
        errors.append(invalid_value("spec.selector", selector_for_message(spec.get("selector")), IMMUTABLE))
    errors += _template_change_errors(spec, before, old)
    for key, shown in (("completionMode", None), ("podFailurePolicy", "PodFailurePolicy")):
        errors += _immutable_errors(spec, before, key, shown)
    for key, shown in (("backoffLimitPerIndex", None), ("managedBy", None), ("successPolicy", "SuccessPolicy")):
        errors += _immutable_errors(spec, before, key, shown)
    return errors


def _immutable_errors(spec: Obj, before: Obj, key: str, type_name: str | None) -> list[ApiFieldError]:
    value = spec.get(key)
    if value == before.get(key):
        return []
    shown = to_internal(type_name, value) if type_name and value is not None else value
    return [invalid_value(f"spec.{key}", shown, IMMUTABLE)]


def _completions_change_errors(spec: Obj, before: Obj) -> list[ApiFieldError]:
    """Return errors for a change of completions; those of an elastic indexed job may follow parallelism."""
    value, at = spec.get("completions"), "spec.completions"
    if value == before.get("completions"):
        return []
    if spec.get("completionMode") != "Indexed":
        return [invalid_value(at, value, IMMUTABLE)]
    if value is None:
        return [required(at, "must specify completions when completion mode is Indexed")]
    if spec.get("parallelism") != value:
        return [invalid_value(at, value, "can only be modified in tandem with spec.parallelism")]
    return []


_MUTABLE_WHILE_SUSPENDED = ("nodeSelector", "tolerations", "schedulingGates")


def _template_change_errors(spec: Obj, before: Obj, old: Obj) -> list[ApiFieldError]:
    """Return errors for a change of the pod template; a suspended job not yet started may change scheduling fields."""
    template, was = spec["template"], before["template"]
    if template == was:
        return []
    started = old.get("status", {}).get("startTime")
    if before.get("suspend") and not started and _with_scheduling_fields_of(template, was) == was:
        return []
    return [invalid_value("spec.template", to_internal("PodTemplateSpec", template), IMMUTABLE)]


def _with_scheduling_fields_of(template: Obj, was: Obj) -> Obj:
    meta = dict(template.get("metadata") or {})
    for key in ("labels", "annotations"):
        strategy.copy_or_drop(meta, was.get("metadata") or {}, key)
    inner = dict(template.get("spec") or {})
    for key in _MUTABLE_WHILE_SUSPENDED:
        strategy.copy_or_drop(inner, was.get("spec") or {}, key)
    before = (was.get("spec") or {}).get("affinity")
    affinity = dict(inner.get("affinity") or {})
    strategy.copy_or_drop(affinity, before or {}, "nodeAffinity")
    if affinity or before is not None:
        inner["affinity"] = affinity
    else:
        inner.pop("affinity", None)
    return {**template, "metadata": meta, "spec": inner}


# Policies ------------------------------------------------------------------------------------------------------------

_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_OPERATORS = ("In", "NotIn")
MAX_RULES = 20
_INTERVAL_PARTS = (
    "the fragment {} violates the requirement that an index interval can have at most two parts separated by '-'"
)
MAX_EXIT_CODES = 255


def _go_string_list(values: tuple[str, ...]) -> str:
    return "[" + " ".join(quoted(value) for value in values) + "]"


def _choice_errors(value: str, path: str, allowed: tuple[str, ...]) -> list[ApiFieldError]:
    if not value:
        return [required(path, f"valid values: {_go_string_list(allowed)}")]
    return [] if value in allowed else [not_supported(path, value, allowed)]


def failure_policy_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    template = (spec.get("template") or {}).get("spec") or {}
    known = {c.get("name", "") for key in ("containers", "initContainers") for c in template.get(key) or ()}
    errors: list[ApiFieldError] = []
    rules = spec["podFailurePolicy"].get("rules") or []
    if len(rules) > MAX_RULES:
        errors.append(too_many(f"{path}.rules", len(rules), MAX_RULES))
    for i, found in enumerate(rules):
        errors += _failure_rule_errors(found, f"{path}.rules[{i}]", known, spec)
    return errors


def _failure_rule_errors(found: Obj, path: str, known: set[str], spec: Obj) -> list[ApiFieldError]:
    action = found.get("action", "")
    errors = _choice_errors(action, f"{path}.action", _ACTIONS)
    if action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
        errors.append(invalid_value(f"{path}.action", action, "requires the backoffLimitPerIndex to be set"))
    codes, conditions = found.get("onExitCodes"), found.get("onPodConditions")
    if codes is not None:
        errors += _exit_code_errors(codes, f"{path}.onExitCodes", known)
    for i, condition in enumerate(conditions or ()):
        at = f"{path}.onPodConditions[{i}]"
        errors += validators.qualified_name_errors(condition.get("type", ""), f"{at}.type")
        errors += one_of("False", "True", "Unknown")(condition.get("status", ""), f"{at}.status")
    if codes is not None and conditions:
        errors.append(_invalid_without_value(path, "specifying both OnExitCodes and OnPodConditions is not supported"))
    if codes is None and not conditions:
        errors.append(_invalid_without_value(path, "specifying one of OnExitCodes and OnPodConditions is required"))
    return errors


def _invalid_without_value(path: str, detail: str) -> ApiFieldError:
    """Return an invalid-value error without the value, which is how kube-apiserver reports it here."""
    return ApiFieldError(path, "FieldValueInvalid", f"Invalid value: {detail}")


def _exit_code_errors(found: Obj, path: str, known: set[str]) -> list[ApiFieldError]:
    operator, values = found.get("operator", ""), found.get("values") or []
    errors = _choice_errors(operator, f"{path}.operator", _OPERATORS)
    name = found.get("containerName")
    if name is not None and name not in known:
        detail = "must be one of the container or initContainer names in the pod template"
        errors.append(invalid_value(f"{path}.containerName", name, detail))
    at = f"{path}.values"
    if not values:
        errors.append(invalid_value(at, values, "at least one value is required"))
    elif len(values) > MAX_EXIT_CODES:
        errors.append(too_many(at, len(values), MAX_EXIT_CODES))
    seen: set[int] = set()
    for i, value in enumerate(values):
        if operator == "In" and value == 0:
            errors.append(invalid_value(f"{at}[{i}]", value, "must not be 0 for the In operator"))
        if value in seen:
            errors.append(duplicate(f"{at}[{i}]", value))
        seen.add(value)
    if values != sorted(values):
        errors.append(invalid_value(at, values, "must be ordered"))
    return errors


def success_policy_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    rules, at = spec["successPolicy"].get("rules") or [], f"{path}.rules"
    errors: list[ApiFieldError] = []
    if not rules:
        detail = "at least one rules must be specified when the successPolicy is specified"
        errors.append(required(at, detail))
    if len(rules) > MAX_RULES:
        errors.append(too_many(at, len(rules), MAX_RULES))
    for i, found in enumerate(rules):
        errors += _success_rule_errors(found, f"{at}[{i}]", spec.get("completions") or 0)
    return errors


def _success_rule_errors(found: Obj, path: str, completions: int) -> list[ApiFieldError]:
    count, indexes = found.get("succeededCount"), found.get("succeededIndexes")
    if count is None and indexes is None:
        return [required(path, "at least one of succeededCount or succeededIndexes must be specified")]
    errors: list[ApiFieldError] = []
    total = 0
    if indexes is not None:
        total, refusal = _count_indexes(indexes, completions)
        if refusal:
            detail = f"error parsing succeededIndexes: {refusal}"
            errors.append(invalid_value(f"{path}.succeededIndexes", indexes, detail))
    if count is not None:
        at = f"{path}.succeededCount"
        if count < 0:
            errors.append(invalid_value(at, count, "must be greater than or equal to 0"))
        if count > completions:
            detail = f"must be less than or equal to {completions} (the number of specified completions)"
            errors.append(invalid_value(at, count, detail))
        if indexes is not None and count > total:
            detail = (
                f"must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            )
            errors.append(invalid_value(at, count, detail))
    return errors


def _count_indexes(text: str, completions: int) -> tuple[int, str]:
    """Return how many indexes a text such as "0-2,5" names, and why it cannot be parsed, empty when it can."""
    if not text:
        return 0, ""
    total, last = 0, -1
    for part in text.split(","):
        ends = part.split("-")
        if len(ends) > 2:
            return (0, _INTERVAL_PARTS.format(quoted(part)))
        numbers = []
        for end in ends:
            number = parse_decimal_int(end)
            if number is None:
                return 0, f"cannot convert string to integer for index: {quoted(end)}"
            if number >= completions:
                return 0, f"too large index: {quoted(end)}"
            numbers.append(number)
        if last >= numbers[0]:
            return 0, f"non-increasing order, previous: {last}, current: {numbers[0]}"
        if len(numbers) == 2 and numbers[0] >= numbers[1]:
            return 0, f"non-increasing order, previous: {numbers[0]}, current: {numbers[1]}"
        total += numbers[-1] - numbers[0] + 1
        last = numbers[-1]
    return total, ""


JOB = KindStrategy(
    default=_default_job,
    prepare_create=_prepare_job_create,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_job_errors,
    validate_update=_job_update_errors,
    selectable_fields={"status.successful": lambda obj: str(obj.get("status", {}).get("succeeded", 0))},
)
