"""This module calls the ResourceManagers of one YARN cluster over Hadoop's RPC, one connection for each call.

Of several ResourceManagers one is active. The one that answered last is asked first; a standby, and one that cannot be
reached, give way to the next. So no right to ask for a ResourceManager's state is needed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

import msgspec

from koord.wire.hadoop_rpc import CLIENT_ID_SIZE, HadoopRpcCall, RpcException, RpcOutcome, RpcResponse, RpcViolation
from koord.wire.hadoop_sasl import HadoopToken
from koord.wire.hadoop_yarn import (
    ADMINISTRATION_PROTOCOL,
    CLIENT_PROTOCOL,
    DECOMMISSIONING,
    GET_CLUSTER_NODES,
    NODES_REQUEST_CODEC,
    NODES_RESPONSE_CODEC,
    RUNNING,
    UPDATE_NODE_RESOURCE,
    UPDATE_REQUEST_CODEC,
    GetClusterNodesRequest,
    NodeReport,
    NodeResource,
    UpdateNodeResourceRequest,
)
from koord.wire.protobuf import WireError
from koord.yarn.hadoop_config import HostPort, ResourceManagerAddress, YarnCluster

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 20.0
TOKEN_KIND = "RM_DELEGATION_TOKEN"
_READ_BYTES = 1 << 16


class NotReached(msgspec.Struct, frozen=True):
    """NotReached says why a ResourceManager gave no answer."""

    address: HostPort
    reason: str

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


class NoActiveManager(msgspec.Struct, frozen=True):
    """NoActiveManager says why none of a cluster's ResourceManagers can be used."""

    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(self.reasons)


CallFailure = RpcException | RpcViolation | NoActiveManager


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Caller says as whom calls are made. `random_bytes` gives IDs and nonces."""

    user: str
    random_bytes: Callable[[int], bytes]
    tokens: tuple[HadoopToken, ...] = ()

    def token_for(self, address: HostPort, resolved: Sequence[str]) -> HadoopToken | None:
        """Return the token for an address; tokens name their services by IP address or by host name."""
        services = {str(address), *(f"{one}:{address.port}" for one in resolved)}
        for token in self.tokens:
            if token.kind == TOKEN_KIND and services & set(token.service.split(",")):
                return token
        return None


class ResourceManagerClient:
    """ResourceManagerClient calls the active ResourceManager of a cluster."""

    def __init__(self, cluster: YarnCluster, caller: Caller) -> None:
        self.cluster = cluster
        self._caller = caller
        self._active = 0

    @property
    def active(self) -> ResourceManagerAddress:
        """Return the ResourceManager that is asked first."""
        return self.cluster.managers[self._active]

    async def nodes(self) -> tuple[NodeReport, ...] | CallFailure:
        """List the NodeManagers that run containers."""
        request = NODES_REQUEST_CODEC.encode(GetClusterNodesRequest((RUNNING, DECOMMISSIONING)))
        outcome = await self._call_active(CLIENT_PROTOCOL, GET_CLUSTER_NODES, request)
        if not isinstance(outcome, RpcResponse):
            return outcome
        try:
            return NODES_RESPONSE_CODEC.decode(outcome.body).reports
        except WireError as error:
            return RpcViolation(str(error))

    async def update(self, nodes: Sequence[NodeResource]) -> CallFailure | None:
        """Set what NodeManagers offer, all or none. Without any node the call only shows whether it is allowed."""
        request = UPDATE_REQUEST_CODEC.encode(UpdateNodeResourceRequest(tuple(nodes)))
        outcome = await self._call_active(ADMINISTRATION_PROTOCOL, UPDATE_NODE_RESOURCE, request)
        return None if isinstance(outcome, RpcResponse) else outcome

    async def _call_active(
        self, protocol: str, method: str, request: bytes
    ) -> RpcResponse | RpcException | RpcViolation | NoActiveManager:
        reasons: list[str] = []
        count = len(self.cluster.managers)
        for turn in range(count):
            place = (self._active + turn) % count
            manager = self.cluster.managers[place]
            address = manager.client if protocol == CLIENT_PROTOCOL else manager.admin
            outcome = await call(address, self._caller, protocol, method, request)
            if isinstance(outcome, NotReached):
                reasons.append(str(outcome))
            elif isinstance(outcome, RpcException) and outcome.is_standby:
                reasons.append(f"{address}: {outcome}")
            else:
                self._active = place
                return outcome
        return NoActiveManager(tuple(reasons))


async def call(
    address: HostPort, caller: Caller, protocol: str, method: str, request: bytes
) -> RpcOutcome | NotReached:
    """Make one call on a connection of its own."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            resolved = await _resolve(address) if caller.tokens else ()
            reader, writer = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        return NotReached(address, f"no connection within {CONNECT_TIMEOUT_S:.0f} s")
    except OSError as error:
        return NotReached(address, error.strerror or str(error))
    rpc = HadoopRpcCall(
        protocol=protocol,
        method=method,
        request=request,
        user=caller.user,
        client_id=caller.random_bytes(CLIENT_ID_SIZE),
        token=caller.token_for(address, resolved) if protocol == CLIENT_PROTOCOL else None,
        cnonce=caller.random_bytes(16).hex(),
    )
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            writer.write(rpc.start())
            await writer.drain()
            while rpc.outcome is None:
                data = await reader.read(_READ_BYTES)
                if not data:
                    return rpc.end_of_stream()
                writer.write(rpc.feed(data))
            return rpc.outcome
    except TimeoutError:
        return NotReached(address, f"no answer within {ANSWER_TIMEOUT_S:.0f} s")
    except OSError as error:
        return NotReached(address, error.strerror or str(error))
    finally:
        writer.close()


async def _resolve(address: HostPort) -> tuple[str, ...]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return tuple(str(place[4][0]) for place in found)
