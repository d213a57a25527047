"""This module lists the QoS and priority classes of the protocol, with their bands. koord.policy.qos resolves."""

from __future__ import annotations

import msgspec

NONE = ""

LSE = "LSE"
LSR = "LSR"
LS = "LS"
BE = "BE"
SYSTEM = "SYSTEM"
QOS_CLASSES = (LSE, LSR, LS, BE, SYSTEM)

PROD = "koord-prod"
MID = "koord-mid"
BATCH = "koord-batch"
FREE = "koord-free"
PRIORITY_CLASSES = (PROD, MID, BATCH, FREE)

# Kubernetes' own, from status.qosClass
GUARANTEED = "Guaranteed"
BURSTABLE = "Burstable"
BEST_EFFORT = "BestEffort"


class PriorityBand(msgspec.Struct, frozen=True, kw_only=True):
    """PriorityBand holds the spec.priority values of one class, its default value, and the shipped PriorityClass."""

    low: int
    high: int
    default: int
    shipped: int


PRIORITY_BANDS: dict[str, PriorityBand] = {
    PROD: PriorityBand(low=9000, high=9999, default=9500, shipped=9000),
    MID: PriorityBand(low=7000, high=7999, default=7500, shipped=7000),
    BATCH: PriorityBand(low=5000, high=5999, default=5500, shipped=5000),
    FREE: PriorityBand(low=3000, high=3999, default=3500, shipped=3000),
}
