"""This module holds the arguments of the Reservation plugin."""

from __future__ import annotations

import msgspec

from koord.api.config.field_error import FieldError, range_errors
from koord.api.config.scheduler.plugin_args import SchedulerPluginArgs
from koord.api.koordinator.protocol import A_PRE_ALLOCATABLE_PRIORITY, L_IS_PRE_ALLOCATABLE
from koord.api.model import Model
from koord.values.names import dns1123_subdomain


class PreAllocationConfig(Model, frozen=True, kw_only=True):
    enable_cluster_mode: bool = False
    cluster_label_key: str = ""
    cluster_priority_annotation_key: str = ""
    prefer_no_pre_allocated_pods: bool = False


class ReservationSelectorIndex(Model, frozen=True, kw_only=True):
    enabled: bool = False
    key_prefixes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class ReservationArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    enable_preemption: bool | None = None
    min_candidate_nodes_percentage: int | None = None
    min_candidate_nodes_absolute: int | None = None
    controller_workers: int | None = None
    gc_duration_seconds: int = 0
    gc_interval_seconds: int = 0
    resync_interval_seconds: int = 0
    disable_garbage_collection: bool = False
    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()
    pre_allocation_config: PreAllocationConfig | None = None
    reservation_selector_index: ReservationSelectorIndex | None = None


def defaulted(args: ReservationArgs) -> ReservationArgs:
    percentage, absolute = args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
    pre = args.pre_allocation_config
    return msgspec.structs.replace(
        args,
        enable_preemption=args.enable_preemption or False,
        min_candidate_nodes_percentage=10 if percentage is None else percentage,
        min_candidate_nodes_absolute=100 if absolute is None else absolute,
        controller_workers=1 if args.controller_workers is None else args.controller_workers,
        gc_duration_seconds=args.gc_duration_seconds or 86400,
        gc_interval_seconds=args.gc_interval_seconds or 60,
        resync_interval_seconds=args.resync_interval_seconds or 60,
        pre_allocation_config=pre
        and msgspec.structs.replace(
            pre,
            cluster_label_key=pre.cluster_label_key or L_IS_PRE_ALLOCATABLE,
            cluster_priority_annotation_key=pre.cluster_priority_annotation_key or A_PRE_ALLOCATABLE_PRIORITY,
        ),
    )


def validate(args: ReservationArgs) -> list[FieldError]:
    errors = [
        *range_errors("minCandidateNodesPercentage", args.min_candidate_nodes_percentage, low=0, high=100),
        *range_errors("minCandidateNodesAbsolute", args.min_candidate_nodes_absolute, low=0),
        *range_errors("controllerWorkers", args.controller_workers, low=1),
        *range_errors("gcDurationSeconds", args.gc_duration_seconds, low=0),
        *range_errors("gcIntervalSeconds", args.gc_interval_seconds, low=0),
        *range_errors("resyncIntervalSeconds", args.resync_interval_seconds, low=0),
    ]
    for index, name in enumerate(args.ignored_resources):
        prefix, slash, _ = name.partition("/")
        if not slash or prefix == "kubernetes.io" or prefix.endswith(".kubernetes.io"):
            rule = "must be an extended resource name, with a domain that is not Kubernetes' own"
            errors.append(FieldError(f"ignoredResources[{index}]", name, rule))
    for index, group in enumerate(args.ignored_resource_groups):
        if "/" in group or dns1123_subdomain(group) or group == "kubernetes.io" or group.endswith(".kubernetes.io"):
            rule = "must be a domain without '/', and not Kubernetes' own"
            errors.append(FieldError(f"ignoredResourceGroups[{index}]", group, rule))
    return errors
