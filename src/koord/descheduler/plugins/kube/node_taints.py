"""RemovePodsViolatingNodeTaints evicts pods that do not tolerate taints added to their node later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from koord.api.affinity import Taint
from koord.api.config.descheduler.args import Namespaces, PluginArgs
from koord.api.meta import LabelSelector
from koord.api.node import Node
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Hand
from koord.descheduler.plugins.kube.args import Chosen, namespace_errors, read, selector_error
from koord.policy.node_suitability import NO_SCHEDULE, tolerated

PREFER_NO_SCHEDULE = "PreferNoSchedule"


class Args(PluginArgs, frozen=True, kw_only=True):
    namespaces: Namespaces | None = None
    label_selector: LabelSelector | None = None
    include_prefer_no_schedule: bool = False
    excluded_taints: tuple[str, ...] = ()
    included_taints: tuple[str, ...] = ()


class ViolatedNodeTaints(Plugin):
    name: ClassVar[str] = "RemovePodsViolatingNodeTaints"

    def __init__(self, args: Args) -> None:
        self._args = args
        self._chosen = Chosen(args.namespaces, args.label_selector)

    def deschedule(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        for node in nodes:
            taints = [taint for taint in node.spec.taints if self._counts(taint)]
            for pod in list(hand.snapshot.on(node.metadata.name)) if taints else ():
                bears = all(tolerated(pod.spec.tolerations, taint) for taint in taints)
                if not bears and self._chosen.takes(pod, hand):
                    hand.evict(pod, "")
        return None

    def _counts(self, taint: Taint) -> bool:
        effects = (NO_SCHEDULE, PREFER_NO_SCHEDULE) if self._args.include_prefer_no_schedule else (NO_SCHEDULE,)
        if taint.effect not in effects or _listed(taint, self._args.excluded_taints):
            return False
        return not self._args.included_taints or _listed(taint, self._args.included_taints)


def _listed(taint: Taint, names: Sequence[str]) -> bool:
    """Return whether the taint is listed by key, or by key and value."""
    return taint.key in names or f"{taint.key}={taint.value}" in names


def violated_node_taints(raw: Any) -> Plugin | list[str]:
    args = read(ViolatedNodeTaints.name, Args, raw)
    if isinstance(args, list):
        return args
    errors = namespace_errors(args.namespaces) + selector_error(args.label_selector)
    if args.excluded_taints and args.included_taints:
        errors.append("either includedTaints or excludedTaints can be set, but not both")
    return errors or ViolatedNodeTaints(args)
