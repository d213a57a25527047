"""Hold pods that have a node and wait at Permit, each no longer than its plugins allow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import msgspec

from koord.scheduler.state.pod import PodInfo
from koord.telemetry.clock import Clock
from koord.values import duration


class Refusal(msgspec.Struct, frozen=True):
    plugin: str
    message: str
    quiet: bool = False


class Guest:
    """Hold one waiting pod: it continues when every plugin that made it wait allowed it, and fails when one rejects
    it.
    """

    __slots__ = ("_alarm", "_answer", "_deadlines", "node_name", "pod")

    def __init__(self, pod: PodInfo, node_name: str, deadlines: Mapping[str, float]) -> None:
        self.pod = pod
        self.node_name = node_name
        self._deadlines = dict(deadlines)
        self._alarm: asyncio.TimerHandle | None = None
        self._answer: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

    @property
    def waits_for(self) -> tuple[str, ...]:
        return tuple(self._deadlines)

    def allow(self, plugin: str) -> None:
        self._deadlines.pop(plugin, None)
        if not self._deadlines and not self._answer.done():
            self._answer.set_result(None)

    def refuse(self, plugin: str, message: str, *, quiet: bool = False) -> bool:
        """Reject the pod; return False when it was allowed or rejected before."""
        if self._answer.done():
            return False
        self._answer.set_result(Refusal(plugin, message, quiet))
        return True

    async def word(self, clock: Clock, waits: Mapping[str, float]) -> Refusal | None:
        """Wait for the outcome: None when the pod may continue, else the rejection.

        `waits` are the timeouts that the plugins asked for, to name in the rejection of a pod whose time is up.
        """
        self._look(clock, waits)
        try:
            return await self._answer
        finally:
            if self._alarm is not None:
                self._alarm.cancel()

    def _look(self, clock: Clock, waits: Mapping[str, float]) -> None:
        """Reject the pod if the earliest deadline has passed; otherwise check again when it does."""
        if self._answer.done():
            return
        plugin = min(self._deadlines, key=self._deadlines.__getitem__)
        left = self._deadlines[plugin] - clock.monotonic()
        if left <= 0:
            waited = duration.text(duration.from_seconds(waits[plugin]))
            self.refuse(plugin, f"rejected due to timeout after waiting {waited} at plugin {plugin}")
        else:
            self._alarm = asyncio.get_running_loop().call_later(left, self._look, clock, waits)


class WaitingRoom:
    def __init__(self) -> None:
        self._guests: dict[str, Guest] = {}
        self.leaving: set[str] = set()  # rejected, and about to release their resources

    def enter(self, guest: Guest) -> None:
        self._guests[guest.pod.uid] = guest

    def leave(self, uid: str) -> None:
        self._guests.pop(uid, None)
        self.leaving.discard(uid)

    def get(self, uid: str) -> Guest | None:
        return self._guests.get(uid)

    def allow(self, uid: str, plugin: str) -> bool:
        """Allow a pod on behalf of a plugin; return False when no such pod waits."""
        guest = self._guests.get(uid)
        if guest is not None:
            guest.allow(plugin)
        return guest is not None

    def refuse(self, uid: str, plugin: str, message: str, *, quiet: bool = False) -> bool:
        guest = self._guests.get(uid)
        if guest is not None and guest.refuse(plugin, message, quiet=quiet):
            self.leaving.add(uid)
        return guest is not None

    def __iter__(self) -> Iterator[Guest]:
        return iter(tuple(self._guests.values()))

    def __len__(self) -> int:
        return len(self._guests)
