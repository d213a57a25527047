"""Arguments of ScaleDownBinPack: which pods should go first when a workload shrinks."""

from __future__ import annotations

import math

import msgspec

from koord.api.config.descheduler.args import (
    Namespaces,
    PluginArgs,
    PodSelector,
    validate_namespaces,
    validate_pod_selectors,
)
from koord.api.config.field_error import FieldError, one_of, required, selector_errors, unique
from koord.api.meta import LabelSelector
from koord.api.resource_name import CPU, MEMORY

CALCULATE_ONLY = "CalculateOnly"
EVICT_DIRECTLY = "EvictDirectly"


class ScaleDownBinPackArgs(PluginArgs, frozen=True, kw_only=True):
    """ScaleDownBinPackArgs says which pods should go first when a workload shrinks."""
    paused: bool | None = None
    strategy: str = ""
    max_pods_to_evict: int | None = None
    node_selector: LabelSelector | None = None
    pod_selectors: tuple[PodSelector, ...] = ()
    evictable_namespaces: Namespaces | None = None
    resources: tuple[str, ...] = ()
    resource_weights: dict[str, float] = {}


def defaulted(args: ScaleDownBinPackArgs) -> ScaleDownBinPackArgs:
    resources = args.resources or (CPU, MEMORY)
    return msgspec.structs.replace(
        args,
        paused=args.paused or False,
        strategy=args.strategy or CALCULATE_ONLY,
        resources=resources,
        resource_weights={**dict.fromkeys(resources, 1.0), **args.resource_weights},
    )


def validate(args: ScaleDownBinPackArgs) -> list[FieldError]:
    errors = one_of("strategy", args.strategy, (CALCULATE_ONLY, EVICT_DIRECTLY))
    if args.strategy == EVICT_DIRECTLY and (args.max_pods_to_evict or 0) <= 0:
        rule = "must be greater than 0 with strategy EvictDirectly"
        errors.append(FieldError("maxPodsToEvict", args.max_pods_to_evict, rule))
    errors += selector_errors("nodeSelector", args.node_selector)
    errors += validate_pod_selectors(args.pod_selectors)
    errors += validate_namespaces(args.evictable_namespaces, "evictableNamespaces")
    errors += [required(f"resources[{i}]") for i, name in enumerate(args.resources) if not name]
    errors += unique("resources", args.resources)
    for name, weight in args.resource_weights.items():
        if not (math.isfinite(weight) and weight > 0):
            errors.append(FieldError(f"resourceWeights[{name}]", weight, "must be a finite number greater than 0"))
    return errors
