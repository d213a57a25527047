"""Arguments of DeviceShare."""

from __future__ import annotations

import msgspec
from msgspec import field

from koord.api.config.field_error import FieldError
from koord.api.config.scheduler.args import (
    LEAST_ALLOCATED,
    MOST_ALLOCATED,
    PluginArgs,
    ResourceWeight,
    ScoringStrategy,
    defaulted_strategy,
    validate_strategy,
)
from koord.api.model import Model
from koord.api.protocol import GPU_TEMPLATES_CONFIG_MAP, NAMESPACE
from koord.api.resource_name import FPGA, GPU_MEMORY, GPU_MEMORY_RATIO, NPU_CORE, RDMA

DEFAULT_STRATEGY = ScoringStrategy(
    type=LEAST_ALLOCATED,
    resources=tuple(ResourceWeight(name=name, weight=1) for name in (GPU_MEMORY_RATIO, GPU_MEMORY, RDMA, FPGA)),
)


class GPUSharedResourceTemplatesConfig(Model, frozen=True, kw_only=True):
    config_map_namespace: str = ""
    config_map_name: str = ""
    matched_resources: tuple[str, ...] = ()


class UnsupportedModel(Model, frozen=True, kw_only=True):
    vendor: str = ""
    model: str = ""


class DeviceShareArgs(PluginArgs, frozen=True, kw_only=True):
    allocator: str = ""  # deprecated, without effect
    scoring_strategy: ScoringStrategy | None = None
    disable_device_numa_topology_alignment: bool = field(default=False, name="disableDeviceNUMATopologyAlignment")
    gpu_shared_resource_templates_config: GPUSharedResourceTemplatesConfig | None = None
    gpu_share_unsupported_models: tuple[UnsupportedModel, ...] = ()


def defaulted(args: DeviceShareArgs) -> DeviceShareArgs:
    templates = args.gpu_shared_resource_templates_config or GPUSharedResourceTemplatesConfig()
    return msgspec.structs.replace(
        args,
        scoring_strategy=defaulted_strategy(args.scoring_strategy, DEFAULT_STRATEGY),
        gpu_shared_resource_templates_config=GPUSharedResourceTemplatesConfig(
            config_map_namespace=templates.config_map_namespace or NAMESPACE,
            config_map_name=templates.config_map_name or GPU_TEMPLATES_CONFIG_MAP,
            matched_resources=templates.matched_resources or (NPU_CORE,),
        ),
    )


def validate(args: DeviceShareArgs) -> list[FieldError]:
    return validate_strategy(args.scoring_strategy, "scoringStrategy", (LEAST_ALLOCATED, MOST_ALLOCATED))
