"""This module holds the strategy of CronJob, with schedules as Kubernetes' cron library parses them."""

from __future__ import annotations

import functools
import zoneinfo

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, invalid_value, required
from koord.embedded.apiserver.kinds import strategy
from koord.embedded.apiserver.kinds.job import default_failure_policy, job_spec_errors
from koord.embedded.apiserver.kinds.pod.defaults import default_pod_template
from koord.embedded.apiserver.kinds.strategy import KindStrategy, fill_absent
from koord.embedded.apiserver.kinds.validators import NOT_NEGATIVE, even_if_absent, fields, first_of, non_empty, one_of
from koord.values import duration
from koord.values.go_format import integer_refusal, parse_decimal_int

MAX_CRON_JOB_NAME_CHARS = 52
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
_DAYS = "sun mon tue wed thu fri sat"
# (lowest, highest, names) of minute, hour, day of month, month, day of week
_FIELD_RANGES: tuple[tuple[int, int, dict[str, int]], ...] = (
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, {name: number for number, name in enumerate(_MONTHS.split(), 1)}),
    (0, 6, {name: number for number, name in enumerate(_DAYS.split())}),
)
_DESCRIPTORS = frozenset(("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"))
_EVERY = "@every "


class _CronSyntaxError(ValueError):
    pass


def cron_schedule_error(text: str) -> str:
    """Return why the schedule is invalid, empty when it is valid."""
    if "TZ" in text:
        return "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
    try:
        _parse_schedule(text)
    except _CronSyntaxError as error:
        return str(error)
    return ""


def _parse_schedule(text: str) -> None:
    if text.startswith("@"):
        _parse_descriptor(text)
        return
    parts = text.split()
    if len(parts) != len(_FIELD_RANGES):
        raise _CronSyntaxError(f"expected exactly 5 fields, found {len(parts)}: [{' '.join(parts)}]")
    for part, (low, high, names) in zip(parts, _FIELD_RANGES, strict=True):
        for expression in part.split(","):
            if expression:
                _check_range(expression, low, high, names)


def _parse_descriptor(text: str) -> None:
    if text in _DESCRIPTORS:
        return
    if not text.startswith(_EVERY):
        raise _CronSyntaxError(f"unrecognized descriptor: {text}")
    try:
        duration.parse(text.removeprefix(_EVERY))
    except ValueError as error:
        raise _CronSyntaxError(f"failed to parse duration {text}: {error}") from None


def _check_range(expression: str, low: int, high: int, names: dict[str, int]) -> None:
    span, *steps = expression.split("/")
    first, *rest = span.split("-")
    if first in ("*", "?"):
        start, end = low, high
    else:
        start = end = _parse_number(first, names)
        if len(rest) == 1:
            end = _parse_number(rest[0], names)
        elif rest:
            raise _CronSyntaxError(f"too many hyphens: {expression}")
    step = 1
    if len(steps) == 1:
        step = _parse_number(steps[0], {})
        if first not in ("*", "?") and not rest:
            end = high
    elif steps:
        raise _CronSyntaxError(f"too many slashes: {expression}")
    if start < low:
        raise _CronSyntaxError(f"beginning of range ({start}) below minimum ({low}): {expression}")
    if end > high:
        raise _CronSyntaxError(f"end of range ({end}) above maximum ({high}): {expression}")
    if start > end:
        raise _CronSyntaxError(f"beginning of range ({start}) beyond end of range ({end}): {expression}")
    if step == 0:
        raise _CronSyntaxError(f"step of range should be a positive number: {expression}")


def _parse_number(text: str, names: dict[str, int]) -> int:
    named = names.get(text.lower())
    if named is not None:
        return named
    value = parse_decimal_int(text)
    if value is None:
        raise _CronSyntaxError(f"failed to parse int from {text}: {integer_refusal(text)}")
    if value < 0:
        raise _CronSyntaxError(f"negative number ({value}) not allowed: {text}")
    return value


@functools.cache
def _iana_time_zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def time_zone_error(name: str) -> str:
    """Return why the time zone is invalid, empty when it is an IANA time zone."""
    if not name:
        return "timeZone must be nil or non-empty string"
    if name.lower() == "local":
        return "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
    return "" if name in _iana_time_zones() else f"unknown time zone {name}"


def _default_cron_job(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    limits = {"successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1}
    fill_absent(spec, concurrencyPolicy="Allow", suspend=False, **limits)
    template = spec.setdefault("jobTemplate", {})
    template.setdefault("metadata", {})
    inner = template.setdefault("spec", {})
    default_failure_policy(inner)
    default_pod_template(inner)


_CRON_RULES = fields(
    {
        "startingDeadlineSeconds": NOT_NEGATIVE,
        "concurrencyPolicy": even_if_absent(first_of(non_empty(), one_of("Allow", "Forbid", "Replace"))),
    }
)
_HISTORY_RULES = fields({"successfulJobsHistoryLimit": NOT_NEGATIVE, "failedJobsHistoryLimit": NOT_NEGATIVE})


def _cron_job_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj["spec"]
    errors: list[ApiFieldError] = []
    schedule = spec.get("schedule", "")
    if not schedule:
        errors.append(required("spec.schedule"))
    elif refusal := cron_schedule_error(schedule):
        errors.append(invalid_value("spec.schedule", schedule, refusal))
    errors += _CRON_RULES(spec, "spec")
    zone = spec.get("timeZone")
    if zone is not None and (refusal := time_zone_error(zone)):
        errors.append(invalid_value("spec.timeZone", zone, refusal))
    errors += job_spec_errors(spec["jobTemplate"]["spec"], "spec.jobTemplate.spec")
    return [*errors, *_HISTORY_RULES(spec, "spec")]


def _cron_job_create_errors(obj: Obj) -> list[ApiFieldError]:
    errors = _cron_job_errors(obj)
    name = obj["metadata"]["name"]
    if len(name) > MAX_CRON_JOB_NAME_CHARS:  # the jobs that it makes need room for a time
        errors.append(
            invalid_value("metadata.name", name, f"must be no more than {MAX_CRON_JOB_NAME_CHARS} characters")
        )
    return errors


CRON_JOB = KindStrategy(
    default=_default_cron_job,
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_cron_job_create_errors,
    validate_update=lambda new, old: _cron_job_errors(new),
)
