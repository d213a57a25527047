"""Carry out what plugins ask of the running scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from koord.scheduler.framework.event import Happened
from koord.scheduler.queue.scheduling import SchedulingQueue
from koord.scheduler.shell.outcome import UNSCHEDULABLE
from koord.scheduler.shell.report import Report
from koord.scheduler.shell.waiting import WaitingRoom
from koord.scheduler.state.pod import PodInfo
from koord.telemetry.clock import Clock


class ProgramCounter:
    """Carry out plugins' actions on the waiting pods, the queue and the pods' status."""
    def __init__(
        self,
        room: WaitingRoom,
        queue: SchedulingQueue,
        clock: Clock,
        wake: Callable[[], None],
        report: Callable[[Report], None],
    ) -> None:
        self._room = room
        self._queue = queue
        self._clock = clock
        self._wake = wake
        self._report = report

    def waiting(self) -> Iterable[tuple[PodInfo, str]]:
        return [(guest.pod, guest.node_name) for guest in self._room]

    def allow(self, uid: str, plugin: str) -> bool:
        return self._room.allow(uid, plugin)

    def refuse(self, uid: str, plugin: str, message: str, *, quiet: bool) -> bool:
        return self._room.refuse(uid, plugin, message, quiet=quiet)

    def remark(self, key: str, uid: str, message: str) -> None:
        namespace, _, name = key.partition("/")
        self._report(Report(namespace=namespace, name=name, uid=uid, reason=UNSCHEDULABLE, message=message))

    def nominate(self, key: str, uid: str, node: str) -> None:
        namespace, _, name = key.partition("/")
        self._queue.nominate(uid, node)
        self._report(Report(namespace=namespace, name=name, uid=uid, nominate=node))

    def activate(self, uids: Iterable[str]) -> None:
        if self._queue.activate(uids, self._clock.monotonic()):
            self._wake()

    def tell(self, happened: Happened) -> None:
        if self._queue.happened(happened, self._clock.monotonic()):
            self._wake()
