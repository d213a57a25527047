"""This module holds the arguments of Koordinator's smaller scheduler plugins: Coscheduling, NodeNUMAResource,
DeviceShare, NodeResourcesFitPlus, ScarceResourceAvoidance and SchedulingHint.
"""

from __future__ import annotations

import msgspec
from msgspec import field

from koord.api.annotations.gang_codecs import GANG_MATCH_POLICIES, ONCE_SATISFIED
from koord.api.annotations.numa_codecs import CPU_BIND_FULL_PCPUS, CPU_BIND_SPREAD_BY_PCPUS
from koord.api.config.field_error import FieldError, duration_errors, enum_errors, range_errors
from koord.api.config.scheduler.plugin_args import (
    LEAST_ALLOCATED,
    LEAST_CPU_AND_MEMORY,
    MOST_ALLOCATED,
    ResourceWeight,
    SchedulerPluginArgs,
    ScoringStrategy,
    defaulted_strategy,
    validate_strategy,
)
from koord.api.koordinator.protocol import GPU_TEMPLATES_CONFIG_MAP, NAMESPACE
from koord.api.koordinator.resource_name import FPGA, GPU_MEMORY, GPU_MEMORY_RATIO, NPU_CORE, RDMA
from koord.api.model import Model
from koord.api.schema_markers import Duration


class CoschedulingArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    default_timeout: Duration | None = None
    controller_workers: int | None = None
    skip_check_schedule_cycle: bool | None = None  # accepted for old files, without effect
    enable_preemption: bool | None = None
    aware_network_topology: bool | None = None
    default_match_policy: str | None = None


def defaulted_coscheduling(args: CoschedulingArgs) -> CoschedulingArgs:
    return msgspec.structs.replace(
        args,
        default_timeout=args.default_timeout or "600s",
        controller_workers=1 if args.controller_workers is None else args.controller_workers,
        enable_preemption=args.enable_preemption or False,
        aware_network_topology=args.aware_network_topology or False,
        default_match_policy=args.default_match_policy or ONCE_SATISFIED,
    )


def validate_coscheduling(args: CoschedulingArgs) -> list[FieldError]:
    return [
        *duration_errors("defaultTimeout", args.default_timeout),
        *range_errors("controllerWorkers", args.controller_workers, low=1),
        *enum_errors("defaultMatchPolicy", args.default_match_policy, GANG_MATCH_POLICIES),
    ]


class NodeNUMAResourceArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    """NodeNUMAResourceArgs: an explicitly empty bind policy leaves LSE and LSR pods without a policy of their own
    unbound.
    """

    default_cpu_bind_policy: str | None = field(default=None, name="defaultCPUBindPolicy")
    scoring_strategy: ScoringStrategy | None = None
    numa_scoring_strategy: ScoringStrategy | None = None


def defaulted_numa(args: NodeNUMAResourceArgs) -> NodeNUMAResourceArgs:
    policy = args.default_cpu_bind_policy
    return msgspec.structs.replace(
        args,
        default_cpu_bind_policy=CPU_BIND_FULL_PCPUS if policy is None else policy,
        scoring_strategy=defaulted_strategy(args.scoring_strategy, LEAST_CPU_AND_MEMORY),
        numa_scoring_strategy=defaulted_strategy(args.numa_scoring_strategy, LEAST_CPU_AND_MEMORY),
    )


def validate_numa(args: NodeNUMAResourceArgs) -> list[FieldError]:
    types = (LEAST_ALLOCATED, MOST_ALLOCATED)
    return [
        *enum_errors(
            "defaultCPUBindPolicy", args.default_cpu_bind_policy, ("", CPU_BIND_FULL_PCPUS, CPU_BIND_SPREAD_BY_PCPUS)
        ),
        *validate_strategy(args.scoring_strategy, "scoringStrategy", types),
        *validate_strategy(args.numa_scoring_strategy, "numaScoringStrategy", types),
    ]


DEVICE_SHARE_STRATEGY = ScoringStrategy(
    type=LEAST_ALLOCATED,
    resources=tuple(ResourceWeight(name=name, weight=1) for name in (GPU_MEMORY_RATIO, GPU_MEMORY, RDMA, FPGA)),
)


class GPUSharedResourceTemplatesConfig(Model, frozen=True, kw_only=True):
    config_map_namespace: str = ""
    config_map_name: str = ""
    matched_resources: tuple[str, ...] = ()


class UnsupportedGPUModel(Model, frozen=True, kw_only=True):
    vendor: str = ""
    model: str = ""


class DeviceShareArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    allocator: str = ""  # deprecated, without effect
    scoring_strategy: ScoringStrategy | None = None
    disable_device_numa_topology_alignment: bool = field(default=False, name="disableDeviceNUMATopologyAlignment")
    gpu_shared_resource_templates_config: GPUSharedResourceTemplatesConfig | None = None
    gpu_share_unsupported_models: tuple[UnsupportedGPUModel, ...] = ()


def defaulted_device_share(args: DeviceShareArgs) -> DeviceShareArgs:
    templates = args.gpu_shared_resource_templates_config or GPUSharedResourceTemplatesConfig()
    return msgspec.structs.replace(
        args,
        scoring_strategy=defaulted_strategy(args.scoring_strategy, DEVICE_SHARE_STRATEGY),
        gpu_shared_resource_templates_config=GPUSharedResourceTemplatesConfig(
            config_map_namespace=templates.config_map_namespace or NAMESPACE,
            config_map_name=templates.config_map_name or GPU_TEMPLATES_CONFIG_MAP,
            matched_resources=templates.matched_resources or (NPU_CORE,),
        ),
    )


def validate_device_share(args: DeviceShareArgs) -> list[FieldError]:
    return validate_strategy(args.scoring_strategy, "scoringStrategy", (LEAST_ALLOCATED, MOST_ALLOCATED))


class FitPlusResource(Model, frozen=True, kw_only=True):
    type: str = ""
    weight: int = 0


class NodeResourcesFitPlusArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    """NodeResourcesFitPlusArgs has no defaults, and upstream validates nothing: an unknown type scores 0."""

    resources: dict[str, FitPlusResource] = {}


def defaulted_fit_plus(args: NodeResourcesFitPlusArgs) -> NodeResourcesFitPlusArgs:
    return args


class ScarceResourceAvoidanceArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    """ScarceResourceAvoidanceArgs names the resources that pods without need of them should keep away from."""

    resources: tuple[str, ...] = ()


def defaulted_scarce_resource(args: ScarceResourceAvoidanceArgs) -> ScarceResourceAvoidanceArgs:
    return args


class SchedulingHintArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    max_hint_nodes: int | None = None


def defaulted_scheduling_hint(args: SchedulingHintArgs) -> SchedulingHintArgs:
    return msgspec.structs.replace(args, max_hint_nodes=100 if args.max_hint_nodes is None else args.max_hint_nodes)


def validate_scheduling_hint(args: SchedulingHintArgs) -> list[FieldError]:
    return range_errors("maxHintNodes", args.max_hint_nodes, above=0)
