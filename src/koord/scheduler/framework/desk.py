"""What a plugin may ask of the program outside an attempt: word for those who wait at Permit, and another look at pods.

Made empty, so that plugins work where no program is around them (explanations, what-ifs, tests): then nobody waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from koord.scheduler.framework.event import Happened
from koord.scheduler.state.pod import PodInfo


class Counter(Protocol):
    """The program's side."""

    def waiting(self) -> Iterable[tuple[PodInfo, str]]: ...

    def allow(self, uid: str, plugin: str) -> bool: ...

    def refuse(self, uid: str, plugin: str, message: str, *, quiet: bool) -> bool: ...

    def remark(self, key: str, uid: str, message: str) -> None: ...

    def nominate(self, key: str, uid: str, node: str) -> None: ...

    def activate(self, uids: Iterable[str]) -> None: ...

    def tell(self, happened: Happened) -> None: ...


class Desk:
    """`counter` is set once by the program, before anything happens."""

    __slots__ = ("counter",)

    def __init__(self) -> None:
        self.counter: Counter | None = None

    def waiting(self) -> Iterator[tuple[PodInfo, str]]:
        """Pods that wait at Permit, each with its node. The list is of this moment: allowing one does not change it."""
        return iter(()) if self.counter is None else iter(tuple(self.counter.waiting()))

    def allow(self, uid: str, plugin: str) -> bool:
        """On behalf of the plugin that made the pod wait. False when no such pod waits."""
        return self.counter is not None and self.counter.allow(uid, plugin)

    def refuse(self, uid: str, plugin: str, message: str, *, quiet: bool = False) -> bool:
        """Send a waiting pod back. False when no such pod waits.

        `quiet` is for room that nobody was refused for want of, because nobody was tried while it was held: to those
        who sleep its release is no news.
        """
        return self.counter is not None and self.counter.refuse(uid, plugin, message, quiet=quiet)

    def remark(self, key: str, uid: str, message: str) -> None:
        """Tell the owner of a pod (namespace/name) that was not tried itself why it is unschedulable."""
        if self.counter is not None:
            self.counter.remark(key, uid, message)

    def nominate(self, key: str, uid: str, node: str) -> None:
        """Promise a pod that sleeps room on a node that is being made, or take that back with an empty name."""
        if self.counter is not None:
            self.counter.nominate(key, uid, node)

    def activate(self, uids: Iterable[str]) -> None:
        """Try these again at once if they sleep in the queue and PreEnqueue lets them pass; others are left alone."""
        if self.counter is not None:
            self.counter.activate(uids)

    def tell(self, happened: Happened) -> None:
        """Something of the plugin's own making happened: pods refused by plugins that wake on it are looked at."""
        if self.counter is not None:
            self.counter.tell(happened)
