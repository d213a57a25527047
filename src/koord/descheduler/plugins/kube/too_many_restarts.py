"""RemovePodsHavingTooManyRestarts evicts pods that keep crashing and may do better on another node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from koord.api.config.descheduler.args import Namespaces, PluginArgs
from koord.api.meta import LabelSelector
from koord.api.node import Node
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Hand
from koord.descheduler.plugins.kube.args import Chosen, namespace_errors, read, selector_error
from koord.descheduler.plugins.kube.container_state import statuses, waiting_reasons
from koord.descheduler.wire import Pod

STATES = ("Running", "CrashLoopBackOff")


class Args(PluginArgs, frozen=True, kw_only=True):
    namespaces: Namespaces | None = None
    label_selector: LabelSelector | None = None
    pod_restart_threshold: int = 0
    including_init_containers: bool = False
    states: tuple[str, ...] = ()


class TooManyRestarts(Plugin):
    name: ClassVar[str] = "RemovePodsHavingTooManyRestarts"

    def __init__(self, args: Args) -> None:
        self._args = args
        self._chosen = Chosen(args.namespaces, args.label_selector)

    def deschedule(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        for node in nodes:
            pods = [
                pod
                for pod in hand.snapshot.on(node.metadata.name, ended=True)
                if self._restarts(pod) >= self._args.pod_restart_threshold
                and self._in_state(pod)
                and self._chosen.takes(pod, hand)
            ]
            for pod in sorted(pods, key=self._restarts, reverse=True):
                hand.evict(pod, "")
        return None

    def _restarts(self, pod: Pod) -> int:
        return sum(s.restart_count for s in statuses(pod, init=self._args.including_init_containers))

    def _in_state(self, pod: Pod) -> bool:
        wanted = set(self._args.states)
        if not wanted or pod.status.phase in wanted:
            return True
        return bool(wanted & waiting_reasons(pod, init=self._args.including_init_containers))


def too_many_restarts(raw: Any) -> Plugin | list[str]:
    args = read(TooManyRestarts.name, Args, raw)
    if isinstance(args, list):
        return args
    errors = namespace_errors(args.namespaces) + selector_error(args.label_selector)
    if args.pod_restart_threshold < 1:
        errors.append(
            f"invalid PodsHavingTooManyRestarts threshold: {args.pod_restart_threshold}; it must be 1 or more"
        )
    unknown = sorted(set(args.states) - set(STATES))
    if unknown:
        errors.append(f"states must be one of {', '.join(STATES)}, not {', '.join(unknown)}")
    return errors or TooManyRestarts(args)
