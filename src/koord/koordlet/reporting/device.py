"""Keep this node's Device up to date: check every few seconds, write only what changed.

The content is built in `koord.koordlet.report.device`. Labels and annotations of others stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.custom import DEVICES
from koord.api.device import Device
from koord.api.model import to_dict
from koord.api.node import Node
from koord.host.fault import Fault
from koord.host.host import Host
from koord.host.nvml import GpuCard
from koord.host.pci import seat
from koord.host.rdma import RdmaCard, rdma_cards
from koord.host.xpu import Xpu, xpus
from koord.koordlet.report.device import MANAGED_ANNOTATIONS, MANAGED_LABELS, Devices, Gpus, build_devices
from koord.koordlet.reporting.belonging import metadata_of
from koord.koordlet.reporting.standing import Standing
from koord.kube.client import Client
from koord.kube.informer import Informer
from koord.kube.outage import OUTAGE
from koord.kube.refused import Refused
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the Device reporter reports. Accelerators are those that vendors' plugins describe in files."""

    every_s: float = 3.0
    accelerators: bool = False
    rdma: bool = False
    folder: str = "/var/run/koordlet/xpu-device-infos"

    @property
    def wanted(self) -> bool:
        return self.accelerators or self.rdma


class DeviceReporter:
    """Run it in a task. `devices` follows the object named as this node; `node` returns None until it was seen."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        host: Host,
        devices: Informer[Device],
        node: Callable[[], Node | None],
        settings: Settings = Settings(),  # noqa: B008 - a frozen value
        gpus: Callable[[], tuple[tuple[GpuCard, ...], str] | None] = lambda: ((), ""),
    ) -> None:
        """`gpus` returns the cards that the collector found and their driver's version; None until they are known."""
        self._client = client
        self._clock = clock
        self._host = host
        self._devices = devices
        self._node = node
        self._settings = settings
        self._gpus = gpus
        self._standing = Standing(_LOG, "the Device is up to date", "the Device is not kept")
        self.latest: Devices | None = None

    @property
    def problem(self) -> str:
        return self._standing.problem

    async def run(self) -> None:
        """Sync periodically until cancelled."""
        while True:
            await self.sync()
            await self._clock.sleep(self._settings.every_s)

    async def sync(self) -> None:
        """Read the devices and write the object when it differs."""
        node = self._node()
        if node is None or not self._devices.synced:
            self._standing.fails("the node, or whether it has a Device, is not known yet")
            return
        found: list[Xpu] | Fault = xpus(self._host, self._settings.folder) if self._settings.accelerators else []
        cards: list[RdmaCard] | Fault = rdma_cards(self._host) if self._settings.rdma else []
        for fault in (found, cards):
            if isinstance(fault, Fault):
                # Half of the devices would look like all of them: pods would lose cards that still work.
                self._standing.fails(str(fault))
                return
        gpus = self._gpus()
        if gpus is None:
            self._standing.fails("the cards of this machine were not listed yet")
            return
        there = self._devices.get("", node.metadata.name)
        before = () if there is None else there.spec.devices
        wanted = build_devices(
            [] if isinstance(found, Fault) else found,
            [] if isinstance(cards, Fault) else cards,
            before,
            self._clock.time(),
            Gpus(cards=tuple((card, seat(self._host, card.address)) for card in gpus[0]), driver=gpus[1]),
        )
        self.latest = wanted
        try:
            answer = await self._write(node, wanted, there)
        except OUTAGE as failure:
            self._standing.fails(str(failure))
            return
        if isinstance(answer, Refused):
            if not (answer.conflict or answer.already_exists or answer.too_many):
                self._standing.fails(str(answer))
            return
        self._standing.works()

    async def _write(self, node: Node, wanted: Devices, there: Device | None) -> Device | Refused | None:
        if there is None:
            return await self._client.create(DEVICES, _new(node, wanted))
        patch = difference(wanted, there)
        if not patch:
            return None
        meta = there.metadata
        return await self._client.patch(
            DEVICES, meta.name, patch, kind="merge", uid=meta.uid, resource_version=meta.resource_version
        )


def difference(wanted: Devices, there: Device) -> dict[str, Any]:
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


def _new(node: Node, wanted: Devices) -> dict[str, Any]:
    return {
        "metadata": metadata_of(node, wanted.labels, wanted.annotations),
        "spec": {"devices": [to_dict(one) for one in wanted.devices]},
    }
