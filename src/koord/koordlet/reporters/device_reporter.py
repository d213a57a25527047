"""Keep this node's Device up to date: check every few seconds, write only what changed.

The content is built in `koord.koordlet.reporters.builders.device`. Labels and annotations of others stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.koordinator.custom_kinds import DEVICES
from koord.api.koordinator.scheduling import Device
from koord.api.kubernetes.node import Node
from koord.api.model import to_dict
from koord.host.devices import pci_location, rdma_cards, xpus
from koord.host.filesystem import Host
from koord.host.gpu import GpuInventory
from koord.host.hardware import RdmaCard, Xpu
from koord.host.io_error import IoError
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.reporters.builders.device import (
    MANAGED_ANNOTATIONS,
    MANAGED_LABELS,
    DeviceReport,
    build_device_report,
)
from koord.koordlet.reporters.object_reporter import ObjectReporter, owned_metadata
from koord.kube.client.typed_client import Client
from koord.kube.informer.informer import Informer
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)


class DeviceReporterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """DeviceReporterSettings says what the Device reporter reports. Accelerators are those that vendors'
    plugins describe in files.
    """

    every_s: float = 3.0
    accelerators: bool = False
    rdma: bool = False
    folder: str = "/var/run/koordlet/xpu-device-infos"

    @property
    def wanted(self) -> bool:
        return self.accelerators or self.rdma


class DeviceReporter(ObjectReporter[Device]):
    """Reports the Device of this node; `node` returns None until it was seen."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        host: Host,
        devices: Informer[Device],
        node: Callable[[], Node | None],
        settings: DeviceReporterSettings = DeviceReporterSettings(),  # noqa: B008 - a frozen value
        gpus: Callable[[], GpuInventory | None] = GpuInventory,
    ) -> None:
        """`gpus` returns the cards that the collector found; None until they are known."""
        log = ProblemLog(_LOG, "the Device is not kept", "the Device is up to date", begins_unknown=True)
        super().__init__(client, clock, DEVICES, devices, settings.every_s, log)
        self._host = host
        self._node = node
        self._settings = settings
        self._gpus = gpus
        self.latest: DeviceReport | None = None

    async def sync(self) -> None:
        node = self._node()
        if node is None or not self._objects.has_synced:
            self._health.fails("the node, or whether it has a Device, is not known yet")
            return
        found: list[Xpu] | IoError = xpus(self._host, self._settings.folder) if self._settings.accelerators else []
        cards: list[RdmaCard] | IoError = rdma_cards(self._host) if self._settings.rdma else []
        for io_error in (found, cards):
            if isinstance(io_error, IoError):
                # Half of the devices would look like all of them: pods would lose cards that still work.
                self._health.fails(str(io_error))
                return
        gpus = self._gpus()
        if gpus is None:
            self._health.fails("the cards of this machine were not listed yet")
            return
        there = self._objects.get("", node.metadata.name)
        before = () if there is None else there.spec.devices
        wanted = build_device_report(
            [] if isinstance(found, IoError) else found,
            [] if isinstance(cards, IoError) else cards,
            before,
            self._clock.time(),
            gpus,
            {card.uuid: pci_location(self._host, card.address) for card in gpus.cards},
        )
        self.latest = wanted
        await self._publish(node, lambda: new_device(node, wanted), lambda there: device_patch(wanted, there))


def device_patch(wanted: DeviceReport, there: Device) -> dict[str, Any]:
    """Return the merge patch from the present object to the wanted report; empty when there is no difference."""
    meta: dict[str, Any] = {}
    for part, mine, keys, theirs in (
        ("labels", wanted.labels, MANAGED_LABELS, there.metadata.labels),
        ("annotations", wanted.annotations, MANAGED_ANNOTATIONS, there.metadata.annotations),
    ):
        changed = {key: mine.get(key) for key in keys if mine.get(key) != theirs.get(key)}
        if changed:
            meta[part] = changed
    patch: dict[str, Any] = {"metadata": meta} if meta else {}
    if wanted.devices != there.spec.devices:
        patch["spec"] = {"devices": [to_dict(one) for one in wanted.devices]}
    return patch


def new_device(node: Node, wanted: DeviceReport) -> dict[str, Any]:
    return {
        "metadata": owned_metadata(node, wanted.labels, wanted.annotations),
        "spec": {"devices": [to_dict(one) for one in wanted.devices]},
    }
