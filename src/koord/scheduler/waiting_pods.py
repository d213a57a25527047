"""Hold pods that have a node and wait at Permit, each no longer than its plugins allow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import msgspec

from koord.scheduler.cache.pod_info import PodInfo
from koord.telemetry.clock import Clock
from koord.values import duration


class PermitRejection(msgspec.Struct, frozen=True):
    plugin: str
    message: str
    quiet: bool = False


class WaitingPod:
    """Hold one waiting pod: it continues when every plugin that made it wait allowed it, and fails when one rejects."""

    __slots__ = ("_answer", "_deadlines", "_timer", "node_name", "pod", "since")

    def __init__(self, pod: PodInfo, node_name: str, deadlines: Mapping[str, float], since: float = 0.0) -> None:
        """Take the times of a monotonic clock: until when each plugin makes the pod wait, and since when it does."""
        self.pod = pod
        self.node_name = node_name
        self.since = since
        self._deadlines = dict(deadlines)
        self._timer: asyncio.TimerHandle | None = None
        self._answer: asyncio.Future[PermitRejection | None] = asyncio.get_running_loop().create_future()

    @property
    def pending_plugins(self) -> tuple[str, ...]:
        return tuple(self._deadlines)

    @property
    def deadline(self) -> float:
        """Return when the pod is rejected if nothing happens until then."""
        return min(self._deadlines.values(), default=self.since)

    def allow(self, plugin: str) -> None:
        self._deadlines.pop(plugin, None)
        if not self._deadlines and not self._answer.done():
            self._answer.set_result(None)

    def reject(self, plugin: str, message: str, *, quiet: bool = False) -> bool:
        """Reject the pod; return False when it was allowed or rejected before."""
        if self._answer.done():
            return False
        self._answer.set_result(PermitRejection(plugin, message, quiet))
        return True

    async def wait(self, clock: Clock, waits: Mapping[str, float]) -> PermitRejection | None:
        """Wait for the outcome: None when the pod may continue, else the rejection.

        `waits` are the timeouts that the plugins asked for, to name in the rejection of a pod whose time is up.
        """
        self._check_deadlines(clock, waits)
        try:
            return await self._answer
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _check_deadlines(self, clock: Clock, waits: Mapping[str, float]) -> None:
        """Reject the pod if the earliest deadline has passed; otherwise check again when it does."""
        if self._answer.done():
            return
        plugin = min(self._deadlines, key=self._deadlines.__getitem__)
        left = self._deadlines[plugin] - clock.monotonic()
        if left <= 0:
            waited = duration.text(duration.from_seconds(waits[plugin]))
            self.reject(plugin, f"rejected due to timeout after waiting {waited} at plugin {plugin}")
        else:
            self._timer = asyncio.get_running_loop().call_later(left, self._check_deadlines, clock, waits)


class WaitingPods:
    def __init__(self) -> None:
        self._pods: dict[str, WaitingPod] = {}
        self.releasing: set[str] = set()  # rejected, and about to release their resources

    def add(self, waiting_pod: WaitingPod) -> None:
        self._pods[waiting_pod.pod.uid] = waiting_pod

    def remove(self, uid: str) -> None:
        self._pods.pop(uid, None)
        self.releasing.discard(uid)

    def get(self, uid: str) -> WaitingPod | None:
        return self._pods.get(uid)

    def allow(self, uid: str, plugin: str) -> bool:
        """Allow a pod on behalf of a plugin; return False when no such pod waits."""
        waiting_pod = self._pods.get(uid)
        if waiting_pod is not None:
            waiting_pod.allow(plugin)
        return waiting_pod is not None

    def reject(self, uid: str, plugin: str, message: str, *, quiet: bool = False) -> bool:
        waiting_pod = self._pods.get(uid)
        if waiting_pod is not None and waiting_pod.reject(plugin, message, quiet=quiet):
            self.releasing.add(uid)
        return waiting_pod is not None

    def __iter__(self) -> Iterator[WaitingPod]:
        return iter(tuple(self._pods.values()))

    def __len__(self) -> int:
        return len(self._pods)
