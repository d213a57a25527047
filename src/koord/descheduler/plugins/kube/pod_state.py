"""The plugins that evict by pod status: RemoveFailedPods, RemovePodsHavingTooManyRestarts and PodLifeTime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import ContainerStatus, Pod
from koord.api.model import Model
from koord.descheduler.framework.plugin import EvictorHandle
from koord.descheduler.plugins.kube.plugin_args import (
    PodSelectionArgs,
    PodSelectionPlugin,
    plugin_factory,
    selection_errors,
)


def container_statuses(pod: Pod, *, init: bool = False, ephemeral: bool = False) -> Iterator[ContainerStatus]:
    yield from pod.status.container_statuses
    if init:
        yield from pod.status.init_container_statuses
    if ephemeral:
        yield from pod.status.ephemeral_container_statuses


def waiting_reasons(pod: Pod, *, init: bool = False, ephemeral: bool = False) -> set[str]:
    found = container_statuses(pod, init=init, ephemeral=ephemeral)
    return {s.state.waiting.reason for s in found if s.state.waiting is not None and s.state.waiting.reason}


def terminated_reasons(pod: Pod, *, init: bool = False, ephemeral: bool = False) -> set[str]:
    found = container_statuses(pod, init=init, ephemeral=ephemeral)
    return {s.state.terminated.reason for s in found if s.state.terminated is not None and s.state.terminated.reason}


def exit_codes(pod: Pod, *, init: bool = False, ephemeral: bool = False) -> set[int]:
    found = container_statuses(pod, init=init, ephemeral=ephemeral)
    return {s.state.terminated.exit_code for s in found if s.state.terminated is not None}


def pod_age_s(pod: Pod, now_s: float) -> float:
    created = pod.metadata.creation_timestamp
    return 0.0 if created is None else now_s - created.timestamp()


DEFAULT_MIN_POD_LIFETIME_S = 3600


class RemoveFailedPodsArgs(PodSelectionArgs, frozen=True, kw_only=True):
    exclude_owner_kinds: tuple[str, ...] = ()
    min_pod_lifetime_seconds: int | None = None
    reasons: tuple[str, ...] = ()
    exit_codes: tuple[int, ...] = ()
    including_init_containers: bool = False


class RemoveFailedPods(PodSelectionPlugin[RemoveFailedPodsArgs]):
    name: ClassVar[str] = "RemoveFailedPods"

    def deschedule(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        for node in nodes:
            for pod in list(handle.snapshot.pods_on_node(node.metadata.name, ended=True)):
                if self._is_due(pod, handle.snapshot.now_s) and self._evictable_filter.is_evictable(pod, handle):
                    handle.evict(pod, "")
        return None

    def _is_due(self, pod: Pod, now_s: float) -> bool:
        args = self._args
        least = DEFAULT_MIN_POD_LIFETIME_S if args.min_pod_lifetime_seconds is None else args.min_pod_lifetime_seconds
        if pod.status.phase != "Failed" or pod_age_s(pod, now_s) < least:
            return False
        if any(owner.kind in args.exclude_owner_kinds for owner in pod.metadata.owner_references):
            return False
        init = args.including_init_containers
        if args.reasons:
            seen = {pod.status.reason} | waiting_reasons(pod, init=init) | terminated_reasons(pod, init=init)
            if not seen.intersection(args.reasons):
                return False
        return not args.exit_codes or bool(exit_codes(pod, init=init).intersection(args.exit_codes))


build_remove_failed_pods = plugin_factory(RemoveFailedPods, RemoveFailedPodsArgs, selection_errors)


TOO_MANY_RESTARTS_STATES = ("Running", "CrashLoopBackOff")


class RemovePodsHavingTooManyRestartsArgs(PodSelectionArgs, frozen=True, kw_only=True):
    pod_restart_threshold: int = 0
    including_init_containers: bool = False
    states: tuple[str, ...] = ()


class RemovePodsHavingTooManyRestarts(PodSelectionPlugin[RemovePodsHavingTooManyRestartsArgs]):
    name: ClassVar[str] = "RemovePodsHavingTooManyRestarts"

    def deschedule(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        for node in nodes:
            pods = [
                pod
                for pod in handle.snapshot.pods_on_node(node.metadata.name, ended=True)
                if self._restarts(pod) >= self._args.pod_restart_threshold
                and self._in_state(pod)
                and self._evictable_filter.is_evictable(pod, handle)
            ]
            for pod in sorted(pods, key=self._restarts, reverse=True):
                handle.evict(pod, "")
        return None

    def _restarts(self, pod: Pod) -> int:
        return sum(s.restart_count for s in container_statuses(pod, init=self._args.including_init_containers))

    def _in_state(self, pod: Pod) -> bool:
        wanted = set(self._args.states)
        if not wanted or pod.status.phase in wanted:
            return True
        return bool(wanted & waiting_reasons(pod, init=self._args.including_init_containers))


def _too_many_restarts_errors(args: RemovePodsHavingTooManyRestartsArgs) -> list[str]:
    errors = selection_errors(args)
    if args.pod_restart_threshold < 1:
        errors.append(
            f"invalid PodsHavingTooManyRestarts threshold: {args.pod_restart_threshold}; it must be 1 or more"
        )
    unknown = sorted(set(args.states) - set(TOO_MANY_RESTARTS_STATES))
    if unknown:
        errors.append(f"states must be one of {', '.join(TOO_MANY_RESTARTS_STATES)}, not {', '.join(unknown)}")
    return errors


build_too_many_restarts = plugin_factory(
    RemovePodsHavingTooManyRestarts, RemovePodsHavingTooManyRestartsArgs, _too_many_restarts_errors
)


POD_PHASES = ("Running", "Pending", "Succeeded", "Failed", "Unknown")
POD_REASONS = ("NodeAffinity", "NodeLost", "Shutdown", "UnexpectedAdmissionError")
WAITING_REASONS = (
    *("PodInitializing", "ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff", "CreateContainerConfigError"),
    *("ErrImagePull", "CreateContainerError", "InvalidImageName"),
)
TERMINATED_REASONS = (
    *("OOMKilled", "Error", "Completed", "DeadlineExceeded", "Evicted", "ContainerCannotRun", "StartError"),
)
POD_LIFE_TIME_STATES = frozenset((*POD_PHASES, *POD_REASONS, *WAITING_REASONS, *TERMINATED_REASONS))


class OwnerKinds(Model, frozen=True, kw_only=True):
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class PodConditionFilter(Model, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    min_time_since_last_transition_seconds: int | None = None


class PodLifeTimeArgs(PodSelectionArgs, frozen=True, kw_only=True):
    owner_kinds: OwnerKinds | None = None
    max_pod_life_time_seconds: int | None = None
    states: tuple[str, ...] = ()
    conditions: tuple[PodConditionFilter, ...] = ()
    exit_codes: tuple[int, ...] = ()
    including_init_containers: bool = False
    including_ephemeral_containers: bool = False


class PodLifeTime(PodSelectionPlugin[PodLifeTimeArgs]):
    name: ClassVar[str] = "PodLifeTime"

    def deschedule(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        now_s = handle.snapshot.now_s
        pods = [
            pod
            for node in nodes
            for pod in handle.snapshot.pods_on_node(node.metadata.name, ended=True)
            if self._is_due(pod, now_s) and self._evictable_filter.is_evictable(pod, handle)
        ]
        for pod in sorted(pods, key=lambda p: -pod_age_s(p, now_s)):
            handle.evict(pod, "")
        return None

    def _is_due(self, pod: Pod, now_s: float) -> bool:
        args = self._args
        most = args.max_pod_life_time_seconds
        if most is not None and not pod_age_s(pod, now_s) > most:
            return False
        where = {"init": args.including_init_containers, "ephemeral": args.including_ephemeral_containers}
        if args.states:
            seen = {pod.status.phase, pod.status.reason}
            seen |= waiting_reasons(pod, **where) | terminated_reasons(pod, **where)
            if not seen.intersection(args.states):
                return False
        elif most is not None and not args.conditions and not args.exit_codes and pod.status.phase in POD_PHASES[2:4]:
            return False  # what has ended is not asked for by its age alone
        if args.exit_codes and not exit_codes(pod, **where).intersection(args.exit_codes):
            return False
        if args.conditions and not any(self._holds(pod, wanted, now_s) for wanted in args.conditions):
            return False
        return self._owned(pod)

    def _holds(self, pod: Pod, wanted: PodConditionFilter, now_s: float) -> bool:
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


def _pod_life_time_errors(args: PodLifeTimeArgs) -> list[str]:
    errors = selection_errors(args)
    if args.max_pod_life_time_seconds is None and not (args.states or args.conditions or args.exit_codes):
        errors.append("at least one of maxPodLifeTimeSeconds, states, conditions or exitCodes needs to be set")
    unknown = sorted(set(args.states) - POD_LIFE_TIME_STATES)
    if unknown:
        errors.append(f"states must be among {', '.join(sorted(POD_LIFE_TIME_STATES))}, not {', '.join(unknown)}")
    if args.owner_kinds is not None and args.owner_kinds.include and args.owner_kinds.exclude:
        errors.append("only one of Include/Exclude owner kinds can be set")
    return errors


build_pod_life_time = plugin_factory(PodLifeTime, PodLifeTimeArgs, _pod_life_time_errors)
