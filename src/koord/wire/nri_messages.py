"""This module holds the requests and responses of NRI v1alpha1 that koord makes or answers, and the events that plugins
subscribe to, with their mask and the configuration that chooses them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import ClassVar, TypeVar

import msgspec

from koord.values.json_text import MalformedText
from koord.values.yaml_text import load_yaml
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


class NriEvent(enum.IntEnum):
    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    POST_UPDATE_CONTAINER = 9
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11
    UPDATE_POD_SANDBOX = 12
    POST_UPDATE_POD_SANDBOX = 13
    VALIDATE_CONTAINER_ADJUSTMENT = 14


def event_mask(events: Iterable[NriEvent]) -> int:
    mask = 0
    for event in events:
        mask |= 1 << (event - 1)
    return mask


_BY_NAME = {event.name.replace("_", "").lower(): event for event in NriEvent}
ALL_EVENTS = event_mask(NriEvent)
# What koordlet acts on: 141.
DEFAULT_EVENTS = event_mask(
    (NriEvent.RUN_POD_SANDBOX, NriEvent.REMOVE_POD_SANDBOX, NriEvent.CREATE_CONTAINER, NriEvent.UPDATE_CONTAINER)
)
_GROUPS = {
    "all": ALL_EVENTS,
    **{
        group: event_mask(event for name, event in _BY_NAME.items() if part in name)
        for group, part in (("pod", "pod"), ("podsandbox", "pod"), ("container", "container"))
    },
}


def parse_events(names: Iterable[str]) -> int | MalformedText:
    """Return the mask of event names. Case does not matter, and one text may hold several names with commas between."""
    mask = 0
    for text in names:
        for name in (part.strip() for part in text.lower().split(",")):
            if name in _GROUPS:
                mask |= _GROUPS[name]
            elif name in _BY_NAME:
                mask |= event_mask((_BY_NAME[name],))
            else:
                return MalformedText(f"unknown event {name!r}")
    return mask


def configured_events(config: str) -> int | MalformedText:
    """Return the mask that the runtime's configuration of this plugin asks for.

    The configuration is YAML whose key `events` replaces the default. No key or an empty list leaves the default, as
    the runtime takes the mask 0 for all events.
    """
    found = load_yaml(config)
    if isinstance(found, MalformedText):
        return found
    if found is None:
        return DEFAULT_EVENTS
    if not isinstance(found, dict):
        return MalformedText("the configuration is no mapping")
    listed = next((value for key, value in found.items() if str(key).lower() == "events"), None)
    if listed is None:
        return DEFAULT_EVENTS
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        return MalformedText("events is no list of names")
    return parse_events(listed) if listed else DEFAULT_EVENTS
