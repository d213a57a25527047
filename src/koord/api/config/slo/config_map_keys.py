"""This module lists the data keys of slo-controller-config."""

from __future__ import annotations

COLOCATION = "colocation-config"
RESOURCE_THRESHOLD = "resource-threshold-config"
RESOURCE_QOS = "resource-qos-config"
CPU_BURST = "cpu-burst-config"
SYSTEM = "system-config"
HOST_APPLICATION = "host-application-config"
CPU_NORMALIZATION = "cpu-normalization-config"
RESOURCE_AMPLIFICATION = "resource-amplification-config"

KEYS = (
    COLOCATION,
    RESOURCE_THRESHOLD,
    RESOURCE_QOS,
    CPU_BURST,
    SYSTEM,
    HOST_APPLICATION,
    CPU_NORMALIZATION,
    RESOURCE_AMPLIFICATION,
)
# The keys that the ConfigMap webhook checks, in its order.
VALIDATED_KEYS = (COLOCATION, RESOURCE_THRESHOLD, RESOURCE_QOS, SYSTEM, CPU_BURST)
