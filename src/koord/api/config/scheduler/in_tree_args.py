"""This module holds what all plugin arguments share (type header, scoring strategies, resource weights), and the
arguments of the plugins of kube-scheduler itself, with the defaults of Kubernetes 1.35.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from koord.api.config.component import fill_empty, fill_none
from koord.api.config.field_error import FieldError, duration_errors, enum_errors, range_errors, required_error
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.kubernetes.affinity import NodeAffinity, TopologySpreadConstraint
from koord.api.model import Model
from koord.api.schema_markers import Duration, never_omitted

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


SYSTEM_DEFAULTING = "System"
LIST_DEFAULTING = "List"

_FIT_TYPES = (LEAST_ALLOCATED, MOST_ALLOCATED, REQUESTED_TO_CAPACITY_RATIO)


class NodeResourcesFitArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()
    scoring_strategy: ScoringStrategy | None = None


class NodeResourcesBalancedAllocationArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    resources: tuple[ResourceWeight, ...] = ()


class InterPodAffinityArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    hard_pod_affinity_weight: int | None = None
    ignore_preferred_terms_of_existing_pods: bool = False


class PodTopologySpreadArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    default_constraints: tuple[TopologySpreadConstraint, ...] = ()
    defaulting_type: str = ""


class DefaultPreemptionArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    min_candidate_nodes_percentage: int | None = None
    min_candidate_nodes_absolute: int | None = None


class NodeAffinityArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    added_affinity: NodeAffinity | None = None


class VolumeBindingArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    bind_timeout_seconds: int | None = None
    shape: tuple[UtilizationShapePoint, ...] = ()


class DynamicResourcesArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    filter_timeout: Duration | None = None


def defaulted_fit(args: NodeResourcesFitArgs) -> NodeResourcesFitArgs:
    strategy = defaulted_strategy(args.scoring_strategy, LEAST_CPU_AND_MEMORY)
    return msgspec.structs.replace(args, scoring_strategy=strategy)


def defaulted_balanced(args: NodeResourcesBalancedAllocationArgs) -> NodeResourcesBalancedAllocationArgs:
    return msgspec.structs.replace(args, resources=defaulted_weights(args.resources) or CPU_AND_MEMORY)


def defaulted_inter_pod_affinity(args: InterPodAffinityArgs) -> InterPodAffinityArgs:
    return fill_none(args, hard_pod_affinity_weight=1)


def defaulted_spread(args: PodTopologySpreadArgs) -> PodTopologySpreadArgs:
    return fill_empty(args, defaulting_type=SYSTEM_DEFAULTING)


def defaulted_preemption(args: DefaultPreemptionArgs) -> DefaultPreemptionArgs:
    return fill_none(args, min_candidate_nodes_percentage=10, min_candidate_nodes_absolute=100)


def defaulted_volume_binding(args: VolumeBindingArgs) -> VolumeBindingArgs:
    return fill_none(args, bind_timeout_seconds=600)


def defaulted_dynamic_resources(args: DynamicResourcesArgs) -> DynamicResourcesArgs:
    return fill_empty(args, filter_timeout="10s")


def validate_fit(args: NodeResourcesFitArgs) -> list[FieldError]:
    errors = validate_strategy(args.scoring_strategy, "scoringStrategy", _FIT_TYPES)
    for index, group in enumerate(args.ignored_resource_groups):
        if "/" in group:
            errors.append(FieldError(f"ignoredResourceGroups[{index}]", group, "must not contain '/'"))
    shape = args.scoring_strategy.requested_to_capacity_ratio if args.scoring_strategy else None
    if args.scoring_strategy and args.scoring_strategy.type == REQUESTED_TO_CAPACITY_RATIO:
        path = "scoringStrategy.requestedToCapacityRatio.shape"
        errors += validate_shape(shape.shape if shape else (), path)
    return errors


def validate_balanced(args: NodeResourcesBalancedAllocationArgs) -> list[FieldError]:
    return validate_weights(args.resources, "resources")


def validate_inter_pod_affinity(args: InterPodAffinityArgs) -> list[FieldError]:
    return range_errors("hardPodAffinityWeight", args.hard_pod_affinity_weight, low=0, high=100)


def validate_spread(args: PodTopologySpreadArgs) -> list[FieldError]:
    errors = enum_errors("defaultingType", args.defaulting_type, (SYSTEM_DEFAULTING, LIST_DEFAULTING))
    if args.defaulting_type == SYSTEM_DEFAULTING and args.default_constraints:
        errors.append(FieldError("defaultingType", args.defaulting_type, "must be 'List' with defaultConstraints"))
    for index, constraint in enumerate(args.default_constraints):
        here = f"defaultConstraints[{index}]"
        errors += range_errors(f"{here}.maxSkew", constraint.max_skew, low=1)
        errors += enum_errors(
            f"{here}.whenUnsatisfiable", constraint.when_unsatisfiable, ("DoNotSchedule", "ScheduleAnyway")
        )
        if not constraint.topology_key:
            errors.append(FieldError(f"{here}.topologyKey", "", "is required"))
        if constraint.label_selector is not None:
            errors.append(FieldError(f"{here}.labelSelector", None, "must be empty: it is deduced from the pod"))
    return errors


def validate_preemption(args: DefaultPreemptionArgs) -> list[FieldError]:
    percentage, absolute = args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
    errors = range_errors("minCandidateNodesPercentage", percentage, low=0, high=100)
    errors += range_errors("minCandidateNodesAbsolute", absolute, low=0)
    if percentage == 0 and absolute == 0:
        rule = "must not be 0 together with minCandidateNodesAbsolute"
        errors.append(FieldError("minCandidateNodesPercentage", 0, rule))
    return errors


def validate_volume_binding(args: VolumeBindingArgs) -> list[FieldError]:
    errors = range_errors("bindTimeoutSeconds", args.bind_timeout_seconds, low=0)
    return errors + (validate_shape(args.shape, "shape") if args.shape else [])


def validate_dynamic_resources(args: DynamicResourcesArgs) -> list[FieldError]:
    return duration_errors("filterTimeout", args.filter_timeout)


def validate_shape(shape: tuple[UtilizationShapePoint, ...], path: str) -> list[FieldError]:
    """Check for at least one point, utilization rising within 0..100, and scores within 0..10."""
    if not shape:
        return [FieldError(path, [], "must have at least one point")]
    errors = []
    for index, point in enumerate(shape):
        errors += range_errors(f"{path}[{index}].utilization", point.utilization, low=0, high=100)
        errors += range_errors(f"{path}[{index}].score", point.score, low=0, high=10)
        if index and point.utilization <= shape[index - 1].utilization:
            errors.append(
                FieldError(f"{path}[{index}].utilization", point.utilization, "must rise from point to point")
            )
    return errors
