"""Arguments of FragmentationAware: how uneven a node's allocation may be before a pod is moved off it."""

from __future__ import annotations

import msgspec

from koord.api.config.descheduler.args import (
    Namespaces,
    PluginArgs,
    PodSelector,
    validate_namespaces,
    validate_pod_selectors,
)
from koord.api.config.field_error import FieldError, required, selector_errors, unique, within
from koord.api.meta import LabelSelector
from koord.api.resource_name import CPU, MEMORY


class FragmentationAwareArgs(PluginArgs, frozen=True, kw_only=True):
    """FragmentationAwareArgs says how uneven a node's allocation may be before a pod is moved off it."""
    paused: bool | None = None
    dry_run: bool | None = None
    node_selector: LabelSelector | None = None
    evictable_namespaces: Namespaces | None = None
    pod_selectors: tuple[PodSelector, ...] = ()
    node_fit: bool | None = None
    resources: tuple[str, ...] = ()
    imbalance_threshold: float | None = None
    min_improvement_threshold: float | None = None


def defaulted(args: FragmentationAwareArgs) -> FragmentationAwareArgs:
    imbalance, improvement = args.imbalance_threshold, args.min_improvement_threshold
    return msgspec.structs.replace(
        args,
        paused=args.paused or False,
        dry_run=args.dry_run or False,
        node_fit=True if args.node_fit is None else args.node_fit,
        resources=args.resources or (CPU, MEMORY),
        imbalance_threshold=0.15 if imbalance is None else imbalance,
        min_improvement_threshold=0.02 if improvement is None else improvement,
    )


def validate(args: FragmentationAwareArgs) -> list[FieldError]:
    return [
        *selector_errors("nodeSelector", args.node_selector),
        *validate_namespaces(args.evictable_namespaces, "evictableNamespaces"),
        *validate_pod_selectors(args.pod_selectors),
        *(required(f"resources[{i}]") for i, name in enumerate(args.resources) if not name),
        *unique("resources", args.resources),
        *within("imbalanceThreshold", args.imbalance_threshold, low=0),
        *within("minImprovementThreshold", args.min_improvement_threshold, low=0),
    ]
