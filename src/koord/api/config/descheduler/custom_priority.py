"""Arguments of CustomPriority: levels of nodes, expensive first, off which pods are moved."""

from __future__ import annotations

import msgspec

from koord.api.config.descheduler.args import Namespaces, PluginArgs, PodSelector, validate_namespaces
from koord.api.config.field_error import FieldError, each_within, one_of, required, selector_errors, unique
from koord.api.meta import LabelSelector
from koord.api.model import Model
from koord.values.names import dns1123_label

BEST_EFFORT = "BestEffort"
DRAIN_NODE = "DrainNode"


class PriorityLevel(Model, frozen=True, kw_only=True):
    """PriorityLevel is a level of nodes. The two thresholds are part of the shape and without effect."""

    name: str = ""
    node_selector: LabelSelector | None = None
    keep_threshold: dict[str, float] = {}
    reject_threshold: dict[str, float] = {}


class CustomPriorityArgs(PluginArgs, frozen=True, kw_only=True):
    """CustomPriorityArgs lists levels of nodes, expensive first, off which pods are moved."""
    paused: bool | None = None
    dry_run: bool | None = None
    evictable_namespaces: Namespaces | None = None
    node_selector: LabelSelector | None = None
    pod_selectors: tuple[PodSelector, ...] = ()
    node_fit: bool | None = None
    eviction_order: tuple[PriorityLevel, ...] = ()
    mode: str = ""
    auto_cordon: bool | None = None


def defaulted(args: CustomPriorityArgs) -> CustomPriorityArgs:
    return msgspec.structs.replace(
        args,
        paused=args.paused or False,
        dry_run=args.dry_run or False,
        node_fit=True if args.node_fit is None else args.node_fit,
        mode=args.mode or BEST_EFFORT,
        auto_cordon=args.auto_cordon or False,
    )


def validate(args: CustomPriorityArgs) -> list[FieldError]:
    errors = validate_namespaces(args.evictable_namespaces, "evictableNamespaces")
    errors += selector_errors("nodeSelector", args.node_selector)
    errors += one_of("mode", args.mode, (BEST_EFFORT, DRAIN_NODE))
    for index, pod in enumerate(args.pod_selectors):
        errors += _name(f"podSelectors[{index}].name", pod.name)
        errors += selector_errors(f"podSelectors[{index}].selector", pod.selector)
    if len(args.eviction_order) < 2:
        errors.append(FieldError("evictionOrder", len(args.eviction_order), "must have at least 2 levels"))
    errors += unique("evictionOrder", (level.name for level in args.eviction_order))
    for index, level in enumerate(args.eviction_order):
        here = f"evictionOrder[{index}]"
        errors += _name(f"{here}.name", level.name)
        errors += [required(f"{here}.nodeSelector")] if level.node_selector is None else []
        errors += selector_errors(f"{here}.nodeSelector", level.node_selector)
        errors += each_within(f"{here}.keepThreshold", level.keep_threshold, low=0, high=100)
        errors += each_within(f"{here}.rejectThreshold", level.reject_threshold, low=0, high=100)
    return errors


def _name(field: str, name: str) -> list[FieldError]:
    if not name:
        return [required(field)]
    return [FieldError(field, name, why) for why in dns1123_label(name)]
