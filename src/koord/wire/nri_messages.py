"""This module holds the requests and responses of NRI v1alpha1 that koord makes or answers."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from koord.wire.nri_objects import (
    ADJUSTMENT_CODEC,
    CONTAINER_CODEC,
    EVICTION_CODEC,
    POD_SANDBOX_CODEC,
    RESOURCES_CODEC,
    UPDATE_CODEC,
    ContainerAdjustment,
    ContainerEviction,
    ContainerUpdate,
    LinuxResources,
    NriContainer,
    NriPodSandbox,
)
from koord.wire.protobuf import (
    BOOL,
    INT32,
    INT64,
    STRING,
    MessageCodec,
    MessageField,
    MessageListField,
    ScalarField,
)

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"

T = TypeVar("T", bound=msgspec.Struct)
_CODECS: dict[type[Any], MessageCodec[Any]] = {}


def encode_message(message: msgspec.Struct) -> bytes:
    """Encode a message of this module; raises WireError where a value does not fit its field."""
    return _CODECS[type(message)].encode(message)


def decode_message(kind: type[T], data: bytes) -> T:
    """Decode a message of this module; raises WireError."""
    found: T = _CODECS[kind].decode(data)
    return found


def _codec(struct: type[T], *fields: Any) -> MessageCodec[T]:
    codec = MessageCodec(struct, *fields)
    _CODECS[struct] = codec
    return codec


class EmptyMessage(msgspec.Struct, frozen=True):
    """EmptyMessage is the answer that asks for nothing."""


class RegisterPluginRequest(msgspec.Struct, frozen=True, kw_only=True):
    plugin_name: str = ""
    plugin_idx: str = ""


class UpdateContainersRequest(msgspec.Struct, frozen=True, kw_only=True):
    update: tuple[ContainerUpdate, ...] = ()
    evict: tuple[ContainerEviction, ...] = ()


class UpdateContainersResponse(msgspec.Struct, frozen=True, kw_only=True):
    failed: tuple[ContainerUpdate, ...] = ()


class ConfigureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts are in milliseconds, 0 in runtimes that do not tell them; NRI before v0.12 does not tell its version."""

    config: str = ""
    runtime_name: str = ""
    runtime_version: str = ""
    registration_timeout: int = 0
    request_timeout: int = 0
    nri_version: str = ""


class ConfigureResponse(msgspec.Struct, frozen=True, kw_only=True):
    events: int = 0


class SynchronizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    pods: tuple[NriPodSandbox, ...] = ()
    containers: tuple[NriContainer, ...] = ()
    more: bool = False


class SynchronizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    update: tuple[ContainerUpdate, ...] = ()
    more: bool = False


class CreateContainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    pod: NriPodSandbox = NriPodSandbox()
    container: NriContainer = NriContainer()


class CreateContainerResponse(msgspec.Struct, frozen=True, kw_only=True):
    adjust: ContainerAdjustment | None = None
    update: tuple[ContainerUpdate, ...] = ()
    evict: tuple[ContainerEviction, ...] = ()


class UpdateContainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    pod: NriPodSandbox = NriPodSandbox()
    container: NriContainer = NriContainer()
    linux_resources: LinuxResources | None = None


class UpdateContainerResponse(msgspec.Struct, frozen=True, kw_only=True):
    update: tuple[ContainerUpdate, ...] = ()
    evict: tuple[ContainerEviction, ...] = ()


class StateChangeEvent(msgspec.Struct, frozen=True, kw_only=True):
    event: int = 0
    pod: NriPodSandbox = NriPodSandbox()
    container: NriContainer | None = None


_codec(EmptyMessage)
_codec(RegisterPluginRequest, ScalarField(1, "plugin_name", STRING), ScalarField(2, "plugin_idx", STRING))
_codec(
    UpdateContainersRequest, MessageListField(1, "update", UPDATE_CODEC), MessageListField(2, "evict", EVICTION_CODEC)
)
_codec(UpdateContainersResponse, MessageListField(1, "failed", UPDATE_CODEC))
_codec(
    ConfigureRequest,
    ScalarField(1, "config", STRING),
    ScalarField(2, "runtime_name", STRING),
    ScalarField(3, "runtime_version", STRING),
    ScalarField(4, "registration_timeout", INT64),
    ScalarField(5, "request_timeout", INT64),
    ScalarField(6, "nri_version", STRING),
)
_codec(ConfigureResponse, ScalarField(2, "events", INT32))
_codec(
    SynchronizeRequest,
    MessageListField(1, "pods", POD_SANDBOX_CODEC),
    MessageListField(2, "containers", CONTAINER_CODEC),
    ScalarField(3, "more", BOOL),
)
_codec(SynchronizeResponse, MessageListField(1, "update", UPDATE_CODEC), ScalarField(2, "more", BOOL))
_codec(CreateContainerRequest, MessageField(1, "pod", POD_SANDBOX_CODEC), MessageField(2, "container", CONTAINER_CODEC))
_codec(
    CreateContainerResponse,
    MessageField(1, "adjust", ADJUSTMENT_CODEC),
    MessageListField(2, "update", UPDATE_CODEC),
    MessageListField(3, "evict", EVICTION_CODEC),
)
_codec(
    UpdateContainerRequest,
    MessageField(1, "pod", POD_SANDBOX_CODEC),
    MessageField(2, "container", CONTAINER_CODEC),
    MessageField(3, "linux_resources", RESOURCES_CODEC),
)
_codec(
    UpdateContainerResponse, MessageListField(1, "update", UPDATE_CODEC), MessageListField(2, "evict", EVICTION_CODEC)
)
_codec(
    StateChangeEvent,
    ScalarField(1, "event", INT32),
    MessageField(2, "pod", POD_SANDBOX_CODEC),
    MessageField(3, "container", CONTAINER_CODEC),
)
