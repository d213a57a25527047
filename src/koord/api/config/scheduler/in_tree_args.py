"""This module holds the arguments of the plugins of kube-scheduler itself, with the defaults of Kubernetes 1.35."""

from __future__ import annotations

import msgspec

from koord.api.config.component import fill_empty, fill_none
from koord.api.config.field_error import FieldError, duration_errors, enum_errors, range_errors
from koord.api.config.scheduler import plugin_args
from koord.api.kubernetes.affinity import NodeAffinity, TopologySpreadConstraint
from koord.api.schema_markers import Duration

SYSTEM_DEFAULTING = "System"
LIST_DEFAULTING = "List"

_FIT_TYPES = (plugin_args.LEAST_ALLOCATED, plugin_args.MOST_ALLOCATED, plugin_args.REQUESTED_TO_CAPACITY_RATIO)


class NodeResourcesFitArgs(plugin_args.SchedulerPluginArgs, frozen=True, kw_only=True):
    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()
    scoring_strategy: plugin_args.ScoringStrategy | None = None


class NodeResourcesBalancedAllocationArgs(plugin_args.SchedulerPluginArgs, frozen=True, kw_only=True):
    resources: tuple[plugin_args.ResourceWeight, ...] = ()


class InterPodAffinityArgs(plugin_args.SchedulerPluginArgs, frozen=True, kw_only=True):
    hard_pod_affinity_weight: int | None = None
    ignore_preferred_terms_of_existing_pods: bool = False


class PodTopologySpreadArgs(plugin_args.SchedulerPluginArgs, frozen=True, kw_only=True):
    default_constraints: tuple[TopologySpreadConstraint, ...] = ()
    defaulting_type: str = ""


class DefaultPreemptionArgs(plugin_args.SchedulerPluginArgs, frozen=True, kw_only=True):
    min_candidate_nodes_percentage: int | None = None
    min_candidate_nodes_absolute: int | None = None


class NodeAffinityArgs(plugin_args.SchedulerPluginArgs, frozen=True, kw_only=True):
    added_affinity: NodeAffinity | None = None


class VolumeBindingArgs(plugin_args.SchedulerPluginArgs, frozen=True, kw_only=True):
    bind_timeout_seconds: int | None = None
    shape: tuple[plugin_args.UtilizationShapePoint, ...] = ()


class DynamicResourcesArgs(plugin_args.SchedulerPluginArgs, frozen=True, kw_only=True):
    filter_timeout: Duration | None = None


def defaulted_fit(args: NodeResourcesFitArgs) -> NodeResourcesFitArgs:
    strategy = plugin_args.defaulted_strategy(args.scoring_strategy, plugin_args.LEAST_CPU_AND_MEMORY)
    return msgspec.structs.replace(args, scoring_strategy=strategy)


def defaulted_balanced(args: NodeResourcesBalancedAllocationArgs) -> NodeResourcesBalancedAllocationArgs:
    return msgspec.structs.replace(
        args, resources=plugin_args.defaulted_weights(args.resources) or plugin_args.CPU_AND_MEMORY
    )


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
    errors = plugin_args.validate_strategy(args.scoring_strategy, "scoringStrategy", _FIT_TYPES)
    for index, group in enumerate(args.ignored_resource_groups):
        if "/" in group:
            errors.append(FieldError(f"ignoredResourceGroups[{index}]", group, "must not contain '/'"))
    shape = args.scoring_strategy.requested_to_capacity_ratio if args.scoring_strategy else None
    if args.scoring_strategy and args.scoring_strategy.type == plugin_args.REQUESTED_TO_CAPACITY_RATIO:
        path = "scoringStrategy.requestedToCapacityRatio.shape"
        errors += validate_shape(shape.shape if shape else (), path)
    return errors


def validate_balanced(args: NodeResourcesBalancedAllocationArgs) -> list[FieldError]:
    return plugin_args.validate_weights(args.resources, "resources")


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


def validate_shape(shape: tuple[plugin_args.UtilizationShapePoint, ...], path: str) -> list[FieldError]:
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
