"""The client of this node's kubelet: it asks for pods and configuration, and interprets neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeVar

import msgspec

from koord.api.kubernetes.node import Node
from koord.api.model import Model, ResourceList, decode
from koord.kube.config import connection
from koord.kube.transport.http import HttpTransport
from koord.kube.transport.interface import DECODE_ERRORS, ApiRequest, ApiResponse, Unreachable
from koord.telemetry.clock import Clock

PodOrigin = Literal["auto", "kubelet", "apiserver"]


class PodSourceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """PodSourceSettings states how to reach the kubelet, and how often to ask.

    Without `ca_file` the kubelet's certificate is not verified: most kubelets sign their own. `plain_http` uses the
    read-only port instead, which needs no token. A `token_file` takes precedence over `auth`, the agent's
    credentials at the API server.
    """

    source: PodOrigin = "auto"  # auto: the kubelet, and the API server while the kubelet does not answer
    address_type: str = "InternalIP"
    address: str = ""  # in place of the node's address
    port: int = 0  # in place of the one in the node's status
    plain_http: bool = False
    read_only_port: int = 10255
    token_file: str = ""
    auth: connection.Auth = connection.AnonymousAuth()
    certificate: connection.ClientKeyPair | None = None
    ca_file: str = ""
    sync_s: float = 10.0
    timeout_s: float = 3.0
    rescan_s: float = 60.0  # how often all groups are scanned, whatever inotify said
    poll_s: float = 2.0  # how often they are scanned while inotify cannot watch all of them
    least_gap_s: float = 1.0  # between two questions that new groups cause


T = TypeVar("T")

RequestObserver = Callable[[str, int, float], None]  # path, HTTP code (0: no answer), seconds


class KubeletUnavailable(msgspec.Struct, frozen=True):
    """KubeletUnavailable says why the kubelet gave no usable answer."""

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


class KubeletApi(Protocol):
    """The requests that the agent makes to a kubelet."""

    @property
    def server(self) -> str:
        """Return the kubelet's address, once it was asked."""

    async def pods(self) -> list[msgspec.Raw] | KubeletUnavailable:
        """Return each pod as JSON text: most are unchanged since the last time, and need not be decoded again."""

    async def configuration(self) -> KubeletConfiguration | KubeletUnavailable: ...

    async def close(self) -> None: ...


class _PodList(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


class _Configz(Model, frozen=True, kw_only=True):
    kubeletconfig: KubeletConfiguration = KubeletConfiguration()


class KubeletClient:
    """The HTTP client. `node` returns the Node as last seen, which tells where its kubelet listens."""

    def __init__(
        self,
        settings: PodSourceSettings,
        clock: Clock,
        node: Callable[[], Node | None],
        *,
        on_request: RequestObserver | None = None,
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

    async def pods(self) -> list[msgspec.Raw] | KubeletUnavailable:
        listed = await self._ask("/pods/", lambda raw: decode(raw, _PodList))
        return listed if isinstance(listed, KubeletUnavailable) else listed.items or []

    async def configuration(self) -> KubeletConfiguration | KubeletUnavailable:
        found = await self._ask("/configz", lambda raw: decode(raw, _Configz))
        return found if isinstance(found, KubeletUnavailable) else found.kubeletconfig

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.close()
            self._transport = None

    async def _ask(self, path: str, read: Callable[[bytes], T]) -> T | KubeletUnavailable:
        server = self._server()
        if isinstance(server, KubeletUnavailable):
            return server
        started = self._clock.monotonic()
        code = 0
        try:
            transport = await self._reach(server)
            answer = await transport.send(ApiRequest(method="GET", path=path, user_agent="koordlet"))
            code = answer.status
            return read(answer.body.raw()) if answer.ok else _http_failure(server, path, answer)
        except (Unreachable, connection.BadConfig) as failure:
            return KubeletUnavailable(str(failure))
        except DECODE_ERRORS as failure:
            return KubeletUnavailable(f"the kubelet's answer to {path} cannot be read: {failure}")
        finally:
            if self._on_request is not None:
                self._on_request(path, code, self._clock.monotonic() - started)

    def _server(self) -> str | KubeletUnavailable:
        settings, node = self._settings, self._node()
        address, port = settings.address, settings.read_only_port if settings.plain_http else settings.port
        if node is not None:
            address = address or _address(node, settings.address_type)
            port = port or node.status.daemon_endpoints.kubelet_endpoint.port
        if not address or not port:
            return KubeletUnavailable(
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

    def _connection(self, server: str) -> connection.Connection:
        settings = self._settings
        auth: connection.Auth = settings.auth
        if settings.plain_http:
            auth = connection.AnonymousAuth()
        elif settings.token_file:
            auth = connection.TokenFileAuth(
                origin=connection.SettingOrigin(settings.token_file, ""), path=settings.token_file
            )
        return connection.Connection(
            server=server,
            origin=connection.SettingOrigin("the node's status", "daemonEndpoints"),
            ca=connection.PemSource(origin=connection.SettingOrigin(settings.ca_file, ""), path=settings.ca_file)
            if settings.ca_file
            else None,
            insecure=not settings.ca_file,
            certificate=None if settings.plain_http else settings.certificate,
            auth=auth,
        )


def _address(node: Node, wanted: str) -> str:
    """Return the node's address of the wanted type; an unknown type counts as InternalIP."""
    by_type = {one.type: one.address for one in reversed(node.status.addresses)}
    return by_type.get(wanted) or by_type.get("InternalIP", "")


def _http_failure(server: str, path: str, answer: ApiResponse) -> KubeletUnavailable:
    said = answer.body.raw()[:200].decode("utf-8", "replace").strip()
    hint = "; its service account needs get on nodes/proxy" if answer.status in (401, 403) else ""
    return KubeletUnavailable(f"{server}{path} answered {answer.status}: {said}{hint}")
