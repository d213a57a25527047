"""RemoveFailedPods evicts pods that have failed and still exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from koord.api.config.descheduler.args import Namespaces, PluginArgs
from koord.api.meta import LabelSelector
from koord.api.node import Node
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Hand
from koord.descheduler.plugins.kube.args import Chosen, namespace_errors, read, selector_error
from koord.descheduler.plugins.kube.container_state import age_s, exit_codes, terminated_reasons, waiting_reasons
from koord.descheduler.wire import Pod

LEAST_AGE_S = 3600


class Args(PluginArgs, frozen=True, kw_only=True):
    namespaces: Namespaces | None = None
    label_selector: LabelSelector | None = None
    exclude_owner_kinds: tuple[str, ...] = ()
    min_pod_lifetime_seconds: int | None = None
    reasons: tuple[str, ...] = ()
    exit_codes: tuple[int, ...] = ()
    including_init_containers: bool = False


class FailedPods(Plugin):
    name: ClassVar[str] = "RemoveFailedPods"

    def __init__(self, args: Args) -> None:
        self._args = args
        self._chosen = Chosen(args.namespaces, args.label_selector)

    def deschedule(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        for node in nodes:
            for pod in list(hand.snapshot.on(node.metadata.name, ended=True)):
                if self._is_due(pod, hand.snapshot.now_s) and self._chosen.takes(pod, hand):
                    hand.evict(pod, "")
        return None

    def _is_due(self, pod: Pod, now_s: float) -> bool:
        args = self._args
        least = LEAST_AGE_S if args.min_pod_lifetime_seconds is None else args.min_pod_lifetime_seconds
        if pod.status.phase != "Failed" or age_s(pod, now_s) < least:
            return False
        if any(owner.kind in args.exclude_owner_kinds for owner in pod.metadata.owner_references):
            return False
        init = args.including_init_containers
        if args.reasons:
            seen = {pod.status.reason} | waiting_reasons(pod, init=init) | terminated_reasons(pod, init=init)
            if not seen.intersection(args.reasons):
                return False
        return not args.exit_codes or bool(exit_codes(pod, init=init).intersection(args.exit_codes))


def failed_pods(raw: Any) -> Plugin | list[str]:
    args = read(FailedPods.name, Args, raw)
    if isinstance(args, list):
        return args
    errors = namespace_errors(args.namespaces) + selector_error(args.label_selector)
    return errors or FailedPods(args)
