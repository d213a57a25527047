"""This module holds the codecs of pods that webhooks, the scheduler and `koord top` read: profiles, batch
resources, resource replacement, scheduling hints, load estimation, sub-priority and interference.
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.protocol import A_SKIP_UPDATE_RESOURCES, L_CONTROLLER_MANAGED, TRUE


def keeps_native_resources(annotations: Mapping[str, str]) -> bool:
    """Return whether cpu and memory are kept from being rewritten to a tier. The key alone counts, whatever its
    value.
    """
    return A_SKIP_UPDATE_RESOURCES in annotations


def covers_running_pods(labels: Mapping[str, str]) -> bool:
    """Return whether the controller applies the profile to pods that exist already."""
    return labels.get(L_CONTROLLER_MANAGED) == TRUE
