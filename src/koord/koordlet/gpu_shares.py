"""Shares of GPUs that containers have and use: what was granted, who enforces it, and what is used of it.

Usage is HAMi-core's where the container has a region of it, and NVML's by process otherwise. Regions of containers
that are gone are left alone: the folder is made anew when a container of that name starts.

MpsKeeper keeps a daemon of CUDA MPS for each GPU: it starts it, asks it now and then, and starts it again when it does
not answer. Each card is looked after alone, so that a card or a daemon that hangs keeps no other waiting. Daemons run
on when the agent stops, since containers are their clients; the next agent finds them by their pipes. Where the gate
is off, what an earlier agent started is ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.device_codecs import AllocatedDevice, parse_device_allocated
from koord.api.koordinator.protocol import GPU_ISOLATION_HAMI_CORE, L_GPU_ISOLATION_PROVIDER
from koord.gpu import isolation
from koord.gpu.hami_region import HamiRegion, read_region
from koord.gpu.isolation import NO_LIMITS
from koord.gpu.mps import MpsControl, MpsServers, end_daemons
from koord.host.filesystem import Host
from koord.host.hardware import GpuCard
from koord.host.io_error import IoError
from koord.koordlet.control_loop import ControlLoop
from koord.koordlet.hooks.gpu_env import MPS_GATE
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.settings import KoordletSettings
from koord.telemetry.clock import Clock
from koord.telemetry.metrics import MetricDeclaration, MetricReading

_LOG = logging.getLogger(__name__)

CHECK_S = 5.0
FIRST_BACKOFF_S, MOST_BACKOFF_S = 1.0, 60.0
_NOT_STARTED = "it was not started yet"

ProblemCallback = Callable[[str, str], None]  # reason and message


class MpsDaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon of one card. `problem` is "" while it answers; `starts` counts how often this agent started it."""

    minor: int
    uuid: str
    problem: str
    starts: int
    servers: tuple[int, ...]
    since_s: float  # when it began to work, or to fail


class _Daemon:
    def __init__(self, card: GpuCard, now_s: float) -> None:
        self.card = card
        self.problem = _NOT_STARTED
        self.starts = 0
        self.servers: tuple[int, ...] = ()
        self.since_s = now_s
        self.next_start_s = 0.0
        self.backoff_s = FIRST_BACKOFF_S
        self.log = ProblemLog(
            _LOG,
            f"the MPS daemon of GPU {card.minor}",
            f"the MPS daemon of GPU {card.minor} works",
            begins_unknown=True,
        )


class MpsKeeper:
    """MpsKeeper keeps the daemons of the cards that `cards` returns, None until they are known."""

    def __init__(
        self,
        control: MpsControl,
        clock: Clock,
        cards: Callable[[], Sequence[GpuCard] | None],
        on_problem: ProblemCallback,
        *,
        enabled: bool,
    ) -> None:
        self._control = control
        self._clock = clock
        self._cards = cards
        self._on_problem = on_problem
        self._enabled = enabled
        self._daemons: dict[int, _Daemon] = {}

    @property
    def problems(self) -> Mapping[int, str]:
        """Return what is wrong with each daemon, "" for nothing, by the card's minor."""
        return {minor: daemon.problem for minor, daemon in self._daemons.items()}

    def statuses(self) -> list[MpsDaemonStatus]:
        return [
            MpsDaemonStatus(
                minor=minor,
                uuid=one.card.uuid,
                problem=one.problem,
                starts=one.starts,
                servers=one.servers,
                since_s=one.since_s,
            )
            for minor, one in sorted(self._daemons.items())
        ]

    async def run(self) -> None:
        if not self._enabled:
            for problem in await end_daemons(self._control):
                _LOG.warning("%s", problem)
            return
        while True:
            await self.check()
            await self._clock.sleep(CHECK_S)

    async def check(self) -> None:
        """Look after all cards once, each by itself."""
        for card in self._cards() or ():
            known = self._daemons.get(card.minor)
            if known is None or known.card.uuid != card.uuid:
                self._daemons[card.minor] = _Daemon(card, self._clock.time())
        await asyncio.gather(*(self._check(daemon) for daemon in self._daemons.values()))

    async def _check(self, daemon: _Daemon) -> None:
        minor = daemon.card.minor
        found = await self._control.servers(minor)
        if isinstance(found, str) and self._clock.monotonic() >= daemon.next_start_s:
            problem = await self._control.start(minor, daemon.card.uuid)
            daemon.starts += 1
            found = problem or await self._control.servers(minor)
            daemon.next_start_s = self._clock.monotonic() + daemon.backoff_s
            daemon.backoff_s = min(2 * daemon.backoff_s, MOST_BACKOFF_S)
        self._note(daemon, found)

    def _note(self, daemon: _Daemon, found: MpsServers | str) -> None:
        problem = found if isinstance(found, str) else ""
        if bool(problem) != bool(daemon.problem):
            daemon.since_s = self._clock.time()
        if problem and (not daemon.problem or daemon.problem == _NOT_STARTED):
            minor = daemon.card.minor
            self._on_problem(
                "MPSDaemonFailed",
                f"shares of GPU {minor} are not limited by MPS: {problem}; other GPUs are not affected",
            )
        daemon.problem = problem
        if isinstance(found, MpsServers):
            daemon.servers, daemon.backoff_s, daemon.next_start_s = found.pids, FIRST_BACKOFF_S, 0.0
            daemon.log.works()
        else:
            daemon.servers = ()
            daemon.log.fails(problem)


_LABELS = ("node", "pod_namespace", "pod_name", "pod_uid", "container_name", "minor", "provider")


def _gauge(name: str, help: str, *labels: str) -> MetricDeclaration:
    return MetricDeclaration(f"koordlet_{name}", help, "gauge", labels)


MEMORY_LIMIT = _gauge("gpu_share_memory_limit_bytes", "GPU memory that a container may use.", *_LABELS)
MEMORY_USED = _gauge("gpu_share_memory_used_bytes", "GPU memory that a container with a share uses.", *_LABELS)
CORE_LIMIT = _gauge("gpu_share_core_limit_percent", "Share of a GPU's cores that a container may use.", *_LABELS)
CORE_USED = _gauge("gpu_share_core_used_percent", "Share of a GPU's cores that a container uses.", *_LABELS)
PROBLEMS = _gauge("gpu_share_problem", "1 for a container whose share of a GPU is not accounted well.", *_LABELS)
MPS_UP = _gauge("gpu_mps_daemon_up", "1 while a GPU's MPS daemon answers, 0 while not.", "node", "minor", "uuid")
DECLARATIONS = (MEMORY_LIMIT, MEMORY_USED, CORE_LIMIT, CORE_USED, PROBLEMS, MPS_UP)


class GpuShareStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One container's share of one card; None is no limit, or not known. `problem` says what is wrong with it."""

    namespace: str
    pod: str
    uid: str
    container: str
    minor: int
    provider: str
    memory_limit_bytes: int | None = None
    core_limit_percent: int | None = None
    memory_used_bytes: int | None = None
    core_used_percent: int | None = None
    problem: str = ""

    @property
    def is_limited(self) -> bool:
        return self.memory_limit_bytes is not None or self.core_limit_percent is not None


class GpuCardStatus(msgspec.Struct, frozen=True, kw_only=True):
    minor: int
    uuid: str
    model: str
    total_bytes: int
    memory_used_bytes: int | None = None
    core_used_percent: int | None = None


class GpusStatus(msgspec.Struct, frozen=True, kw_only=True):
    """GpusStatus is what `/apis/v1/gpus` answers."""

    cards: tuple[GpuCardStatus, ...] = ()
    shares: tuple[GpuShareStatus, ...] = ()
    daemons: tuple[MpsDaemonStatus, ...] = ()


def card_status(card: GpuCard) -> GpuCardStatus:
    """Return a card of which no use is known."""
    return GpuCardStatus(minor=card.minor, uuid=card.uuid, model=card.model, total_bytes=card.total_bytes)


def containers_with_gpus(
    pods: Iterable[PodMeta],
) -> Iterator[tuple[PodMeta, ContainerMeta, tuple[AllocatedDevice, ...]]]:
    """Yield the running containers of pods to which the scheduler gave GPUs, with these."""
    for pod in pods:
        allocated = parse_device_allocated(pod.annotations) if pod.is_alive else None
        if allocated is None or isinstance(allocated, MalformedAnnotation):
            continue
        cards = tuple(allocated.get(isolation.GPU, ()))
        yield from ((pod, one, cards) for one in pod.containers if cards and one.running)


def granted_share(pod: PodMeta, container: ContainerMeta, card: AllocatedDevice) -> GpuShareStatus:
    """Return a container's share as it was granted."""
    provider = pod.labels.get(L_GPU_ISOLATION_PROVIDER, "")
    limits = isolation.share_of(card, provider or "a share")
    granted = NO_LIMITS if isinstance(limits, str) else limits
    problem = limits if isinstance(limits, str) else ""
    if granted.is_share and not provider:
        problem = "nobody enforces this share"
    return GpuShareStatus(
        namespace=pod.namespace,
        pod=pod.name,
        uid=pod.uid,
        container=container.name,
        minor=card.minor,
        provider=provider,
        memory_limit_bytes=granted.memory_bytes,
        core_limit_percent=granted.core_percent,
        problem=problem,
    )


class GpuShares:
    """GpuShares reads when it is asked. `folder` is where containers' regions lie, as the agent sees it."""

    def __init__(
        self,
        host: Host,
        store: SeriesStore,
        now_s: Callable[[], float],
        pods: Callable[[], Sequence[PodMeta]],
        cards: Callable[[], Sequence[GpuCard]],
        daemons: Callable[[], Sequence[MpsDaemonStatus]],
        folder: str,
    ) -> None:
        self._host = host
        self._store = store
        self._now_s = now_s
        self._pods = pods
        self._cards = cards
        self._daemons = daemons
        self._folder = folder

    def status(self) -> GpusStatus:
        return GpusStatus(
            cards=tuple(self._card(card) for card in self._cards()),
            shares=tuple(self.shares()),
            daemons=tuple(self._daemons()),
        )

    def readings(self, node: str) -> Sequence[MetricReading]:
        """Return the metrics; without shares and daemons there are none."""
        shares = list(self.shares())
        values: dict[MetricDeclaration, list[tuple[tuple[str, ...], float]]] = {}
        for one in shares:
            labels = (node, one.namespace, one.pod, one.uid, one.container, str(one.minor), one.provider)
            for declaration, value in (
                (MEMORY_LIMIT, one.memory_limit_bytes),
                (MEMORY_USED, one.memory_used_bytes),
                (CORE_LIMIT, one.core_limit_percent),
                (CORE_USED, one.core_used_percent),
                (PROBLEMS, 1 if one.problem else None),
            ):
                if value is not None:
                    values.setdefault(declaration, []).append((labels, float(value)))
        for daemon in self._daemons():
            up = 0.0 if daemon.problem else 1.0
            values.setdefault(MPS_UP, []).append(((node, str(daemon.minor), daemon.uuid), up))
        return [declaration.reading(found) for declaration, found in values.items()]

    def shares(self) -> Iterable[GpuShareStatus]:
        for pod, container, cards in containers_with_gpus(self._pods()):
            region: HamiRegion | IoError | None = None
            if pod.labels.get(L_GPU_ISOLATION_PROVIDER) == GPU_ISOLATION_HAMI_CORE:
                name = f"{pod.uid}_{container.name}"
                region = read_region(f"{self._folder}/{name}/{name}.cache", self._alive)
            for index, card in enumerate(cards):
                yield self._used(container.id, index, granted_share(pod, container, card), region)

    def _used(
        self, container: str, index: int, granted: GpuShareStatus, region: HamiRegion | IoError | None
    ) -> GpuShareStatus:
        """Return the share with what is used of it, and what HAMi-core's region shows."""
        memory, core = self._sampled(container, granted.minor)
        problem = granted.problem
        if isinstance(region, HamiRegion) and index < len(region.cards):
            memory, core = region.cards[index].used_bytes, region.cards[index].core_percent
            problem = problem or _region_problem(region, index, granted)
        elif isinstance(region, IoError) and granted.is_limited and not region.vanished:
            problem = problem or str(region)  # one that is absent belongs to a container without a CUDA program
        return msgspec.structs.replace(granted, memory_used_bytes=memory, core_used_percent=core, problem=problem)

    def _sampled(self, container: str, minor: int) -> tuple[int | None, int | None]:
        uuid = next((card.uuid for card in self._cards() if card.minor == minor), "")
        which, now_s = (container, str(minor), uuid), self._now_s()
        memory = self._store.latest((metric_kind.CONTAINER_GPU_MEMORY, *which), now_s)
        core = self._store.latest((metric_kind.CONTAINER_GPU_CORE, *which), now_s)
        return None if memory is None else int(memory), None if core is None else int(core)

    def _card(self, card: GpuCard) -> GpuCardStatus:
        which, now_s = (str(card.minor), card.uuid), self._now_s()
        memory = self._store.latest((metric_kind.NODE_GPU_MEMORY, *which), now_s)
        core = self._store.latest((metric_kind.NODE_GPU_CORE, *which), now_s)
        return msgspec.structs.replace(
            card_status(card),
            memory_used_bytes=None if memory is None else int(memory),
            core_used_percent=None if core is None else int(core),
        )

    def _alive(self, pid: int) -> bool:
        return self._host.exists(f"{self._host.paths.proc}/{pid}")


class GpuSharing:
    """GpuSharing is the part of the agent that shares GPUs: it keeps the daemons and tells what containers use."""

    def __init__(
        self,
        settings: KoordletSettings,
        host: Host,
        clock: Clock,
        store: SeriesStore,
        control_loop: ControlLoop,
        pods: Callable[[], Sequence[PodMeta] | None],
        on_problem: ProblemCallback,
    ) -> None:
        self._node = settings.node
        self._collectors = control_loop.collectors
        self._keeper = MpsKeeper(
            MpsControl(settings.mps),
            clock,
            lambda: self._collectors.gpus,
            on_problem,
            enabled=MPS_GATE in settings.gates,
        )
        self._shares = GpuShares(
            host,
            store,
            clock.time,
            lambda: pods() or (),
            lambda: self._collectors.gpus,
            self._keeper.statuses,
            f"{settings.strategies.hooks.hami_library.rpartition('/')[0]}/containers",
        )
        self._writes = not settings.safe_mode

    @property
    def tasks(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        return [("mps", self._keeper.run)] if self._writes else []

    @property
    def daemon_problems(self) -> Mapping[int, str]:
        return self._keeper.problems

    def status(self) -> GpusStatus:
        return self._shares.status()

    def readings(self) -> Sequence[MetricReading]:
        return self._shares.readings(self._node)


def _region_problem(region: HamiRegion, index: int, granted: GpuShareStatus) -> str:
    """Return what the region shows that the operator should know, the gravest first."""
    card = region.cards[index]
    if granted.memory_limit_bytes is not None and card.memory_limit_bytes != granted.memory_limit_bytes:
        return f"HAMi-core limits memory to {card.memory_limit_bytes} bytes, {granted.memory_limit_bytes} are granted"
    unlimited = [one.pid for one in region.processes if not one.host_pid]
    if granted.core_limit_percent is not None and unlimited:
        return f"HAMi-core has not found process {unlimited[0]} on the host, and limits no cores of it"
    if granted.core_limit_percent is not None and not region.limits_cores:
        return "HAMi-core's limit of cores is switched off"
    if region.underflows:
        return f"{region.underflows} counters of HAMi-core are below zero and count as 0"
    return ""
