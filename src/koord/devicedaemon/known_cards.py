"""The cards of a vendor over several rounds: what becomes of those that a round could not describe.

A tool that fails once is not believed: the cards are as they were. One that fails again makes them unhealthy, so that
nobody is given a card that cannot be looked after; pods that have one keep it. A good round ends it.
"""

from __future__ import annotations

import msgspec

from koord.devicedaemon.vendor_probe import ProbeResult
from koord.devicedaemon.vendor_tool import ToolFailed
from koord.host.hardware import Xpu, XpuStatus

PROBE_FAILED = "ProbeFailed"
PATIENCE = 1  # failed rounds in a row that change nothing


class KnownCards(msgspec.Struct, frozen=True):
    """The cards of one vendor, and how many rounds in a row failed."""

    devices: tuple[Xpu, ...] = ()
    failures: int = 0


def next_cards(before: KnownCards, outcome: ProbeResult | ToolFailed) -> KnownCards:
    """Return the cards after a round."""
    if isinstance(outcome, ToolFailed):
        failures = before.failures + 1
        if failures <= PATIENCE:
            return KnownCards(before.devices, failures)
        return KnownCards(tuple(_unhealthy(one, outcome.reason) for one in before.devices), failures)
    reasons = {one.minor: one.reason for one in outcome.failed}
    kept = [_unhealthy(one, reasons[one.minor]) for one in before.devices if one.minor in reasons]
    return KnownCards(tuple(sorted((*outcome.devices, *kept), key=lambda one: int(one.minor))))


def _unhealthy(device: Xpu, reason: str) -> Xpu:
    return msgspec.structs.replace(device, status=XpuStatus(err_code=PROBE_FAILED, err_message=reason))
