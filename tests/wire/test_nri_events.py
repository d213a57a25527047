"""Which events the plugin subscribes to, by default and by the runtime's configuration."""

from __future__ import annotations

import pytest

from koord.values.json_text import MalformedText
from koord.wire.nri_messages import ALL_EVENTS, DEFAULT_EVENTS, NriEvent, configured_events, event_mask, parse_events

_PODS = event_mask(event for event in NriEvent if "POD" in event.name)
_CONTAINERS = event_mask(event for event in NriEvent if "CONTAINER" in event.name)


def test_the_default_is_what_koordlet_acts_on() -> None:
    assert DEFAULT_EVENTS == 141
    assert ALL_EVENTS == (1 << 14) - 1


@pytest.mark.parametrize(
    ("config", "mask"),
    [
        pytest.param("", 141, id="none"),
        pytest.param("# nothing\n", 141, id="comment"),
        pytest.param("events: [CreateContainer]", 8, id="one"),
        pytest.param("events: [createcontainer, UPDATECONTAINER]", 136, id="any-case"),
        pytest.param("events: ['RunPodSandbox,RemovePodSandbox']", 5, id="comma-list"),
        pytest.param("events: ['RunPodSandbox, RemovePodSandbox']", 5, id="comma-and-space"),
        pytest.param("Events: [StopContainer]", 512, id="key-in-any-case"),
        pytest.param("events: [all]", ALL_EVENTS, id="all"),
        pytest.param("events: [pod]", _PODS, id="pod"),
        pytest.param("events: [PodSandbox]", _PODS, id="podsandbox"),
        pytest.param("events: [container]", _CONTAINERS, id="container"),
        pytest.param("events: []", 141, id="empty-list"),
        pytest.param("events:", 141, id="null"),
        pytest.param("other: 1", 141, id="another-key"),
    ],
)
def test_the_configuration_chooses_events(config: str, mask: int) -> None:
    assert configured_events(config) == mask


@pytest.mark.parametrize(
    ("config", "why"),
    [
        pytest.param("events: [Created]", "unknown event 'created'", id="unknown"),
        pytest.param("events: ['']", "unknown event ''", id="empty-name"),
        pytest.param("events: CreateContainer", "no list of names", id="no-list"),
        pytest.param("events: [1]", "no list of names", id="number"),
        pytest.param("- all", "no mapping", id="no-mapping"),
        pytest.param("events: [", "", id="no-yaml"),
    ],
)
def test_a_configuration_without_sense_is_refused(config: str, why: str) -> None:
    found = configured_events(config)
    assert isinstance(found, MalformedText)
    assert why in str(found)


def test_every_name_is_an_event() -> None:
    for event in NriEvent:
        assert parse_events([event.name.replace("_", "")]) == 1 << (event - 1)
