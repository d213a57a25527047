"""This module probes whether other plugins can allocate a pod's CPUs and devices from a reservation."""

from __future__ import annotations

from collections.abc import Sequence

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.reserved import Reserved
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo

LEDGERS = ("NodeNUMAResource", "DeviceShare")


def takes(ledgers: Sequence[Plugin], cycle: Cycle, pod: PodInfo, node: NodeInfo, reserved: Reserved) -> bool:
    """Return whether NodeNUMAResource and DeviceShare can allocate from the reservation.

    They run Reserve, which is undone at once: nothing else knows as exactly.
    """
    probe = cycle.fork()
    probe.nominated[pod.uid] = reserved
    asked: list[Plugin] = []
    try:
        for ledger in ledgers:
            asked.append(ledger)
            if ledger.reserve(probe, pod, node) is not None:
                return False
        return True
    finally:
        for ledger in reversed(asked):
            ledger.unreserve(probe, pod, node.name)
