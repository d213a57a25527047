"""Define the handle that plugins are made with: the cluster state, listers of other kinds, the time, and actions.

`SchedulerActions` has no backend where no scheduler runs (explanations, what-ifs, tests): then no pod waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from koord.scheduler.framework.event import Happened
from koord.scheduler.state.pod import PodInfo


class Counter(Protocol):
    """Carry out the actions in the running scheduler."""

    def waiting(self) -> Iterable[tuple[PodInfo, str]]: ...

    def allow(self, uid: str, plugin: str) -> bool: ...

    def refuse(self, uid: str, plugin: str, message: str, *, quiet: bool) -> bool: ...

    def remark(self, key: str, uid: str, message: str) -> None: ...

    def nominate(self, key: str, uid: str, node: str) -> None: ...

    def activate(self, uids: Iterable[str]) -> None: ...

    def tell(self, happened: Happened) -> None: ...


class Desk:
    """Let a plugin act on pods outside an attempt; the running scheduler sets `backend` once, before anything happens.

    """

    __slots__ = ("counter",)

    def __init__(self) -> None:
        self.counter: Counter | None = None

    def waiting(self) -> Iterator[tuple[PodInfo, str]]:
        """Iterate over the pods that wait at Permit, each with its node, as of now: allowing one does not change the
        iteration.
        """
        return iter(()) if self.counter is None else iter(tuple(self.counter.waiting()))

    def allow(self, uid: str, plugin: str) -> bool:
        """Allow a pod on behalf of the plugin that made it wait; return False when no such pod waits."""
        return self.counter is not None and self.counter.allow(uid, plugin)

    def refuse(self, uid: str, plugin: str, message: str, *, quiet: bool = False) -> bool:
        """Reject a waiting pod; return False when no such pod waits.

        `quiet` is for resources that no pod was rejected for, because none was tried while they were held: their release
        wakes nobody.
        """
        return self.counter is not None and self.counter.refuse(uid, plugin, message, quiet=quiet)

    def remark(self, key: str, uid: str, message: str) -> None:
        """Write into the condition of a pod (namespace/name) that was not tried itself why it is unschedulable."""
        if self.counter is not None:
            self.counter.remark(key, uid, message)

    def nominate(self, key: str, uid: str, node: str) -> None:
        """Nominate a queued pod to a node that is being cleared, or remove its nomination with an empty name."""
        if self.counter is not None:
            self.counter.nominate(key, uid, node)

    def activate(self, uids: Iterable[str]) -> None:
        """Move queued pods to the active queue if PreEnqueue lets them pass; pods that are not queued are left alone.

        """
        if self.counter is not None:
            self.counter.activate(uids)

    def tell(self, happened: Happened) -> None:
        """Publish an event of the plugin's own making: pods rejected by plugins that listen to it are considered
        again.
        """
        if self.counter is not None:
            self.counter.tell(happened)
