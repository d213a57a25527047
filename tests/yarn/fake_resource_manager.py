"""A whole ResourceManager as far as the operator can tell: it speaks Hadoop's RPC on both of its ports.

NodeManagers are entries that a test adds and removes. A pair of ResourceManagers shares the NodeManagers and has one
that is active; a standby closes its client port and refuses administrators, as YARN's does.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from koord.api.koordinator.yarn import YarnNodeId
from koord.wire import hadoop_rpc as rpc
from koord.wire import hadoop_sasl as sasl
from koord.wire import hadoop_yarn as yarn
from koord.wire.hadoop_yarn import NodeIdMessage, NodeReport, NodeResource, ResourceMessage
from koord.wire.protobuf import read_length_delimited
from koord.yarn.hadoop_config import HostPort, ResourceManagerAddress, YarnCluster

YARN_EXCEPTION = "org.apache.hadoop.yarn.exceptions.YarnException"


class FakeNodeManager(msgspec.Struct, kw_only=True):
    capability: ResourceMessage
    used: ResourceMessage = ResourceMessage()
    state: int = yarn.RUNNING


class FakeYarn:
    """FakeYarn is the NodeManagers of a cluster, and what its ResourceManagers were told."""

    def __init__(self, admins: tuple[str, ...] = ()) -> None:
        self.nodes: dict[YarnNodeId, FakeNodeManager] = {}
        self.admins = admins  # none: everybody
        self.updates: list[NodeResource] = []
        self.users: list[str] = []
        self.requests: list[bytes] = []

    def add(self, host: str, port: int = 8041, memory_mib: int = 1024, vcores: int = 1) -> YarnNodeId:
        node = YarnNodeId(host, port)
        self.nodes[node] = FakeNodeManager(capability=ResourceMessage(memory_mib, vcores))
        return node

    def use(self, node: YarnNodeId, memory_mib: int, vcores: int) -> None:
        self.nodes[node].used = ResourceMessage(memory_mib, vcores)

    def capability(self, node: YarnNodeId) -> ResourceMessage:
        return self.nodes[node].capability


class FakeResourceManager:
    def __init__(self, cluster: FakeYarn, name: str = "rm1", token: sasl.HadoopToken | None = None) -> None:
        self.cluster = cluster
        self.name = name
        self.active = True
        self.calls = 0
        self._token = token
        self._servers: dict[str, asyncio.Server] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._ports = {"client": 0, "admin": 0}

    @property
    def address(self) -> ResourceManagerAddress:
        ports = (HostPort("127.0.0.1", self._ports[name]) for name in ("client", "admin"))
        return ResourceManagerAddress(self.name, *ports)

    async def start(self) -> None:
        for name, serve in (("client", self._serve_client), ("admin", self._serve_admin)):
            if name not in self._servers and (self.active or name == "admin"):
                server = await asyncio.start_server(serve, "127.0.0.1", self._ports[name])
                self._servers[name] = server
                self._ports[name] = server.sockets[0].getsockname()[1]

    async def stop(self, *names: str) -> None:
        for name in names or tuple(self._servers):
            server = self._servers.pop(name)
            server.close()
            await server.wait_closed()
        if self._connections:
            await asyncio.wait(self._connections)

    async def become_standby(self) -> None:
        self.active = False
        await self.stop("client")

    async def become_active(self) -> None:
        self.active = True
        await self.start()

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, is_admin=False)

    async def _serve_admin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, is_admin=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_admin: bool) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            preamble = await reader.readexactly(7)
            assert preamble[:6] == b"hrpc\x09\x00"
            if preamble[6] == rpc.SASL_AUTH:
                await self._authenticate(reader, writer)
            frame = await _frame(reader)
            header, at = rpc.take_message(frame, 0, rpc.REQUEST_HEADER_CODEC)
            context, _ = rpc.take_message(frame, at, rpc.CONTEXT_CODEC)
            assert header.call_id == rpc.CONNECTION_CONTEXT_CALL
            user = context.user.effective_user if context.user is not None else "token"
            frame = await _frame(reader)
            header, at = rpc.take_message(frame, 0, rpc.REQUEST_HEADER_CODEC)
            method, at = rpc.take_message(frame, at, rpc.METHOD_CODEC)
            body = frame[at:]
            start = len(body) - _delimited_size(body)
            self.calls += 1
            self.cluster.users.append(user)
            self.cluster.requests.append(body[start:])
            answer = self._answer(method.method, body[start:], user, is_admin=is_admin)
            if isinstance(answer, rpc.RpcException):
                failed = rpc.RpcResponseHeader(
                    call_id=header.call_id,
                    status=rpc.ERROR,
                    exception_class=answer.class_name,
                    error_message=answer.message,
                    client_id=header.client_id,
                )
                writer.write(rpc.encode_frame(rpc.RESPONSE_HEADER_CODEC.encode(failed)))
            else:
                fine = rpc.RpcResponseHeader(call_id=header.call_id, client_id=header.client_id)
                writer.write(rpc.encode_frame(rpc.RESPONSE_HEADER_CODEC.encode(fine), answer))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # a client that went away is of no interest here
        finally:
            self._connections.discard(task)
            writer.close()

    def _answer(self, method: str, body: bytes, user: str, *, is_admin: bool) -> bytes | rpc.RpcException:
        if is_admin and self.cluster.admins and user not in self.cluster.admins:
            text = f"{rpc.ACCESS_CONTROL_EXCEPTION}: User {user} doesn't have permission to call '{method}'"
            return rpc.RpcException(class_name=YARN_EXCEPTION, message=text)
        if not self.active:
            text = f"ResourceManager {self.name} is not Active!"
            return rpc.RpcException(class_name=rpc.STANDBY_EXCEPTION, message=text)
        if method == yarn.GET_CLUSTER_NODES and not is_admin:
            return self._list(yarn.NODES_REQUEST_CODEC.decode(body))
        if method == yarn.UPDATE_NODE_RESOURCE and is_admin:
            return self._update(yarn.UPDATE_REQUEST_CODEC.decode(body))
        return rpc.RpcException(class_name="org.apache.hadoop.ipc.RpcNoSuchMethodException", message=method)

    def _list(self, request: yarn.GetClusterNodesRequest) -> bytes:
        reports = tuple(
            NodeReport(
                node_id=NodeIdMessage(node.host, node.port),
                used=one.used,
                capability=one.capability,
                containers=one.used.vcores,
                state=one.state,
            )
            for node, one in self.cluster.nodes.items()
            if one.state in request.states
        )
        return yarn.NODES_RESPONSE_CODEC.encode(yarn.GetClusterNodesResponse(reports))

    def _update(self, request: yarn.UpdateNodeResourceRequest) -> bytes | rpc.RpcException:
        for one in request.nodes:
            if YarnNodeId(one.node_id.host, one.node_id.port) not in self.cluster.nodes:
                text = (
                    "Resource update get failed on all nodes due to change resource on an unrecognized node: "
                    f"{one.node_id.host}:{one.node_id.port}"
                )
                return rpc.RpcException(class_name=YARN_EXCEPTION, message=text)
        for one in request.nodes:
            self.cluster.nodes[YarnNodeId(one.node_id.host, one.node_id.port)].capability = one.option.resource
            self.cluster.updates.append(one)
        return b""

    async def _authenticate(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        token = self._token
        offers: tuple[sasl.SaslAuth, ...] = (sasl.SaslAuth(method="SIMPLE"),)
        if token is not None:
            challenge = b'realm="default",nonce="n1",qop="auth",charset=utf-8,algorithm=md5-sess'
            given = sasl.SaslAuth(method="TOKEN", mechanism="DIGEST-MD5", server_id="default", challenge=challenge)
            offers = (given, *offers)
        asked = await _sasl(reader)
        assert asked.state == sasl.NEGOTIATE
        writer.write(_sasl_answer(sasl.SaslMessage(state=sasl.NEGOTIATE, auths=offers)))
        answer = await _sasl(reader)
        assert token is not None
        assert answer.state == sasl.INITIATE
        said = sasl.parse_directives(answer.token)
        user, password = (b64encode(one).decode() for one in (token.identifier, token.password))
        proof, expected = sasl.compute_digest(user, password, "default", "n1", said["cnonce"], "/default")
        if (said["username"], said["response"]) != (user, proof):
            failed = rpc.RpcResponseHeader(
                call_id=(1 << 32) + rpc.SASL_CALL,
                status=rpc.FATAL,
                exception_class="javax.security.sasl.SaslException",
                error_message="DIGEST-MD5: digest response format violation. Mismatched response.",
            )
            writer.write(rpc.encode_frame(rpc.RESPONSE_HEADER_CODEC.encode(failed)))
            return
        done = sasl.SaslMessage(state=sasl.SUCCESS, token=f"rspauth={expected}".encode())
        writer.write(_sasl_answer(done))


@asynccontextmanager
async def running(*managers: FakeResourceManager) -> AsyncIterator[None]:
    for one in managers:
        await one.start()
    try:
        yield
    finally:
        for one in managers:
            await one.stop()


def cluster_of(name: str, *managers: FakeResourceManager) -> YarnCluster:
    return YarnCluster(name, tuple(one.address for one in managers))


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


async def _sasl(reader: asyncio.StreamReader) -> sasl.SaslMessage:
    frame = await _frame(reader)
    header, at = rpc.take_message(frame, 0, rpc.REQUEST_HEADER_CODEC)
    assert header.call_id == rpc.SASL_CALL
    message, _ = rpc.take_message(frame, at, sasl.SASL_CODEC)
    assert isinstance(message, sasl.SaslMessage)
    return message


def _sasl_answer(message: sasl.SaslMessage) -> bytes:
    header = rpc.RpcResponseHeader(call_id=(1 << 32) + rpc.SASL_CALL)
    return rpc.encode_frame(rpc.RESPONSE_HEADER_CODEC.encode(header), sasl.SASL_CODEC.encode(message))


def _delimited_size(body: bytes) -> int:
    """Return the size of the message whose length stands at the beginning."""
    start, end = read_length_delimited(body, 0, len(body))
    assert end == len(body)
    return end - start
