"""The copilot as a program: its settings, its API on a Unix socket, its metrics, and the synchronization of groups."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import PurePosixPath

import msgspec

from koord.api.koordinator.protocol import BEST_EFFORT
from koord.api.koordinator.yarn import NODE_MANAGER_WEB_PORT, TASKS_RELATIVE_PATH
from koord.host.cgroup.detection import LayoutNotDetected, cgroup_version, open_tree
from koord.host.cgroup.layout import CGROUPFS, CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.filesystem import Host, HostPaths
from koord.host.inotify import InotifyWatcher
from koord.host.io_error import IoError
from koord.host.unix_socket import NotExclusive, SocketClaim, claim_socket
from koord.telemetry import metrics
from koord.telemetry.clock import Clock
from koord.telemetry.http_routing import HttpCall, HttpReply, error_reply, json_reply, text_reply
from koord.telemetry.metrics import MetricRegistry
from koord.telemetry.plain_http import PlainHttpServer
from koord.telemetry.process import register_process_metrics
from koord.values.quantity import Quantity, QuantityError
from koord.wire import yarn_copilot as api
from koord.wire.yarn_copilot import ContainerInfo, KilledContainers, NodeManagerContainer
from koord.yarn.copilot.container_group import ContainerGroups, NotKilled
from koord.yarn.copilot.node_manager import Address, NodeManagerClient, NodeManagerUnavailable

_LOG = logging.getLogger(__name__)

PORT = 9319
DEFAULT_GROUP = f"kubepods/besteffort/{TASKS_RELATIVE_PATH}"
_PREFIX = "koord_yarn_copilot_"
_SOCKET_MODE = 0o660
_LISTEN_RETRY_S = 10.0
_LOG_PROBLEMS = 3  # of one synchronization


class CopilotSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings, with the defaults of Koordinator's copilot."""

    endpoint: str = f"/var/run/{api.SOCKET}"
    group: str = ""  # of all containers; "": hadoop-yarn below the best-effort pods, as this node names them
    node_manager: Address = ("localhost", NODE_MANAGER_WEB_PORT)
    kubelet: Address | None = ("127.0.0.1", 10255)  # its read-only port, asked where the NodeManager's pod is
    sync_memory: bool = False
    sync_s: float = 10.0
    cgroup_root: str = "/sys/fs/cgroup"
    address: tuple[str, int] | None = ("", PORT)  # of metrics and health; None serves none


class CopilotMetrics:
    def __init__(self) -> None:
        self.registry = registry = MetricRegistry()
        register_process_metrics(registry)
        self.lists = registry.counter(
            f"{_PREFIX}node_manager_requests_total",
            "Questions to the NodeManager for its containers, by outcome: ok, error.",
            ("outcome",),
        )
        self.kills = registry.counter(
            f"{_PREFIX}container_kills_total",
            "Containers that were to be killed, by outcome: killed, failed.",
            ("outcome",),
        )
        self.containers = registry.gauge(f"{_PREFIX}containers", "Live containers of YARN on the node, as last listed.")
        self.sync_errors = registry.counter(
            f"{_PREFIX}cgroup_sync_errors_total", "Cgroups of containers that could not be brought to their values."
        )


class CopilotNotStarted(msgspec.Struct, frozen=True):
    """CopilotNotStarted says why the copilot cannot serve, as a sentence."""

    reason: str


class YarnCopilot:
    """YarnCopilot is one running copilot. `start` returns it or why it cannot run; `stop` ends it."""

    def __init__(self, settings: CopilotSettings, clock: Clock, claim: SocketClaim, groups: ContainerGroups) -> None:
        self._settings = settings
        self._clock = clock
        self._claim = claim
        self.groups = groups
        self.metrics = CopilotMetrics()
        self.node_manager = NodeManagerClient(
            settings.node_manager, clock, kubelet=settings.kubelet, on_list=self._note_list
        )
        self.server = PlainHttpServer()
        self.endpoint = PlainHttpServer()
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._watcher: InotifyWatcher | None = None
        self._add_routes()

    @staticmethod
    async def start(settings: CopilotSettings, clock: Clock) -> YarnCopilot | CopilotNotStarted:
        tree = open_container_tree(settings)
        claim = claim_socket(settings.endpoint)
        if isinstance(claim, NotExclusive):
            return CopilotNotStarted(str(claim))
        group = settings.group or f"{tree.layout.qos_dir(BEST_EFFORT)}/{TASKS_RELATIVE_PATH}"
        copilot = YarnCopilot(settings, clock, claim, ContainerGroups(tree, group, clock))
        try:
            await copilot.server.listen_unix(settings.endpoint)
            os.chmod(settings.endpoint, _SOCKET_MODE)
        except OSError as error:
            await copilot.stop()
            return CopilotNotStarted(f"cannot listen on {settings.endpoint}: {error.strerror or error}")
        copilot._spawn_tasks()
        where = f"{settings.node_manager[0]}:{settings.node_manager[1]}"
        _LOG.info("serving %s for the NodeManager at %s, containers are below %s", settings.endpoint, where, group)
        return copilot

    async def stop(self) -> None:
        """Stop serving; containers are not touched."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.server.close()
        await self.endpoint.close()
        if self._watcher is not None:
            asyncio.get_running_loop().remove_reader(self._watcher.fileno())
            self._watcher.close()
        self._claim.release()

    def _spawn_tasks(self) -> None:
        if self._settings.address is not None:
            self._tasks.append(asyncio.create_task(self._listen(*self._settings.address), name="listen"))
        if self._settings.sync_memory:
            self._tasks.append(asyncio.create_task(self._synchronize(), name="synchronize"))

    # API -----------------------------------------------------------------------------------------------------------

    def _add_routes(self) -> None:
        routes = self.server.routes
        routes.add("GET", api.HEALTH, lambda _: json_reply("ok"))
        routes.add("GET", api.INFORMATION, lambda _: api.PluginInformation())
        routes.add("GET", api.CONTAINERS, self._list)
        routes.add("GET", api.CONTAINER, self._get)
        routes.add("POST", api.KILL_CONTAINER, self._kill_one)
        routes.add("POST", api.KILL_BY_RESOURCE, self._kill_by_resource)
        for one in (self.server.routes, self.endpoint.routes):
            one.add("GET", "/metrics", self._metrics_page)
        self.endpoint.routes.add("GET", "/healthz", lambda _: text_reply("ok"))
        self.endpoint.routes.add("GET", "/readyz", self._readiness)

    async def _list(self, call: HttpCall) -> list[ContainerInfo] | HttpReply:
        found = await self.node_manager.containers()
        if isinstance(found, NodeManagerUnavailable):
            return error_reply(400, str(found))
        return [self._info(one) for one in found]

    async def _get(self, call: HttpCall) -> ContainerInfo | HttpReply:
        found = await self._find(call.first_value("containerID") or "")
        return found if isinstance(found, HttpReply) else self._info(found)

    async def _kill_one(self, call: HttpCall) -> KilledContainers | HttpReply:
        try:
            wanted = msgspec.json.decode(call.body, type=api.KillRequest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return error_reply(400, f"the body is no request to kill a container: {error}")
        found = await self._find(wanted.container_id, fresh=True)
        if isinstance(found, HttpReply):
            return found
        refused = await self._kill(found)
        return KilledContainers([self._info(found)]) if refused is None else error_reply(400, refused.reason)

    async def _kill_by_resource(self, call: HttpCall) -> KilledContainers | HttpReply:
        try:
            wanted = msgspec.json.decode(call.body or b"{}", type=api.KillByResourceRequest)
            milli = Quantity.parse(wanted.resources.get("cpu", "0")).milli_value()
            memory = Quantity.parse(wanted.resources.get("memory", "0")).value()
        except (msgspec.DecodeError, UnicodeDecodeError, QuantityError) as error:
            return error_reply(400, f"the body names no resources to free: {error}")
        if milli <= 0 and memory <= 0:
            return KilledContainers()
        found = await self.node_manager.containers(fresh=True)
        if isinstance(found, NodeManagerUnavailable):
            return error_reply(400, str(found))
        killed: list[ContainerInfo] = []
        for one in api.select_by_resource(found, milli, memory):
            refused = await self._kill(one)
            if refused is not None:
                names = ", ".join(info.name for info in killed)
                return error_reply(400, f"{refused.reason}; killed before: {names or 'none'}")
            killed.append(self._info(one))
        return KilledContainers(killed)

    async def _find(self, container_id: str, *, fresh: bool = False) -> NodeManagerContainer | HttpReply:
        if not api.is_container_id(container_id):
            return error_reply(400, f"containerID {container_id[:200]!r} is no id of a container")
        found = await self.node_manager.containers(fresh=fresh)
        if isinstance(found, NodeManagerUnavailable):
            return error_reply(400, str(found))
        one = next((one for one in found if one.id == container_id), None)
        return error_reply(400, f"the NodeManager has no live container {container_id}") if one is None else one

    async def _kill(self, container: NodeManagerContainer) -> NotKilled | None:
        result = await self.groups.kill(container.id)
        self.node_manager.forget()
        if isinstance(result, NotKilled):
            self.metrics.kills.labels("failed").inc()
            _LOG.warning("%s", result)
            return result
        self.metrics.kills.labels("killed").inc()
        _LOG.info("killed %s: %d processes", container.id, result)
        return None

    def _info(self, container: NodeManagerContainer) -> ContainerInfo:
        return api.container_info(container, self.groups.parent)

    def _note_list(self, works: bool) -> None:
        self.metrics.lists.labels("ok" if works else "error").inc()

    def _metrics_page(self, call: HttpCall) -> HttpReply:
        self.metrics.containers.labels().set(self.node_manager.live_count)
        open_metrics = metrics.prefers_openmetrics(call.headers.get("accept", ""))
        kind = metrics.OPENMETRICS_CONTENT_TYPE if open_metrics else metrics.TEXT_CONTENT_TYPE
        return HttpReply(body=metrics.render((self.metrics.registry,), open_metrics=open_metrics), content_type=kind)

    async def _readiness(self, call: HttpCall) -> HttpReply:
        found = await self.node_manager.containers()
        return text_reply(f"{found}\n", 500) if isinstance(found, NodeManagerUnavailable) else text_reply("ok")

    # Tasks ---------------------------------------------------------------------------------------------------------

    async def _synchronize(self) -> None:
        """Bring memory groups to the containers: every period, and when a group is made or removed."""
        said: list[str] = []
        while True:
            self._changed.clear()
            found = await self.node_manager.containers(fresh=True)
            problems = [str(found)] if isinstance(found, NodeManagerUnavailable) else self.groups.synchronize(found)
            self.metrics.sync_errors.labels().inc(len(problems))
            if problems != said:
                for problem in problems[:_LOG_PROBLEMS]:
                    _LOG.warning("cgroups of containers: %s", problem)
                said = problems
            self._watch()
            try:
                async with asyncio.timeout(self._settings.sync_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _watch(self) -> None:
        """Watch the CPU groups; without inotify the period alone counts."""
        if self.is_watching:
            return
        if self._watcher is None:
            opened = InotifyWatcher.open()
            if isinstance(opened, IoError):
                _LOG.debug("groups are looked at every %.0f s only: %s", self._settings.sync_s, opened)
                return
            self._watcher = opened
            asyncio.get_running_loop().add_reader(opened.fileno(), self._group_changed)
        self._watcher.watch(self.groups.cpu_path)

    @property
    def is_watching(self) -> bool:
        """Return whether groups are noticed when they are made or removed."""
        return self._watcher is not None and bool(self._watcher.folders)

    def _group_changed(self) -> None:
        if self._watcher is not None and self._watcher.read():
            self._changed.set()

    async def _listen(self, host: str, port: int) -> None:
        """Listen for metrics and health, and try again while the port is taken: koordlet does not depend on it."""
        while True:
            try:
                bound = await self.endpoint.listen(host, port)
            except OSError as error:
                _LOG.warning("cannot listen on %s:%d, trying again: %s", host, port, error)
            else:
                _LOG.info("metrics and health are on port %d", bound)
                return
            await self._clock.sleep(_LISTEN_RETRY_S)


def open_container_tree(settings: CopilotSettings) -> CgroupTree:
    """Return the cgroup tree with the layout of this node; one that is not found counts as that of cgroupfs."""
    host = Host.local(HostPaths(cgroup=str(PurePosixPath(settings.cgroup_root))))
    found = None if settings.group else open_tree(host)
    if found is None or isinstance(found, LayoutNotDetected):
        return CgroupTree(host, cgroup_version(host), CgroupLayout(CGROUPFS))
    return found
