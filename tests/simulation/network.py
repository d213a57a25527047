"""The API server of a simulated control plane, and connections to it that lose, delay and refuse what they carry."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from koord.embedded.apiserver.server import ApiServer
from koord.embedded.apiserver.store.collection import StoreRecord
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.kube.transport.fenced_socket import WriteFence
from koord.kube.transport.interface import ApiRequest, ApiResponse, Unreachable, UnstructuredBody, WatchStream
from koord.telemetry.clock import Clock
from tests.simulation.process_loop import SimulatedProcess, outside

ADMIN = "system:admin"
_END = object()


class EvictionAnswer(msgspec.Struct, frozen=True):
    actor: str  # the process
    uid: str  # of the pod
    accepted: bool


class MemoryJournal:
    """What a data directory keeps, without the directory: everything acknowledged is there after a restart."""

    def __init__(self) -> None:
        self._records: dict[str, dict[tuple[str, str], StoreRecord]] = {}
        self._revision = 0

    def load(self) -> tuple[int, Mapping[str, list[StoreRecord]]]:
        return self._revision, {resource: list(kept.values()) for resource, kept in self._records.items()}

    def raise_if_failed(self) -> None:
        """Memory does not fail."""

    def write(self, resource: str, record: StoreRecord) -> None:
        self._records.setdefault(resource, {})[(record.namespace, record.name)] = record
        self._revision = record.revision

    def remove(self, resource: str, record: StoreRecord) -> None:
        self._records[resource].pop((record.namespace, record.name), None)
        self._revision = record.revision

    async def wait_durable(self, revision: int) -> None:
        """Nothing is written later."""

    async def close(self) -> None:
        """Nothing is open."""


class SimulatedServer:
    """An API server that can be killed and started again from what it had stored."""

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self._clock = clock
        self._chance = chance
        self._journal = MemoryJournal()
        self._listeners: list[tuple[str, Any]] = []
        self._api: ApiServer | None = None
        self.connections: dict[_Watch, None] = {}  # in the order of opening

    @property
    def up(self) -> bool:
        return self._api is not None

    @property
    def api(self) -> ApiServer:
        if self._api is None:
            raise Unreachable("connection refused", sent=False)
        return self._api

    def observe(self, resource: str, listener: Any) -> None:
        """Call `listener` with every change of a resource, as it is stored, also after restarts."""
        self._listeners.append((resource, listener))
        if self._api is not None:
            self._api.store.add_listener(resource, listener)

    async def start(self) -> None:
        store = ObjectStore(self._journal)  # type: ignore[arg-type]
        api = ApiServer(store, clock=self._clock, chance=self._chance)
        await api.start()
        for resource, listener in self._listeners:
            store.add_listener(resource, listener)
        self._api = api

    async def kill(self) -> None:
        api, self._api = self._api, None
        assert api is not None
        api.closed = True
        for watch in tuple(self.connections):
            watch.cut()
        await api.close()


class Weather:
    """How bad the network is: the share of requests that something happens to, and how long they take."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.fault_share = 0.0
        self.slow_share = 0.0
        self.faults: Counter[str] = Counter()
        self.requests = 0
        self.frames = 0

    def delay_s(self) -> float:
        if self._chance.random() < self.slow_share:
            self.faults["slow"] += 1
            return self._chance.uniform(0.2, 4.0)
        return self._chance.expovariate(1 / 0.002)

    def fate(self) -> str:
        if self._chance.random() >= self.fault_share:
            return "well"
        fate = self._chance.choice(("refused", "lost", "lost-after", "429", "500", "500-after", "503"))
        self.faults[fate] += 1
        return fate


class Connection:
    """A transport of one process. What it has sent arrives even when the process is stopped or killed."""

    def __init__(
        self,
        server: SimulatedServer,
        weather: Weather,
        clock: Clock,
        process: SimulatedProcess,
        fence: WriteFence | None,
    ) -> None:
        self._server = server
        self._weather = weather
        self._clock = clock
        self._process = process
        self._fence = fence
        self._watches: dict[_Watch, None] = {}
        self.evictions: list[EvictionAnswer] = []

    async def send(self, request: ApiRequest) -> ApiResponse:
        if self._process.killed:
            raise Unreachable("this process was killed", sent=False)
        if request.method != "GET" and self._fence is not None and not self._fence.is_open():
            raise Unreachable("this process may no longer write", sent=False)
        answer = await outside(self._exchange(request))
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    async def _exchange(self, request: ApiRequest) -> ApiResponse | Unreachable:
        weather = self._weather
        weather.requests += 1
        fate = weather.fate()
        await self._clock.sleep(weather.delay_s())
        if fate == "refused":
            return Unreachable("connection refused", sent=False)
        if fate == "lost":
            return Unreachable("connection reset by peer")
        if fate in ("429", "500", "503"):
            return _status(int(fate))
        try:
            api = self._server.api
            uid = _evicted_uid(api, request)
            answer = await api.handle(_as(request, self._process.name))
        except Unreachable as refused:
            return refused
        if uid:
            self.evictions.append(EvictionAnswer(self._process.name, uid, answer.ok))
        await self._clock.sleep(weather.delay_s())
        if fate == "lost-after" or not self._server.up:
            return Unreachable("connection reset by peer")
        return _status(500) if fate == "500-after" else answer

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        if self._process.killed:
            raise Unreachable("this process was killed", sent=False)
        opened = await outside(self._open(request))
        if isinstance(opened, Unreachable):
            raise opened
        return opened

    async def _open(self, request: ApiRequest) -> WatchStream | ApiResponse | Unreachable:
        weather = self._weather
        weather.requests += 1
        await self._clock.sleep(weather.delay_s())
        if weather.fate() != "well":
            return Unreachable("connection refused", sent=False)
        try:
            stream = await self._server.api.watch(_as(request, self._process.name))
        except Unreachable as refused:
            return refused
        if isinstance(stream, ApiResponse):
            return stream
        return _Watch(stream, self._server, weather, self._clock, self._watches)

    def cut(self) -> None:
        """Break every watch of this connection."""
        for watch in tuple(self._watches):
            watch.cut()

    async def close(self) -> None:
        self.cut()


class _Watch:
    """Frames on their way: they come in order, some of them late."""

    def __init__(
        self, inner: WatchStream, server: SimulatedServer, weather: Weather, clock: Clock, among: dict[_Watch, None]
    ) -> None:
        self._inner = inner
        self._server = server
        self._weather = weather
        self._clock = clock
        self._among = among
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        among[self] = server.connections[self] = None
        self._pump = outside(self._carry())

    async def _carry(self) -> None:
        try:
            async for frame in self._inner:
                self._weather.frames += 1
                if self._weather.slow_share:
                    await self._clock.sleep(self._weather.delay_s())
                self._queue.put_nowait(frame)
        finally:
            self._queue.put_nowait(_END)
            self._among.pop(self, None)
            self._server.connections.pop(self, None)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (frame := await self._queue.get()) is not _END:
            yield frame

    def cut(self) -> None:
        self._pump.cancel()

    async def close(self) -> None:
        self.cut()
        await self._inner.close()


class DirectConnection:
    """A connection without faults, for those who watch and those who play the users; it follows restarts."""

    def __init__(self, server: SimulatedServer, user: str = ADMIN) -> None:
        self._server = server
        self._user = user

    async def send(self, request: ApiRequest) -> ApiResponse:
        return await self._server.api.handle(_as(request, self._user))

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        return await self._server.api.watch(_as(request, self._user))

    async def close(self) -> None:
        """Nothing is open."""


def _evicted_uid(api: ApiServer, request: ApiRequest) -> str:
    """Return the uid of the pod that a request evicts or deletes; empty for other requests."""
    parts = request.path.split("/")  # /api/v1/namespaces/NS/pods/NAME[/eviction]
    if parts[5:6] != ["pods"] or not (request.path.endswith("/eviction") or request.method == "DELETE"):
        return ""
    found = api.store.collection("pods").get(parts[4], parts[6])
    return found.plain()["metadata"]["uid"] if found is not None else ""


def _as(request: ApiRequest, user: str) -> ApiRequest:
    return msgspec.structs.replace(request, user=user)


def _status(code: int) -> ApiResponse:
    body = {"kind": "Status", "status": "Failure", "code": code, "message": f"fault {code}", "reason": "Fault"}
    return ApiResponse(status=code, body=UnstructuredBody(body))
