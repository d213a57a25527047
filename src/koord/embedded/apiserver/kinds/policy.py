"""This section holds the strategy of PodDisruptionBudget."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds import generation, label
from koord.embedded.apiserver.kinds.apps import at_most_all, count_or_share
from koord.embedded.apiserver.kinds.rule import all_of, at_least, fields, one_of
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.refusal import FieldError, invalid_value

Obj = dict[str, Any]
_AMOUNT = all_of(count_or_share, at_most_all)
_SPEC = fields(
    {
        "minAvailable": _AMOUNT,
        "maxUnavailable": _AMOUNT,
        "selector": label.selector,
        "unhealthyPodEvictionPolicy": one_of("AlwaysAllow", "IfHealthyBudget"),
    }
)
_NUMBERS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
_STATUS = fields(dict.fromkeys(_NUMBERS, at_least(0)))


def _errors(obj: Obj) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors: list[FieldError] = []
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        shown = {
            "MinAvailable": spec["minAvailable"],
            "Selector": spec.get("selector"),
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        errors.append(invalid_value("spec", shown, "minAvailable and maxUnavailable cannot be both set"))
    return [*errors, *_SPEC(spec, "spec")]


def _status_errors(new: Obj, old: Obj) -> list[FieldError]:
    return list(_STATUS(new.get("status") or {}, "status"))


POD_DISRUPTION_BUDGET = Strategy(
    prepare_create=generation.begin,
    prepare_update=generation.bump_on("spec"),
    validate_create=_errors,
    validate_update=lambda new, old: _errors(new),
    validate_status=_status_errors,
)
