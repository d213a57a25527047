"""This module holds the events that NRI plugins subscribe to, their mask, and the configuration that chooses them."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from koord.values.json_text import MalformedText
from koord.values.yaml_text import load_yaml


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
