"""The plugins that evict by pod status: RemoveFailedPods, RemovePodsHavingTooManyRestarts and PodLifeTime."""

from __future__ import annotations

from collections.abc import Iterator

from koord.api.container import ContainerStatus
from koord.descheduler.wire import Pod


def statuses(pod: Pod, *, init: bool = False, ephemeral: bool = False) -> Iterator[ContainerStatus]:
    yield from pod.status.container_statuses
    if init:
        yield from pod.status.init_container_statuses
    if ephemeral:
        yield from pod.status.ephemeral_container_statuses


def waiting_reasons(pod: Pod, *, init: bool = False, ephemeral: bool = False) -> set[str]:
    found = statuses(pod, init=init, ephemeral=ephemeral)
    return {s.state.waiting.reason for s in found if s.state.waiting is not None and s.state.waiting.reason}


def terminated_reasons(pod: Pod, *, init: bool = False, ephemeral: bool = False) -> set[str]:
    found = statuses(pod, init=init, ephemeral=ephemeral)
    return {s.state.terminated.reason for s in found if s.state.terminated is not None and s.state.terminated.reason}


def exit_codes(pod: Pod, *, init: bool = False, ephemeral: bool = False) -> set[int]:
    found = statuses(pod, init=init, ephemeral=ephemeral)
    return {s.state.terminated.exit_code for s in found if s.state.terminated is not None}


def age_s(pod: Pod, now_s: float) -> float:
    created = pod.metadata.creation_timestamp
    return 0.0 if created is None else now_s - created.timestamp()
