"""This module holds the requests and responses of NRI v1alpha1 that koord makes or answers."""

from __future__ import annotations

from typing import ClassVar, TypeVar

import msgspec

from koord.wire.nri_objects import (
    ContainerAdjustment,
    ContainerEviction,
    ContainerUpdate,
    LinuxResources,
    NriContainer,
    NriPodSandbox,
)
from koord.wire.protobuf import Int32, Int64, codec_of

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"

T = TypeVar("T", bound=msgspec.Struct)


def encode_message(message: msgspec.Struct) -> bytes:
    """Encode a message of this module; raises WireError where a value does not fit its field."""
    return codec_of(type(message)).encode(message)


def decode_message(kind: type[T], data: bytes) -> T:
    """Decode a message of this module; raises WireError."""
    return codec_of(kind).decode(data)


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
    registration_timeout: Int64 = 0
    request_timeout: Int64 = 0
    nri_version: str = ""


class ConfigureResponse(msgspec.Struct, frozen=True, kw_only=True):
    field_numbers: ClassVar[tuple[int, ...]] = (2,)
    events: Int32 = 0


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
    event: Int32 = 0
    pod: NriPodSandbox = NriPodSandbox()
    container: NriContainer | None = None
