"""This module holds what all plugin arguments share: their type header, scoring strategies and resource weights."""

from __future__ import annotations

from collections.abc import Collection

from koord.api.config.field_error import FieldError, enum_errors, range_errors, required_error
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.model import Model
from koord.api.schema_markers import never_omitted

API_VERSION = "kubescheduler.config.k8s.io/v1"

LEAST_ALLOCATED = "LeastAllocated"
MOST_ALLOCATED = "MostAllocated"
REQUESTED_TO_CAPACITY_RATIO = "RequestedToCapacityRatio"


class SchedulerPluginArgs(Model, frozen=True, kw_only=True):
    """SchedulerPluginArgs is the type header. A profile may omit both fields: the plugin's name gives the kind."""

    api_version: str = ""
    kind: str = ""


class ResourceWeight(Model, frozen=True, kw_only=True):
    name: str = ""
    weight: int = 0  # 0 counts as 1


class UtilizationShapePoint(Model, frozen=True, kw_only=True):
    utilization: int = never_omitted(0)
    score: int = never_omitted(0)


class RequestedToCapacityRatioParam(Model, frozen=True, kw_only=True):
    shape: tuple[UtilizationShapePoint, ...] = ()


class ScoringStrategy(Model, frozen=True, kw_only=True):
    type: str = ""
    resources: tuple[ResourceWeight, ...] = ()
    requested_to_capacity_ratio: RequestedToCapacityRatioParam | None = None


CPU_AND_MEMORY = (ResourceWeight(name=CPU, weight=1), ResourceWeight(name=MEMORY, weight=1))
LEAST_CPU_AND_MEMORY = ScoringStrategy(type=LEAST_ALLOCATED, resources=CPU_AND_MEMORY)


def defaulted_strategy(given: ScoringStrategy | None, default: ScoringStrategy) -> ScoringStrategy:
    """Fill in a strategy: without resources it takes the default's; a resource without weight weighs 1."""
    if given is None:
        return default
    return ScoringStrategy(
        type=given.type or default.type,
        resources=defaulted_weights(given.resources) or default.resources,
        requested_to_capacity_ratio=given.requested_to_capacity_ratio,
    )


def defaulted_weights(given: tuple[ResourceWeight, ...]) -> tuple[ResourceWeight, ...]:
    return tuple(ResourceWeight(name=r.name, weight=r.weight or 1) for r in given)


def validate_weights(resources: tuple[ResourceWeight, ...], path: str) -> list[FieldError]:
    return [e for i, r in enumerate(resources) for e in range_errors(f"{path}[{i}].weight", r.weight, low=1, high=100)]


def validate_strategy(given: ScoringStrategy | None, path: str, types: Collection[str]) -> list[FieldError]:
    if given is None:
        return [required_error(path)]
    return enum_errors(f"{path}.type", given.type, types) + validate_weights(given.resources, f"{path}.resources")
