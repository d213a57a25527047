"""This module holds the messages of YARN's ResourceManager that koord exchanges over Hadoop's RPC, and the file of
tokens that Hadoop's programs are given.

A resource's numbers are always written, zero as well: a ResourceManager takes an absent number for zero, and an absent
over-commit timeout for the order to kill at once.
"""

from __future__ import annotations

import msgspec

from koord.wire.hadoop_sasl import HadoopToken
from koord.wire.protobuf import (
    INT32,
    INT64,
    STRING,
    IntegerListField,
    MessageCodec,
    MessageListField,
    NestedField,
    RequiredField,
    ScalarField,
    WireError,
)

ADMINISTRATION_PROTOCOL = "org.apache.hadoop.yarn.server.api.ResourceManagerAdministrationProtocolPB"
CLIENT_PROTOCOL = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB"
UPDATE_NODE_RESOURCE, GET_CLUSTER_NODES = "updateNodeResource", "getClusterNodes"
# The states in which a NodeManager runs containers.
RUNNING, DECOMMISSIONING = 2, 7


class NodeIdMessage(msgspec.Struct, frozen=True):
    host: str = ""
    port: int = 0


class ResourceMessage(msgspec.Struct, frozen=True):
    memory_mib: int = 0
    vcores: int = 0


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """NodeReport is what a ResourceManager says of one NodeManager; `used` is what its containers were granted."""

    node_id: NodeIdMessage | None = None
    used: ResourceMessage | None = None
    capability: ResourceMessage | None = None
    containers: int = 0
    state: int = 0


class ResourceOption(msgspec.Struct, frozen=True):
    resource: ResourceMessage
    over_commit_timeout_ms: int = -1


class NodeResource(msgspec.Struct, frozen=True):
    node_id: NodeIdMessage
    option: ResourceOption


class UpdateNodeResourceRequest(msgspec.Struct, frozen=True):
    nodes: tuple[NodeResource, ...] = ()


class GetClusterNodesRequest(msgspec.Struct, frozen=True):
    states: tuple[int, ...] = ()


class GetClusterNodesResponse(msgspec.Struct, frozen=True):
    reports: tuple[NodeReport, ...] = ()


_NODE_ID = MessageCodec(NodeIdMessage, RequiredField(1, "host", STRING), RequiredField(2, "port", INT32))
_RESOURCE = MessageCodec(ResourceMessage, RequiredField(1, "memory_mib", INT64), RequiredField(2, "vcores", INT32))
_OPTION = MessageCodec(
    ResourceOption, NestedField(1, "resource", _RESOURCE), RequiredField(2, "over_commit_timeout_ms", INT32)
)
_NODE_RESOURCE = MessageCodec(NodeResource, NestedField(1, "node_id", _NODE_ID), NestedField(2, "option", _OPTION))
_REPORT = MessageCodec(
    NodeReport,
    NestedField(1, "node_id", _NODE_ID),
    NestedField(4, "used", _RESOURCE),
    NestedField(5, "capability", _RESOURCE),
    ScalarField(6, "containers", INT32),
    ScalarField(7, "state", INT32),
)
UPDATE_REQUEST_CODEC = MessageCodec(UpdateNodeResourceRequest, MessageListField(1, "nodes", _NODE_RESOURCE))
NODES_REQUEST_CODEC = MessageCodec(GetClusterNodesRequest, IntegerListField(1, "states", INT32))
NODES_RESPONSE_CODEC = MessageCodec(GetClusterNodesResponse, MessageListField(1, "reports", _REPORT))


# Token files -----------------------------------------------------------------------------------------------------

_TOKEN_MAGIC = b"HDTS\x00"
MAX_TOKENS = 10_000


def decode_token_file(data: bytes) -> tuple[HadoopToken, ...]:
    """Decode the tokens of a file that HADOOP_TOKEN_FILE_LOCATION names, in Hadoop's Writable form; raise WireError."""
    if not data.startswith(_TOKEN_MAGIC):
        raise WireError("the file has not the form HDTS, version 0")
    count, at = _writable_int(data, len(_TOKEN_MAGIC))
    if not 0 <= count <= MAX_TOKENS:
        raise WireError(f"the file names {count} tokens")
    tokens: list[HadoopToken] = []
    for _ in range(count):
        _, at = _writable_bytes(data, at)  # the alias
        identifier, at = _writable_bytes(data, at)
        password, at = _writable_bytes(data, at)
        kind, at = _writable_bytes(data, at)
        service, at = _writable_bytes(data, at)
        tokens.append(
            HadoopToken(
                identifier=identifier, password=password, kind=STRING.parse(kind), service=STRING.parse(service)
            )
        )
    return tuple(tokens)


def _writable_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _writable_int(data, at)
    if not 0 <= size <= len(data) - at:
        raise WireError("the file is truncated")
    return data[at : at + size], at + size


def _writable_int(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of WritableUtils: one byte from -112 to 127, or a byte that says how many bytes follow."""
    if at >= len(data):
        raise WireError("the file is truncated")
    first = data[at] - 256 if data[at] > 127 else data[at]
    if first >= -112:
        return first, at + 1
    negative, size = first < -120, (-120 if first < -120 else -112) - first
    raw = data[at + 1 : at + 1 + size]
    if len(raw) < size:
        raise WireError("the file is truncated")
    value = int.from_bytes(raw, "big")
    return (~value if negative else value), at + 1 + size
