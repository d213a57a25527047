"""node.koordinator.sh/secondary-device-well-planned: whether network cards were laid out to match the GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.protocol import FALSE, L_SECONDARY_DEVICE_WELL_PLANNED, TRUE


def parse(labels: Mapping[str, str]) -> bool | None:
    """Return whether the network cards of a node were laid out to match its GPUs; None when nobody has said."""
    return {TRUE: True, FALSE: False}.get(labels.get(L_SECONDARY_DEVICE_WELL_PLANNED, ""))
