"""Follows the pods of this node: asks the kubelet, looks at new groups, and turns to the API server in need.

New groups appear before the kubelet tells of their pods, so they are what makes a question urgent. While the kubelet
does not answer, the API server's view of the node is used; it lags behind, but it is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator

import msgspec

from koord.api.builtin import PODS
from koord.api.model import decode
from koord.api.pod import Pod
from koord.host.cgroup.lifecycle import Event, Lifecycle
from koord.host.cgroup.tree import Tree
from koord.host.fault import Fault
from koord.koordlet.pod import PodView
from koord.koordlet.pods.kubelet import Kubelet, NoAnswer
from koord.koordlet.pods.roster import Roster, Unread
from koord.koordlet.pods.settings import Settings
from koord.kube.client import Client
from koord.kube.informer import Informer
from koord.kube.reflector import Scope
from koord.kube.transport import UNREADABLE
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

KUBELET, API_SERVER = "kubelet", "apiserver"
PATIENCE = 3  # questions without an answer after which the API server is asked; at the start one is enough
_AGAIN_S = 2.0  # a new group's container is in the kubelet's answers a moment later

_Row = tuple[Hashable, Hashable, Callable[[], Pod | Unread]]


class PodSource:
    """Follows the pods. Run it in a task; `pods` is None until they are known, and the same object
    while nothing changed.
    """

    def __init__(
        self,
        tree: Tree,
        client: Client,
        clock: Clock,
        node_name: str,
        kubelet: Kubelet,
        settings: Settings = Settings(),  # noqa: B008 - a frozen value
    ) -> None:
        self._tree = tree
        self._client = client
        self._clock = clock
        self._node_name = node_name
        self._kubelet = kubelet
        self._settings = settings
        self._roster = Roster(tree.layout)
        self._handlers: list[Callable[[tuple[PodView, ...]], object]] = []
        self._listeners: list[Callable[[Event], object]] = []
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._synced = asyncio.Event()
        self._again = False
        self._failures = 0
        self._why = ""
        self._informer: Informer[Pod] | None = None
        self._informing: asyncio.Task[None] | None = None
        self.origin = ""  # which of the two the views are from
        self.problem = ""  # why the kubelet does not answer, or why groups are not watched

    @property
    def views(self) -> tuple[PodView, ...] | None:
        return self._roster.views

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def on_change(self, handler: Callable[[tuple[PodView, ...]], object]) -> None:
        """Call the handler with the new pods whenever they change."""
        self._handlers.append(handler)

    def on_group(self, listener: Callable[[Event], object]) -> None:
        """Call the listener for every group of a pod or container that comes or goes, possibly before its pod is
        known.
        """
        self._listeners.append(listener)

    def ask_now(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Follow the kubelet, the informer and the cgroups until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow(), name="pods-follow")
                group.create_task(self._listen(), name="pods-listen")
                group.create_task(self._watch_groups(), name="pods-groups")
        finally:
            await self._stop_informing()
            await self._kubelet.close()

    # -- asking

    async def _follow(self) -> None:
        while True:
            self._wake.clear()
            asked_s = self._clock.monotonic()
            await self._sync()
            wait_s = min(_AGAIN_S, self._settings.sync_s) if self._again else self._settings.sync_s
            self._again = False
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
            await self._clock.sleep(max(self._settings.least_gap_s - (self._clock.monotonic() - asked_s), 0.0))

    async def _sync(self) -> None:
        if self._settings.source == API_SERVER:
            self._start_informing()
            return
        listed = await self._kubelet.pods()
        if not isinstance(listed, NoAnswer):
            self._failures = 0
            await self._stop_informing()
            self._tell(KUBELET, "")
            self._take(_rows(listed))
            return
        self._failures += 1
        urgent = self.views is None or self._failures >= PATIENCE
        if self._settings.source != KUBELET and urgent:
            self._start_informing(listed.why)
        elif urgent:
            self._tell(self.origin, listed.why)

    def _take(self, rows: Iterator[_Row]) -> None:
        changed = self._roster.update(rows)
        views = self._roster.views
        if views is None:
            return
        if changed:
            for handler in self._handlers:
                handler(views)
        self._synced.set()

    def _tell(self, origin: str, problem: str) -> None:
        """Set where the pods come from and the kubelet's problem, if any; log only changes."""
        before = (self.origin, bool(self.problem))
        self.origin, self.problem = origin, problem
        if before == (origin, bool(problem)):
            return
        if problem:
            _LOG.warning("the kubelet does not tell its pods (%s); they come from: %s", problem, origin or "nowhere")
        else:
            _LOG.info("pods come from the %s", f"kubelet at {self._kubelet.server}" if origin == KUBELET else origin)

    # -- the API server

    def _start_informing(self, why: str = "") -> None:
        self._why = why
        if self._informing is not None and self._informing.done():
            _LOG.error("the API server's view of the pods ended and is started again", exc_info=_end(self._informing))
            self._informer = None
        if self._informer is None:
            scope = Scope(fields=f"spec.nodeName={self._node_name}")
            self._informer = Informer(self._client, PODS, self._clock, scope=scope)
            self._informing = asyncio.create_task(self._inform(self._informer), name="pods-informer")

    async def _inform(self, informer: Informer[Pod]) -> None:
        informer.on(lambda _: self._news.set())
        async with asyncio.TaskGroup() as group:
            group.create_task(informer.run())
            await informer.wait_synced()
            self._news.set()  # there may be no pod at all

    async def _listen(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if self._informer is not None and self._informer.synced:
                self._tell(API_SERVER, self._why)
                listed = self._informer.list()
                self._take((pod.metadata.uid, pod.metadata.resource_version, _given(pod)) for pod in listed)
                await self._clock.sleep(self._settings.least_gap_s)  # changes come in swarms

    async def _stop_informing(self) -> None:
        task, self._informing, self._informer = self._informing, None, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- groups

    async def _watch_groups(self) -> None:
        lifecycle = Lifecycle.open(self._tree)
        if isinstance(lifecycle, Fault):
            _LOG.warning("new groups are not watched, pods are noticed every %gs: %s", self._settings.sync_s, lifecycle)
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(lifecycle.fileno(), lambda: self._heard(lifecycle.poll()))
        try:
            while True:
                self._heard(lifecycle.scan())
                await self._clock.sleep(self._settings.rescan_s)
        finally:
            loop.remove_reader(lifecycle.fileno())
            lifecycle.close()

    def _heard(self, events: list[Event]) -> None:
        for event in events:
            for listener in self._listeners:
                listener(event)
        if events:
            self._again = True
            self._wake.set()


def _rows(listed: list[msgspec.Raw]) -> Iterator[_Row]:
    """Yield key, stamp and reader of each pod: its text identifies it, as its uid is only known once it is decoded."""
    for raw in listed:
        text = bytes(raw)
        yield hash(text), len(text), _reader(text)


def _reader(text: bytes) -> Callable[[], Pod | Unread]:
    def read() -> Pod | Unread:
        try:
            return decode(text, Pod)
        except UNREADABLE as wrong:
            return Unread(f"{wrong} in {text[:200]!r}")

    return read


def _given(pod: Pod) -> Callable[[], Pod]:
    return lambda: pod


def _end(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
