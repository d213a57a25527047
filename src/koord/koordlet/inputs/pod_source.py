"""The source of this node's pods: the kubelet, new cgroups as hints, and the API server as a fallback.

New groups appear before the kubelet lists their pods, so they trigger a request. While the kubelet does not answer, the
API server's view of the node is used; it lags behind. Each PodMeta is rebuilt only when its pod changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator

import msgspec

from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Pod
from koord.api.model import decode
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.pleg import PodLifecycleEvent, PodLifecycleEventGenerator
from koord.host.cgroup.tree import CgroupTree
from koord.koordlet.inputs.kubelet_client import KubeletApi, KubeletUnavailable, PodSourceSettings
from koord.koordlet.inputs.pod_meta import PodMeta, pod_meta_in_layout
from koord.koordlet.problem_log import ProblemLog
from koord.kube.client.typed_client import Client
from koord.kube.informer.informer import Informer
from koord.kube.informer.reflector import WatchScope
from koord.kube.transport.interface import DECODE_ERRORS
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)


class UnreadablePod(msgspec.Struct, frozen=True):
    """A pod that cannot be decoded; the others are unaffected."""

    why: str


class PodMetaCache:
    """The cache of PodMetas. `pods` is None until there was an answer, and the same object while no pod changes."""

    def __init__(self, layout: CgroupLayout) -> None:
        self._layout = layout
        self._known: dict[Hashable, tuple[Hashable, PodMeta | None]] = {}
        self._emptied = False
        self.pods: tuple[PodMeta, ...] | None = None

    def update(self, listed: Iterable[tuple[Hashable, Hashable, Callable[[], Pod | UnreadablePod]]]) -> bool:
        """Update from the key, stamp and reader of every pod; equal stamps mean equal pods. Return
        whether `pods` changed.

        A list that suddenly is empty is believed the second time: a kubelet that has just started lists no
        pods though they run.
        """
        rows = list(listed)
        if not rows and self.pods and not self._emptied:
            self._emptied = True
            return False
        self._emptied = False
        before, self._known = self._known, {}
        changed = self.pods is None
        for key, stamp, read in rows:
            known = before.pop(key, None)
            if known is None or known[0] != stamp:
                known = (stamp, self._view(read()))
                changed = True
            self._known[key] = known
        if changed or before:
            views = (view for _, view in self._known.values() if view is not None)
            self.pods = tuple(sorted(views, key=lambda view: (view.namespace, view.name, view.uid)))
            return True
        return False

    def _view(self, pod: Pod | UnreadablePod) -> PodMeta | None:
        if isinstance(pod, UnreadablePod):
            _LOG.warning("a pod of this node is left out, it cannot be read: %s", pod.why)
            return None
        return pod_meta_in_layout(pod, self._layout)


KUBELET, API_SERVER = "kubelet", "apiserver"
MAX_KUBELET_FAILURES = 3  # questions without an answer after which the API server is asked; at the start one is enough
_RECHECK_S = 2.0  # a new group's container is in the kubelet's answers a moment later

_PodRow = tuple[Hashable, Hashable, Callable[[], Pod | UnreadablePod]]


class PodSource:
    """Follows the pods. Run it in a task; `pods` is None until known, and the same object while nothing changes."""

    def __init__(
        self,
        tree: CgroupTree,
        client: Client,
        clock: Clock,
        node_name: str,
        kubelet: KubeletApi,
        settings: PodSourceSettings = PodSourceSettings(),  # noqa: B008 - a frozen value
    ) -> None:
        self._tree = tree
        self._client = client
        self._clock = clock
        self._node_name = node_name
        self._kubelet = kubelet
        self._settings = settings
        self._cache = PodMetaCache(tree.layout)
        self._handlers: list[Callable[[tuple[PodMeta, ...]], object]] = []
        self._listeners: list[Callable[[PodLifecycleEvent], object]] = []
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._synced = asyncio.Event()
        self._next_answer = asyncio.Event()  # set, and replaced, whenever the source was asked
        self._recheck_soon = False
        self._failures = 0
        self._why = ""
        self._informer: Informer[Pod] | None = None
        self._informer_task: asyncio.Task[None] | None = None
        self.origin = ""  # which of the two the views are from
        self.problem = ""  # why the kubelet does not answer, or why groups are not watched

    @property
    def pods(self) -> tuple[PodMeta, ...] | None:
        return self._cache.pods

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def on_change(self, handler: Callable[[tuple[PodMeta, ...]], object]) -> None:
        """Call the handler with the new pods whenever they change."""
        self._handlers.append(handler)

    def on_group(self, listener: Callable[[PodLifecycleEvent], object]) -> None:
        """Call the listener for every group of a pod or container that comes or goes, maybe before its pod is known."""
        self._listeners.append(listener)

    async def ask_and_wait(self) -> None:
        """Ask now, and return after the next answer or failure."""
        answered = self._next_answer
        self._wake.set()
        await answered.wait()

    async def run(self) -> None:
        """Follow the kubelet, the informer and the cgroups until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._poll_kubelet(), name="pods-follow")
                group.create_task(self._consume_informer(), name="pods-listen")
                group.create_task(self._watch_cgroups(), name="pods-groups")
        finally:
            await self._stop_informer()
            await self._kubelet.close()

    # -- asking

    async def _poll_kubelet(self) -> None:
        while True:
            self._wake.clear()
            asked_s = self._clock.monotonic()
            await self._sync()
            self._next_answer.set()
            self._next_answer = asyncio.Event()
            wait_s = min(_RECHECK_S, self._settings.sync_s) if self._recheck_soon else self._settings.sync_s
            self._recheck_soon = False
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
            await self._clock.sleep(max(self._settings.least_gap_s - (self._clock.monotonic() - asked_s), 0.0))

    async def _sync(self) -> None:
        if self._settings.source == API_SERVER:
            self._start_informer()
            return
        listed = await self._kubelet.pods()
        if not isinstance(listed, KubeletUnavailable):
            self._failures = 0
            await self._stop_informer()
            self._set_origin(KUBELET, "")
            self._update(_rows(listed))
            return
        self._failures += 1
        urgent = self.pods is None or self._failures >= MAX_KUBELET_FAILURES
        if self._settings.source != KUBELET and urgent:
            self._start_informer(listed.why)
        elif urgent:
            self._set_origin(self.origin, listed.why)

    def _update(self, rows: Iterator[_PodRow]) -> None:
        changed = self._cache.update(rows)
        views = self._cache.pods
        if views is None:
            return
        if changed:
            for handler in self._handlers:
                handler(views)
        self._synced.set()

    def _set_origin(self, origin: str, problem: str) -> None:
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

    def _start_informer(self, why: str = "") -> None:
        self._why = why
        if self._informer_task is not None and self._informer_task.done():
            _LOG.error(
                "the API server's view of the pods ended and is started again",
                exc_info=_task_error(self._informer_task),
            )
            self._informer = None
        if self._informer is None:
            scope = WatchScope(fields=f"spec.nodeName={self._node_name}")
            self._informer = Informer(self._client, PODS, self._clock, scope=scope)
            self._informer_task = asyncio.create_task(self._run_informer(self._informer), name="pods-informer")

    async def _run_informer(self, informer: Informer[Pod]) -> None:
        informer.add_event_handler(lambda _: self._news.set())
        async with asyncio.TaskGroup() as group:
            group.create_task(informer.run())
            await informer.wait_for_sync()
            self._news.set()  # there may be no pod at all

    async def _consume_informer(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if self._informer is not None and self._informer.has_synced:
                self._set_origin(API_SERVER, self._why)
                listed = self._informer.list()
                self._update((pod.metadata.uid, pod.metadata.resource_version, _return_pod(pod)) for pod in listed)
                await self._clock.sleep(self._settings.least_gap_s)  # changes come in swarms

    async def _stop_informer(self) -> None:
        task, self._informer_task, self._informer = self._informer_task, None, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- groups

    async def _watch_cgroups(self) -> None:
        lifecycle, settings = PodLifecycleEventGenerator(self._tree), self._settings
        problem = ProblemLog(
            _LOG,
            f"not all groups of pods can be watched, they are listed every {settings.poll_s:g}s",
            "all groups of pods are watched again",
        )
        loop = asyncio.get_running_loop()
        watched: int | None = None
        refused = asyncio.Event()  # a group that came could not be watched

        def on_readable() -> None:
            was_watched = lifecycle.unwatched is None
            self._on_lifecycle_events(lifecycle.poll())
            if was_watched and lifecycle.unwatched is not None:
                refused.set()

        try:
            while True:
                refused.clear()
                self._on_lifecycle_events(lifecycle.scan())
                if watched is None and (watched := lifecycle.fileno()) is not None:
                    loop.add_reader(watched, on_readable)
                if lifecycle.unwatched is None:
                    problem.works()
                else:
                    problem.fails(lifecycle.unwatched)
                try:
                    async with asyncio.timeout(settings.rescan_s if lifecycle.unwatched is None else settings.poll_s):
                        await refused.wait()
                except TimeoutError:
                    continue
        finally:
            if watched is not None:
                loop.remove_reader(watched)
            lifecycle.close()

    def _on_lifecycle_events(self, events: list[PodLifecycleEvent]) -> None:
        for event in events:
            for listener in self._listeners:
                listener(event)
        if events:
            self._recheck_soon = True
            self._wake.set()


def _rows(listed: list[msgspec.Raw]) -> Iterator[_PodRow]:
    """Yield key, stamp and reader of each pod: its text identifies it, as its uid is only known once it is decoded."""
    for raw in listed:
        text = bytes(raw)
        yield hash(text), len(text), _reader(text)


def _reader(text: bytes) -> Callable[[], Pod | UnreadablePod]:
    def read() -> Pod | UnreadablePod:
        try:
            return decode(text, Pod)
        except DECODE_ERRORS as wrong:
            return UnreadablePod(f"{wrong} in {text[:200]!r}")

    return read


def _return_pod(pod: Pod) -> Callable[[], Pod]:
    return lambda: pod


def _task_error(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
