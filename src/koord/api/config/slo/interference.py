"""This module holds the strategy of interference detection: its settings, their limits and defaults, and its place in a
NodeSLO.

Koordinator has no such strategy. The document `interference-config` of slo-controller-config states it, and NodeSLO
carries it below `extensions`, where other programs leave it alone.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koord.api.config.field_error import FieldError, FieldLimit, enum_errors, limit_errors
from koord.api.config.slo.defaults import overlay
from koord.api.koordinator.slo import Extensions
from koord.api.model import Submodel, to_dict

EXTENSION_KEY = "interference"
REPORT, THROTTLE, EVICT = "report", "throttle", "evict"
ACTIONS = (REPORT, THROTTLE, EVICT)


class InterferenceStrategy(Submodel, frozen=True, kw_only=True):
    """InterferenceStrategy says when a latency-sensitive container counts as disturbed, and what is done about it."""

    enable: bool | None = None
    action: str = ""  # one of ACTIONS
    sample_seconds: int | None = None  # between two samples of a container
    baseline_samples: int | None = None  # of which mean and deviation are made
    outlier_deviations: float | None = None  # above the mean
    outliers: int | None = None  # of the last five samples, which make an incident
    correlation_threshold: float | None = None  # from which a batch pod is named as the culprit
    throttle_percent: int | None = None  # of the CPU that the culprit used
    throttle_seconds: int | None = None
    action_interval_seconds: int | None = None  # between two actions on a node


DEFAULT_INTERFERENCE = InterferenceStrategy(
    enable=True,
    action=REPORT,
    sample_seconds=60,
    baseline_samples=60,
    outlier_deviations=2.0,
    outliers=3,
    correlation_threshold=0.35,
    throttle_percent=10,
    throttle_seconds=300,
    action_interval_seconds=600,
)

INTERFERENCE_LIMITS = (
    FieldLimit(fields=("sample_seconds",), low=1, high=60),  # series of cycles and stalls are kept for a minute
    FieldLimit(fields=("baseline_samples",), low=20, high=240),
    FieldLimit(fields=("outlier_deviations",), low=1, high=10),
    FieldLimit(fields=("outliers",), low=1, high=5),
    FieldLimit(fields=("correlation_threshold",), low=0.05, high=1),
    FieldLimit(fields=("throttle_percent",), low=1, high=99),
    FieldLimit(fields=("throttle_seconds",), low=10, high=3600),
    FieldLimit(fields=("action_interval_seconds",), low=10, high=86_400),
)


def interference_of_extensions(extensions: Extensions | None) -> InterferenceStrategy | FieldError:
    """Return the strategy of a NodeSLO, laid over the defaults, or the first value that no node can use."""
    stated = ((extensions and extensions.object) or {}).get(EXTENSION_KEY)
    if stated is None:
        return DEFAULT_INTERFERENCE
    path = f"extensions.{EXTENSION_KEY}"
    try:
        strategy = msgspec.convert(stated, InterferenceStrategy)
    except msgspec.ValidationError as error:
        return FieldError(path, stated, str(error))
    errors = limit_errors(strategy, INTERFERENCE_LIMITS, (), f"{path}.")
    errors += enum_errors(f"{path}.action", strategy.action or REPORT, ACTIONS)
    return errors[0] if errors else overlay(DEFAULT_INTERFERENCE, strategy)


def with_interference(extensions: Extensions | None, strategy: InterferenceStrategy) -> Extensions | None:
    """Return the extensions of a NodeSLO with this strategy. One that states nothing is taken out; what others wrote
    stays.
    """
    others: dict[str, Any] = {
        key: value for key, value in ((extensions and extensions.object) or {}).items() if key != EXTENSION_KEY
    }
    stated = to_dict(strategy)
    if stated:
        return Extensions(object={**others, EXTENSION_KEY: stated})
    if extensions is None or EXTENSION_KEY not in (extensions.object or {}):
        return extensions
    return Extensions(object=others or None)
