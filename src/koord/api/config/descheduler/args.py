"""This module holds the arguments of the smaller descheduler plugins and what all arguments share: namespaces,
pod selectors, thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.config.field_error import FieldError, each_within, selector_errors
from koord.api.meta import LabelSelector
from koord.api.model import Model

API_VERSION = "descheduler/v1alpha2"


class PluginArgs(Model, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""


class Namespaces(Model, frozen=True, kw_only=True):
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class PodSelector(Model, frozen=True, kw_only=True):
    name: str = ""
    selector: LabelSelector | None = None


def validate_namespaces(given: Namespaces | None, path: str) -> list[FieldError]:
    if given is None or not (given.include and given.exclude):
        return []
    return [FieldError(path, [*given.include, *given.exclude], "only one of Include/Exclude namespaces can be set")]


def validate_pod_selectors(given: tuple[PodSelector, ...], path: str = "podSelectors") -> list[FieldError]:
    return [e for i, pod in enumerate(given) for e in selector_errors(f"{path}[{i}].selector", pod.selector)]


def not_above(lower: Mapping[str, float], upper: Mapping[str, float], path: str, rule: str) -> list[FieldError]:
    """Return an error for each value of `lower` above the same resource's in `upper`; resources in only one are
    not compared.
    """
    return [
        FieldError(f"{path}[{name}]", value, f"{rule} ({upper[name]:g})")
        for name, value in lower.items()
        if name in upper and value > upper[name]
    ]


def validate_thresholds(
    high: Mapping[str, float],
    low: Mapping[str, float],
    prod_high: Mapping[str, float],
    prod_low: Mapping[str, float],
    path: str = "",
) -> list[FieldError]:
    """Validate the four thresholds of load-based plugins against 0 and against each other."""
    named = {
        "highThresholds": high,
        "lowThresholds": low,
        "prodHighThresholds": prod_high,
        "prodLowThresholds": prod_low,
    }
    errors = [e for name, given in named.items() for e in each_within(f"{path}{name}", given, low=0)]
    at_most = "percentage must be less than or equal to"
    errors += not_above(low, high, f"{path}lowThresholds", f"low {at_most} highThresholds")
    # In the words of upstream, which names the field with a capital here.
    above = "node percentage must be greater than or equal to prodHighThresholds"
    errors += not_above(prod_high, high, f"{path}ProdHighThresholds", above)
    errors += not_above(prod_low, prod_high, f"{path}prodLowThresholds", f"low {at_most} prodHighThresholds")
    return errors
