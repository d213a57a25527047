"""PodLifeTime evicts pods that are too old, or too long in a given state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from koord.api.config.descheduler.args import Namespaces, PluginArgs
from koord.api.meta import LabelSelector
from koord.api.model import Model
from koord.api.node import Node
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Hand
from koord.descheduler.plugins.kube.args import Chosen, namespace_errors, read, selector_error
from koord.descheduler.plugins.kube.container_state import age_s, exit_codes, terminated_reasons, waiting_reasons
from koord.descheduler.wire import Pod

PHASES = ("Running", "Pending", "Succeeded", "Failed", "Unknown")
REASONS = ("NodeAffinity", "NodeLost", "Shutdown", "UnexpectedAdmissionError")
WAITING = (
    "PodInitializing",
    "ContainerCreating",
    "ImagePullBackOff",
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "ErrImagePull",
    "CreateContainerError",
    "InvalidImageName",
)
TERMINATED = (
    "OOMKilled",
    "Error",
    "Completed",
    "DeadlineExceeded",
    "Evicted",
    "ContainerCannotRun",
    "StartError",
)
STATES = frozenset((*PHASES, *REASONS, *WAITING, *TERMINATED))


class OwnerKinds(Model, frozen=True, kw_only=True):
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class Condition(Model, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    min_time_since_last_transition_seconds: int | None = None


class Args(PluginArgs, frozen=True, kw_only=True):
    namespaces: Namespaces | None = None
    label_selector: LabelSelector | None = None
    owner_kinds: OwnerKinds | None = None
    max_pod_life_time_seconds: int | None = None
    states: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    exit_codes: tuple[int, ...] = ()
    including_init_containers: bool = False
    including_ephemeral_containers: bool = False


class PodLifeTime(Plugin):
    name: ClassVar[str] = "PodLifeTime"

    def __init__(self, args: Args) -> None:
        self._args = args
        self._chosen = Chosen(args.namespaces, args.label_selector)

    def deschedule(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        now_s = hand.snapshot.now_s
        pods = [
            pod
            for node in nodes
            for pod in hand.snapshot.on(node.metadata.name, ended=True)
            if self._is_due(pod, now_s) and self._chosen.takes(pod, hand)
        ]
        for pod in sorted(pods, key=lambda p: -age_s(p, now_s)):
            hand.evict(pod, "")
        return None

    def _is_due(self, pod: Pod, now_s: float) -> bool:
        args = self._args
        most = args.max_pod_life_time_seconds
        if most is not None and not age_s(pod, now_s) > most:
            return False
        where = {"init": args.including_init_containers, "ephemeral": args.including_ephemeral_containers}
        if args.states:
            seen = {pod.status.phase, pod.status.reason}
            seen |= waiting_reasons(pod, **where) | terminated_reasons(pod, **where)
            if not seen.intersection(args.states):
                return False
        elif most is not None and not args.conditions and not args.exit_codes and pod.status.phase in PHASES[2:4]:
            return False  # what has ended is not asked for by its age alone
        if args.exit_codes and not exit_codes(pod, **where).intersection(args.exit_codes):
            return False
        if args.conditions and not any(self._holds(pod, wanted, now_s) for wanted in args.conditions):
            return False
        return self._owned(pod)

    def _holds(self, pod: Pod, wanted: Condition, now_s: float) -> bool:
        for found in pod.status.conditions:
            if wanted.type and found.type != wanted.type:
                continue
            if wanted.status and found.status != wanted.status:
                continue
            if wanted.reason and found.reason != wanted.reason:
                continue
            least, since = wanted.min_time_since_last_transition_seconds, found.last_transition_time
            if least is not None and (since is None or now_s - since.timestamp() < least):
                continue
            return True
        return False

    def _owned(self, pod: Pod) -> bool:
        given = self._args.owner_kinds
        if given is None:
            return True
        kinds = {owner.kind for owner in pod.metadata.owner_references}
        if given.include:
            return bool(kinds.intersection(given.include))
        return not kinds.intersection(given.exclude)


def pod_life_time(raw: Any) -> Plugin | list[str]:
    args = read(PodLifeTime.name, Args, raw)
    if isinstance(args, list):
        return args
    errors = namespace_errors(args.namespaces) + selector_error(args.label_selector)
    if args.max_pod_life_time_seconds is None and not (args.states or args.conditions or args.exit_codes):
        errors.append("at least one of maxPodLifeTimeSeconds, states, conditions or exitCodes needs to be set")
    unknown = sorted(set(args.states) - STATES)
    if unknown:
        errors.append(f"states must be among {', '.join(sorted(STATES))}, not {', '.join(unknown)}")
    if args.owner_kinds is not None and args.owner_kinds.include and args.owner_kinds.exclude:
        errors.append("only one of Include/Exclude owner kinds can be set")
    return errors or PodLifeTime(args)
