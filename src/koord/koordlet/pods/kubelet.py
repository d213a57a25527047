"""Questions to this node's kubelet: its pods and its configuration. What the answers mean is decided elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from koord.api.model import Model, decode
from koord.api.node import Node
from koord.api.part import ResourceList
from koord.koordlet.pods.settings import Settings
from koord.kube.connection import Anonymous, Auth, BadConfig, Connection, Origin, Pem, TokenFile
from koord.kube.http import HttpTransport
from koord.kube.transport import UNREADABLE, Answer, Request, Unreachable
from koord.telemetry.clock import Clock

T = TypeVar("T")

Observer = Callable[[str, int, float], None]  # path, HTTP code (0: no answer), seconds


class NoAnswer(msgspec.Struct, frozen=True):
    """Why the kubelet gave no usable answer."""
    why: str

    def __str__(self) -> str:
        return self.why


class KubeletConfiguration(Model, frozen=True, kw_only=True):
    """The part of the KubeletConfiguration that this agent acts on, with the kubelet's own defaults."""

    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: dict[str, str] = {}
    reserved_system_cpus: str = msgspec.field(default="", name="reservedSystemCPUs")
    system_reserved: ResourceList = {}
    kube_reserved: ResourceList = {}
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    cgroup_driver: str = ""


class Kubelet(Protocol):
    """The requests that the agent makes to a kubelet."""

    @property
    def server(self) -> str:
        """Return the kubelet's address, once it was asked."""
        ...

    async def pods(self) -> list[msgspec.Raw] | NoAnswer:
        """Return each pod as JSON text: most are unchanged since the last time, and need not be decoded again."""
        ...

    async def configuration(self) -> KubeletConfiguration | NoAnswer: ...

    async def close(self) -> None: ...


class _PodList(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


class _Configz(Model, frozen=True, kw_only=True):
    kubeletconfig: KubeletConfiguration = KubeletConfiguration()


class KubeletClient:
    """The HTTP client. `node` returns the Node as last seen, which tells where its kubelet listens."""

    def __init__(
        self, settings: Settings, clock: Clock, node: Callable[[], Node | None], *, on_request: Observer | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._node = node
        self._on_request = on_request
        self._transport: HttpTransport | None = None
        self._reached = ""

    @property
    def server(self) -> str:
        return self._reached

    async def pods(self) -> list[msgspec.Raw] | NoAnswer:
        listed = await self._ask("/pods/", lambda raw: msgspec.json.decode(raw, type=_PodList))
        return listed if isinstance(listed, NoAnswer) else listed.items or []

    async def configuration(self) -> KubeletConfiguration | NoAnswer:
        found = await self._ask("/configz", lambda raw: decode(raw, _Configz))
        return found if isinstance(found, NoAnswer) else found.kubeletconfig

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.close()
            self._transport = None

    async def _ask(self, path: str, read: Callable[[bytes], T]) -> T | NoAnswer:
        server = self._server()
        if isinstance(server, NoAnswer):
            return server
        started = self._clock.monotonic()
        code = 0
        try:
            transport = await self._reach(server)
            answer = await transport.send(Request(method="GET", path=path, user_agent="koordlet"))
            code = answer.status
            return read(answer.body.raw()) if answer.ok else _refusal(server, path, answer)
        except (Unreachable, BadConfig) as failure:
            return NoAnswer(str(failure))
        except UNREADABLE as failure:
            return NoAnswer(f"the kubelet's answer to {path} cannot be read: {failure}")
        finally:
            if self._on_request is not None:
                self._on_request(path, code, self._clock.monotonic() - started)

    def _server(self) -> str | NoAnswer:
        settings, node = self._settings, self._node()
        address, port = settings.address, settings.read_only_port if settings.plain_http else settings.port
        if node is not None:
            address = address or _address(node, settings.address_type)
            port = port or node.status.daemon_endpoints.kubelet_endpoint.port
        if not address or not port:
            return NoAnswer(
                "the node was not seen yet, so the kubelet's address is not known"
                if node is None
                else f"the node's status has no {settings.address_type} address or no kubelet port"
            )
        shown = f"[{address}]" if ":" in address else address
        return f"{'http' if settings.plain_http else 'https'}://{shown}:{port}"

    async def _reach(self, server: str) -> HttpTransport:
        if self._transport is None or server != self._reached:
            await self.close()
            self._reached = server
            self._transport = HttpTransport(
                self._connection(server),
                self._clock,
                timeout_s=self._settings.timeout_s,
                connect_timeout_s=self._settings.timeout_s,
                connections=2,
            )
        return self._transport

    def _connection(self, server: str) -> Connection:
        settings = self._settings
        auth: Auth = settings.auth
        if settings.plain_http:
            auth = Anonymous()
        elif settings.token_file:
            auth = TokenFile(origin=Origin(settings.token_file, ""), path=settings.token_file)
        return Connection(
            server=server,
            origin=Origin("the node's status", "daemonEndpoints"),
            ca=Pem(origin=Origin(settings.ca_file, ""), path=settings.ca_file) if settings.ca_file else None,
            insecure=not settings.ca_file,
            certificate=None if settings.plain_http else settings.certificate,
            auth=auth,
        )


def _address(node: Node, wanted: str) -> str:
    """Return the node's address of the wanted type; an unknown type counts as InternalIP."""
    by_type = {one.type: one.address for one in reversed(node.status.addresses)}
    return by_type.get(wanted) or by_type.get("InternalIP", "")


def _refusal(server: str, path: str, answer: Answer) -> NoAnswer:
    said = answer.body.raw()[:200].decode("utf-8", "replace").strip()
    hint = "; its service account needs get on nodes/proxy" if answer.status in (401, 403) else ""
    return NoAnswer(f"{server}{path} answered {answer.status}: {said}{hint}")
