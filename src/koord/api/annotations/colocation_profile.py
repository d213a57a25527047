"""What a ClusterColocationProfile says beside its spec."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.protocol import A_SKIP_UPDATE_RESOURCES, L_CONTROLLER_MANAGED, TRUE


def keeps_native_resources(annotations: Mapping[str, str]) -> bool:
    """The annotation alone, whatever its value, keeps cpu and memory from being rewritten to a tier."""
    return A_SKIP_UPDATE_RESOURCES in annotations


def covers_running_pods(labels: Mapping[str, str]) -> bool:
    """Whether the controller applies the profile to pods that exist already."""
    return labels.get(L_CONTROLLER_MANAGED) == TRUE
